"""Token by token is the same function as the whole sequence at once, whatever the state is made of."""

import copy
import itertools

import pytest
import torch
from small import LargestTensor, decode, maker, moved, sized
from small import assert_close as assert_equal

import attention_zoo
from attention_zoo import UnsupportedError, dense
from attention_zoo.flash import Choice, Flash
from attention_zoo.ops.decoding import states
from attention_zoo.ops.decoding.states import ROWS

HEADS, HEAD_DIM, LENGTH = 2, 8, 23
NAMES = attention_zoo.list_attentions()
draw, create = sized(LENGTH, h=HEAD_DIM, batch=3), maker("", head_dim=HEAD_DIM, causal=True)


def sketch(name, **given):
    return pytest.param("polysketch", {"sketch_size": 4, **given}, id=name)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if attention_zoo.info(name).decode and not attention_zoo.info(name).package]
)
def test_no_sequences_at_all_are_decoded(name):
    attention, tokens = create(name), torch.empty(0, HEADS, 3, HEAD_DIM, dtype=torch.float64)
    token = tokens[:, :, :1]
    out, state = attention.prefill(tokens, tokens, tokens)
    one, state = attention.step(token, token, token, state)
    more, state = attention.prefill(tokens, tokens, tokens, torch.zeros(0, 3, dtype=torch.bool), state)
    assert (out.shape, one.shape, more.shape, state.length) == (tokens.shape, token.shape, tokens.shape, 7)
    rows = attention.output_rows(tokens, tokens, tokens, positions=torch.tensor([0, 2]))
    assert rows.shape == (0, HEADS, 2, HEAD_DIM)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ["polynomial", "linear", "flash"])
def test_what_no_kernel_can_read_is_refused_before_it_is_added(name, padded):
    """Also on top of a state of no tokens, and where it is the new token that no kernel can read."""
    attention = create(name, impl="fused")
    prompt = torch.randn(1, HEADS, 5, HEAD_DIM, dtype=torch.float64)
    token, mask = [prompt[:, :, :1]] * 3, torch.ones(1, 1, dtype=torch.bool) if padded else None
    _, after = attention.prefill(prompt, prompt, prompt)
    for state, call in itertools.product((after, attention.init_state(1, dtype=torch.float64)), ("step", "prefill")):
        length = state.length
        given = (*token, state, mask) if call == "step" else (*token, mask, state)
        if name == "flash":  # whose kernel reads any
            getattr(attention, call)(*given)
            continue
        with pytest.raises(UnsupportedError, match=r"^impl=fused: .*(no kernel|kernels for a GPU)"):
            getattr(attention, call)(*given)
        assert state.length == length


VARIANTS = [
    pytest.param("softmax", {"scale": 0.7}, id="softmax"),
    pytest.param("flash", {}, id="flash"),
    pytest.param("polynomial", {"scale": 0.3, "bias": 5.0}, id="polynomial"),
    pytest.param("polynomial", {"degree": 8, "qk_layernorm": False, "bias": 0.0}, id="polynomial-no-norm"),
    pytest.param("flex_polynomial", {}, id="flex_polynomial"),
    pytest.param("polynomial_square", {"alpha": 0.5, "scale": 0.3}, id="polynomial_square"),
    pytest.param("v_mean", {}, id="v_mean"),
    pytest.param("linear", {"eps": 0.5}, id="linear"),
    pytest.param("performer", {"num_features": 16, "eps": 0.1, "block_size": 4}, id="performer"),
    pytest.param("performer", {"num_features": 5, "causal_algorithm": "cumulative_sum"}, id="performer-cumulative"),
    sketch("gaussian"),
    sketch("gaussian-p2", degree=2, scale=0.3, bias=5.0),
    sketch("gaussian-p8", degree=8, block_size=4, per_head=True),
    sketch("srht", sketch="srht", scale=0.5, bias=0.0),
    sketch("learned", sketch="learned"),
    sketch("local-b1", local=True, block_size=1),
    sketch("local-b4", local=True, block_size=4, scale=0.3, bias=5.0),
    sketch("local-b64", local=True, block_size=64),
    sketch("local-no-norm-p2", local=True, block_size=4, qk_layernorm=False, degree=2),
    sketch("local-srht-p8", local=True, block_size=4, sketch="srht", degree=8),
    sketch("local-learned-p8", local=True, block_size=5, sketch="learned", degree=8, per_head=True),
]
VARIANTS += [
    pytest.param("local", {"block_size": 4}, id="window"),
    pytest.param("local", {"block_size": 4, "sliding": True}, id="window-sliding"),
    pytest.param("local", {"block_size": 4, "weights": "polynomial"}, id="window-polynomial"),
    pytest.param(
        "local",
        {"block_size": 4, "weights": "polynomial", "sliding": True, "separate_norms": True, "bias": 0.5, "scale": 0.7},
        id="window-sliding-polynomial",
    ),
]
SUMS = [variant for variant in VARIANTS if variant.values[0] in ("v_mean", "linear", "performer", "polysketch")]
# One for each kind of state, where the rest of the mechanism does not matter.
STATES = [v for v in VARIANTS if v.id in ("softmax", "polynomial", "performer", "linear", "gaussian", "local-b4")]
every_state = pytest.mark.parametrize("name, given", STATES)
every_variant = pytest.mark.parametrize("name, given", VARIANTS)
every_sum = pytest.mark.parametrize("name, given", SUMS)


def make(name, given, **common):
    return moved(create(name, **given, **common).eval())


def tokens(length=LENGTH, **given):
    """Query, key and value; the values have a mean, so that a long average is not all noise."""
    query, key, value = draw(length, **given)
    return query, key, value + 0.5


def cut(inputs, *ends):
    """Some of the tokens."""
    return [x[:, :, slice(*ends)] for x in inputs]


def fresh(attention, batch=3):
    return attention.init_state(batch, dtype=torch.float64)


# --- It is the same function ------------------------------------------------------------------------


@every_variant
def test_steps_equal_the_causal_forward_at_every_position(name, given):
    attention, inputs = make(name, given), tokens()
    expected = attention(*inputs)
    assert_equal(decode(attention, inputs, fresh(attention)), expected)
    assert name == "flash" or attention.executed == ("reference", None)
    assert_equal(attention.attention_matrix(*inputs[:2]) @ inputs[2], expected)


def read_on(attention, inputs, lengths, padding=None):
    """The outputs of a prompt that comes in parts of these lengths, and the state after them."""
    outs, state, start = [], None, 0
    for length in lengths:
        part = slice(start, start + length)
        own = None if padding is None else padding[:, part]
        out, state = attention.prefill(*(x[:, :, part] for x in inputs), own, state)
        outs.append(out)
        start = part.stop
    return torch.cat(outs, 2), state


@every_variant
@pytest.mark.parametrize("lengths", [(4, 1, 5), (2, 13, 2)])
def test_a_prompt_may_come_in_parts(name, given, lengths):
    """Blocks of 4 and 5 begin, end and lie within these; steps and parts may alternate."""
    attention, inputs = make(name, given), tokens()
    out, state = read_on(attention, inputs, lengths)
    prompt = state.length
    assert prompt == sum(lengths)
    expected = attention(*inputs)
    assert_equal(out, expected[:, :, :prompt])
    stepped = decode(attention, [x[:, :, : prompt + 2] for x in inputs], state, prompt)
    rest, returned = attention.prefill(*(x[:, :, prompt + 2 :] for x in inputs), None, state)
    assert returned is state and state.length == LENGTH
    assert_equal(torch.cat([stepped, rest], 2), expected[:, :, prompt:])


@every_variant
@pytest.mark.parametrize("prompt", [0, 14])
def test_any_token_may_be_padding_and_steps_remember_it(name, given, prompt, monkeypatch):
    """On the left, in between, throughout a part, throughout a prompt; what is padded is large, to be seen if it is."""
    attention, (query, key, value) = make(name, given), tokens(batch=5)
    padding = torch.zeros(5, LENGTH, dtype=torch.bool)
    for item, hides in enumerate((slice(5), slice(6, 9), slice(3, 20, 2), slice(14), slice(9, 14))):
        padding[item, hides] = True
    hidden = padding[:, None, :, None]
    inputs = query, torch.where(hidden, 3 * key, key), torch.where(hidden, 100 + value, value)
    for module in (dense, states):  # a part is longer than what is computed at once
        monkeypatch.setattr(module, "ROWS", 4)
    out, state = read_on(attention, inputs, (4, 5, 5), padding) if prompt else (query[:, :, :0], fresh(attention, 5))
    out = torch.cat([out, decode(attention, inputs, state, prompt, padding)], 2)
    assert out.isfinite().all()
    seen = ~hidden.expand_as(out)
    assert_equal(out[seen], attention(*inputs, padding)[seen])


@every_state
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_parts_of_a_prompt_in_every_dtype(name, given, dtype):
    attention = make(name, given, dtype=dtype)
    inputs = tokens(2 * ROWS + 70, dtype=dtype)
    out, _ = read_on(attention, inputs, (9, ROWS + 11, ROWS + 50))
    assert out.dtype == dtype
    assert_equal(out, attention(*inputs), 1e-5 if dtype == torch.float32 else 0.02)


@pytest.mark.parametrize("takes_a_mask", [True, False])
def test_flash_reads_parts_by_its_kernel_or_token_by_token_if_that_takes_no_mask(takes_a_mask, monkeypatch):
    def ask(self, query, key, value, has_mask, is_causal):
        return Choice("flash", "takes no mask" if has_mask and not takes_a_mask else None)

    monkeypatch.setattr(Flash, "_ask", ask)
    attention, inputs = make("flash", {}), tokens()
    out, _ = read_on(attention, inputs, (4, 9, 10))
    assert attention.executed == ("fused", "flash")
    assert_equal(out, attention(*inputs))


@every_sum
def test_parts_take_few_operations_whatever_their_length(name, given):
    """Not token by token, which takes eleven times as many for 113 as for 10."""
    attention, inputs = make(name, given), tokens(ROWS)
    if given.get("local") and given["block_size"] < LENGTH:
        pytest.skip("as many as there are blocks")

    _, state = attention.prefill(*cut(inputs, 5))
    counts = []
    for part in ((5, 15), (15, ROWS)):
        with LargestTensor() as count:
            attention.prefill(*cut(inputs, *part), None, state)
        counts.append(count.calls)
    assert counts[1] < 4 * counts[0]


@pytest.mark.parametrize("eps", [1e-6, 0.1])
@pytest.mark.parametrize("rising", [True, False])
def test_performer_keeps_its_scale_when_keys_differ_by_hundreds_of_orders(eps, rising):
    """Norms from 1 to 1000: exp(-|k|^2 / 2) alone would be 0 or, relative to another key's, infinite."""
    attention = make("performer", {"num_features": 16, "eps": eps}, dtype=torch.float32)
    query, key, value = tokens(dtype=torch.float32)
    norms = torch.logspace(0, 3, LENGTH)[:, None]
    norms = norms if rising else norms.flip(0)
    inputs = query, key * norms, value
    out = decode(attention, inputs, attention.init_state(3))
    assert out.isfinite().all()
    in_parts, _ = read_on(attention, inputs, (3, 9, LENGTH - 12))
    assert_equal(in_parts, out, 1e-4)
    exact = copy.deepcopy(attention).double()
    # A score of 1e6 has an error of 0.1 in float32: only the order of the scales is the same.
    assert_equal(out, attention(*inputs), 1e-4)
    moderate = [x.double() for x in (query, key * norms.sqrt(), value)]
    assert_equal(decode(exact, moderate, fresh(exact)), exact(*moderate))


# --- What the state is -------------------------------------------------------------------------------


@every_sum
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_the_size_of_sums_is_known_and_never_grows(name, given, dtype):
    attention, inputs = make(name, given, dtype=dtype), tokens(dtype=dtype)
    state = attention.init_state(3, dtype=dtype)
    empty = state.num_bytes
    decode(attention, cut(inputs, 7), state)
    _, prefilled = attention.prefill(*inputs)
    assert state.num_bytes == prefilled.num_bytes == empty
    wide = 8 if dtype == torch.float64 else 4
    r = attention.num_features
    width = r * (r + 1) // 2 if name == "polysketch" else r
    expected = 3 * HEADS * (width * (HEAD_DIM + 1) + (name == "performer")) * wide
    if given.get("local"):
        expected += 3 * given["block_size"] * (HEADS * (2 * HEAD_DIM + r) * dtype.itemsize + 1)
    assert empty == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_cache_holds_keys_and_values_in_their_dtype_and_doubles_up_to_the_longest_sequence(dtype):
    attention, inputs = make("softmax", {}, dtype=dtype, max_seq_len=LENGTH), tokens(dtype=dtype)
    state, sizes = attention.init_state(3, dtype=dtype), []
    for position in range(LENGTH):
        attention.step(*cut(inputs, position, position + 1), state)
        sizes.append(state.num_bytes)
    per_position = 3 * (HEADS * 2 * HEAD_DIM * dtype.itemsize + 1)
    capacities = [1, 2, 4, 4, 8, 8, 8, 8, *8 * [16], *7 * [LENGTH]]
    assert sizes == [capacity * per_position for capacity in capacities]
    assert attention.prefill(*inputs)[1].num_bytes == LENGTH * per_position


@pytest.mark.parametrize(
    "name, given",
    [v for v in SUMS if v.id in ("linear", "performer", "gaussian", "local-b64")],
)
def test_no_drift_in_bfloat16_over_many_steps(name, given):
    """Inputs and outputs have 8 bits; a sum of 400 terms that had no more would stop growing at 256."""
    rounded, inputs = make(name, given, dtype=torch.bfloat16), tokens(400, batch=1, dtype=torch.bfloat16)
    exact = copy.deepcopy(rounded).double()
    out = decode(rounded, inputs, rounded.init_state(1, dtype=torch.bfloat16))
    expected = exact(*(x.double() for x in inputs))
    error, scale = (torch.linalg.vector_norm(x, dim=(0, 1, 3)) for x in (out.double() - expected, expected))
    error = error / scale
    # Half a unit in the last of 8 bits is 2^-9 at most, and the output is rounded in any case.
    assert error[100:200].mean() < 2**-8 and error[-100:].mean() < 2**-8


@pytest.mark.parametrize("local", [False, True])
def test_a_long_prompt_never_has_all_its_tensored_features_in_memory(local):
    length, r = 2048, 16
    attention = make("polysketch", {"sketch_size": r, "local": local, "block_size": 256}, dtype=torch.float32)
    inputs = [x.float() for x in tokens(length, batch=1)]
    with LargestTensor() as largest, torch.no_grad():
        attention.prefill(*inputs)
    assert 0 < largest.entries <= HEADS * length * r * r // 4


# --- What it must not depend on ----------------------------------------------------------------------


@every_state
@pytest.mark.parametrize("order", [[2, 0], [1, 1, 0, 2, 2], []])
def test_sequences_may_be_chosen_and_repeated(name, given, order):
    """With what they have of their own, padding and scale among it."""
    attention, inputs, prompt = make(name, given), tokens(), 9
    padding = torch.zeros(3, prompt, dtype=torch.bool)
    padding[0, :4] = padding[2, :1] = True
    inputs[1][1] *= 3
    _, state = attention.prefill(*cut(inputs, prompt), padding)
    expected = decode(attention, inputs, copy.deepcopy(state), prompt)
    chosen = torch.tensor(order, dtype=torch.int64)
    state.select(chosen)
    assert (state.batch_size, state.length) == (len(order), prompt)
    if order:
        assert_equal(decode(attention, [x[chosen] for x in inputs], state, prompt), expected[chosen])


def tensors(part):
    return [x for x in getattr(part, "__dict__", {}).values() if isinstance(x, torch.Tensor)]


@every_state
def test_a_step_has_no_gradient_and_a_prompt_has(name, given):
    attention = make(name, given)
    inputs = [x.requires_grad_() for x in tokens()]
    out, state = attention.prefill(*cut(inputs, 9))
    assert out.requires_grad
    stepped, returned = attention.step(*(x[:, :, 9:10] for x in inputs), state)
    assert returned is state and not stepped.requires_grad
    assert not any(x.requires_grad for part in (state, *vars(state).values()) for x in tensors(part))
    assert torch.autograd.grad(out.sum(), inputs[2])[0].isfinite().all()


@every_state
def test_a_state_made_in_inference_mode_can_be_used_outside_and_back(name, given):
    attention, inputs = make(name, given), tokens()
    expected = attention(*inputs)
    with torch.inference_mode():
        _, state = attention.prefill(*cut(inputs, 4))
        nothing = fresh(attention)
        decode(attention, cut(inputs, 7), state, 4)
    assert_equal(decode(attention, inputs, state, 7), expected[:, :, 7:])
    assert_equal(decode(attention, inputs, nothing), expected)


# --- What it refuses ---------------------------------------------------------------------------------


def attempts(attention):
    """Each public way in."""
    one = tokens(1)
    yield lambda: attention.init_state(3)
    yield lambda: attention.prefill(*one)
    yield lambda: attention.step(*one, None)


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_decode_says_why(name):
    info = attention_zoo.info(name)
    if info.package is not None:
        pytest.skip("its own module tests it where the package is installed")
    settings = {"head_dim": HEAD_DIM, "num_heads": HEADS, "max_seq_len": LENGTH}
    attention = attention_zoo.create(name, **settings)
    reason = f"causal=false: {name} decodes only with causal=true" if info.decode else f"{name} cannot decode"
    for attempt in attempts(attention):
        with pytest.raises(UnsupportedError, match=reason) as error:
            attempt()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["softmax", "flash", "polynomial"])
def test_dropout_in_training_mode_is_refused(name):
    attention = make(name, {"dropout": 0.5}).train()
    for attempt in attempts(attention):
        with pytest.raises(UnsupportedError, match=rf"dropout=0\.5: {name} decodes in evaluation mode"):
            attempt()
    inputs = tokens()
    attention.eval()
    assert_equal(decode(attention, inputs, fresh(attention)), attention(*inputs))


def test_a_state_of_another_mechanism_or_seed_is_refused():
    begun, token = make("performer", {}), tokens(1)
    state = fresh(begun)
    for other in (make("linear", {}), make("performer", {}, seed=1)):
        with pytest.raises(ValueError, match=r"^state\.made_by=\('performer', 0\): must be this instance's"):
            other.step(*token, state)
    begun.step(*token, state)
    begun.resample(1)
    for call in (lambda: begun.step(*token, state), lambda: begun.prefill(*token, state=state)):
        with pytest.raises(ValueError, match=r"^state\.made_by="):
            call()
    assert state.length == 1
    begun.step(*token, fresh(begun))


@pytest.mark.parametrize("name, given", [v for v in STATES if v.id in ("softmax", "local-b4")])
@pytest.mark.parametrize("stepped_before", [False, True])
@pytest.mark.parametrize("length", [1, 4], ids=["step", "prefill"])
def test_what_does_not_fit_the_state_is_refused_and_not_absorbed(name, given, length, stepped_before):
    """A token or a part of a prompt, too long a sequence among it."""
    attention, inputs = make(name, given, max_seq_len=LENGTH), tokens(LENGTH)
    _, state = attention.prefill(*cut(inputs, LENGTH - length))
    if stepped_before:
        attention.step(*tokens(1), fresh(attention))

    def call(query, key, value, mask=None):
        if length == 1:
            return attention.step(query, key, value, state, mask)
        return attention.prefill(query, key, value, mask, state)

    query, key, value = fits = cut(inputs, LENGTH - length, None)
    cases = [
        (tokens(length, batch=2), r"^query\.shape=.*: must be of the state's batch size 3"),
        (tokens(length, dtype=torch.float32), r"^query\.dtype=torch\.float32: must be the state's torch\.float64"),
        ((query, key[..., :-1], value), r"^key\.shape="),
        ((query, key, value[:, :1]), r"^value\.shape="),
        ((*fits, torch.zeros(3, LENGTH, dtype=torch.bool)), r"^key_padding_mask\.shape="),
    ]
    if length == 1:
        cases.append((tokens(2), r"^query\.shape=.*: must be one token, \(3, 2, 1, 8\)"))
    for bad, message in cases:
        with pytest.raises(ValueError, match=message):
            call(*bad)
    assert state.length == LENGTH - length
    assert_equal(call(*fits)[0], attention(*inputs)[:, :, -length:])
    with pytest.raises(ValueError, match=rf"^seq_len={LENGTH + length}: must be between 1 and max_seq_len={LENGTH}$"):
        call(*fits)
    assert state.length == LENGTH
    with pytest.raises(ValueError, match=r"^batch_size=0: must be"):
        attention.init_state(0)
    with pytest.raises(ValueError, match=r"^state=None: must be from prefill or init_state$"):
        attention.step(*tokens(1), None)


@pytest.mark.parametrize("order", [[2, 0, 1], None], ids=["select", "copy"])
@pytest.mark.parametrize("name", ["linear", "performer", "polysketch", "local", "identity", "v_mean", "softmax"])
def test_what_is_reordered_or_copied_in_inference_mode_goes_on(name, order):
    """As beams do; each step writes into the state."""
    attention, prompt = create(name), draw()
    given = [x[order] if order else x for x in prompt]
    with torch.inference_mode():
        _, state = attention.prefill(*(x[:, :, :9] for x in prompt))
        if order:
            state.select(torch.tensor(order))
        else:
            state = copy.deepcopy(state)
        for at in range(9, 12):
            out, state = attention.step(*(x[:, :, at : at + 1] for x in given), state)
        assert_equal(out, attention(*(x[:, :, :12] for x in given))[:, :, -1:])


def test_what_is_exported_leaves_nothing_behind():
    """The exporter computes with tensors that have no numbers: whatever is kept must not be one of them."""

    class Steps(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention_zoo.create("polysketch", head_dim=8, num_heads=2, sketch_size=4, causal=True)

        def forward(self, query, key, value):
            return self.attention.prefill(query, key, value)[0]

    steps, given = Steps().double().eval(), [torch.randn(1, 2, 5, 8, dtype=torch.float64) for _ in range(3)]
    states._pairs.cache_clear()
    torch.export.export(steps, tuple(given))
    (out, state), whole = steps.attention.prefill(*(x[:, :, :4] for x in given)), steps.attention(*given)
    assert_equal(out, whole[:, :, :4])
    assert_equal(steps.attention.step(*(x[:, :, 4:] for x in given), state)[0], whole[:, :, 4:])


def test_indices_that_are_kept_grow_with_no_batch_or_prompt():
    attention = attention_zoo.create("polysketch", head_dim=8, num_heads=4, sketch_size=8, causal=True)
    states._pairs.cache_clear()
    for length in (37, 38):
        attention.prefill(*(torch.randn(16, 4, length, 8) for _ in range(3)))
    assert states._pairs.cache_info().currsize == 1
    first, second, roots = states._pairs(8, states.VECTORS, torch.device("cpu"), torch.float32)
    assert states._pairs.cache_info().currsize == 1, "the one that is kept"
    assert len(first) == len(second) == states.VECTORS * len(roots)
