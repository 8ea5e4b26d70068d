"""Steps of decoding by kernels are the rows of the causal forward, one launch each; interpreted where no GPU is."""

import copy

import pytest
import torch
from closeness import assert_within
from operations import HAS_GPU, Called
from small import decode, moved

import attention_zoo
from attention_zoo import UnsupportedError
from attention_zoo.ops import launching
from attention_zoo.ops.decoding.states import FeatureSums

steps = pytest.importorskip("attention_zoo.ops.decoding.triton", exc_type=ImportError)

HEADS, BATCH, LENGTH, PROMPT = 2, 2, 9, 6


def case(id, name, head_dim=32, **given):
    return pytest.param(name, {"head_dim": head_dim, **given}, id=id)


LINEAR = case("linear", "linear")
PERFORMER = case("performer", "performer", num_features=16)
GAUSSIAN = case("gaussian", "polysketch", sketch_size=16)
GIVEN = case("learned", "polysketch", sketch="learned", sketch_size=16)
LOCAL = case("local", "polysketch", sketch_size=16, local=True, block_size=4)
CASES = [
    LINEAR,
    case("linear-h128-eps", "linear", 128, eps=0.5),
    PERFORMER,
    case("performer-m130-h64", "performer", 64, num_features=130, scale=0.3),
    case("performer-h128-m256", "performer", 128, num_features=256),
    GAUSSIAN,
    case("gaussian-r5-h24", "polysketch", 24, sketch_size=5),
    case("gaussian-scale-bias", "polysketch", sketch_size=8, scale=0.3, bias=5.0),
    case("gaussian-no-norm-no-bias", "polysketch", sketch_size=8, qk_layernorm=False, bias=0.0),
    case("gaussian-per-head", "polysketch", sketch_size=8, per_head=True),
    case("srht", "polysketch", sketch_size=16, sketch="srht"),
    case("p8", "polysketch", sketch_size=16, degree=8),
    GIVEN,
    LOCAL,
    case("local-b64-h64-r32", "polysketch", 64, sketch_size=32, local=True, block_size=64),
    case("local-p2", "polysketch", degree=2, local=True, block_size=5, scale=0.3),
    case("local-h24-r5-p8", "polysketch", 24, sketch_size=5, degree=8, local=True, block_size=3, bias=5.0),
    case("local-learned", "polysketch", sketch="learned", sketch_size=8, local=True, block_size=1, per_head=True),
]
every_case = pytest.mark.parametrize("name, given", CASES)
# One for each kernel.
KERNELS = [LINEAR, PERFORMER, GAUSSIAN, GIVEN, LOCAL]
every_kernel = pytest.mark.parametrize("name, given", KERNELS)


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """Kernels are chosen and their results are poisoned before they are written."""
    monkeypatch.setattr(launching, "on_gpu", lambda x: True)
    monkeypatch.setattr(steps, "_like", poisoned)
    return torch.device("cuda" if HAS_GPU else "cpu")


def poisoned(x):
    return torch.full(x.shape, torch.nan, dtype=x.dtype, device=x.device)


def make(name, given, device, dtype=torch.float32, **common):
    """By kernels, by the reference, and the reference in float64: three of the same weights."""
    attention = attention_zoo.create(name, num_heads=HEADS, causal=True, dtype=dtype, **given, **common).eval()
    moved(attention).to(device)
    reference = copy.deepcopy(attention)
    reference.impl = "reference"
    return attention, reference, copy.deepcopy(reference).double()


def tokens(head_dim, device, length=LENGTH, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(3, BATCH, HEADS, length, head_dim, generator=generator)
    return [x.to(device, dtype) for x in (*drawn[:2], drawn[2] + 0.5)]


def error(actual, expected):
    return (torch.linalg.vector_norm(actual - expected) / torch.linalg.vector_norm(expected)).item()


def assert_rows(out, reference, exact, inputs, padding=None, start=0, tolerance=1e-5):
    """The rows from `start` on of the forward in float64; where sums cancel, no further from it than plain steps.

    How far these are depends on luck, too: the worst of inputs that hardly differ is taken.
    """

    def expected(inputs):
        with torch.no_grad():
            return exact(*(x.double() for x in inputs), padding)[:, :, start:]

    def error_of_plain_steps(inputs):
        state = reference.init_state(BATCH, device=out.device, dtype=out.dtype)
        if start:
            hidden = None if padding is None else padding[:, :start]
            _, state = reference.prefill(*(x[:, :, :start] for x in inputs), hidden)
        return error(decode(reference, inputs, state, start), expected(inputs))

    found = error(out, expected(inputs))
    if found > tolerance / 4:
        plain = max(error_of_plain_steps([x * factor for x in inputs]) for factor in (1, 1.01, 1.02, 1.03))
        # Within bounds: what both do wrong is no rounding.
        tolerance += min(8 * plain, 30 * tolerance)
    assert_within(found, tolerance)


# --- It is the same function ------------------------------------------------------------------------


@every_case
def test_steps_after_a_padded_prompt_are_the_rows_of_the_forward(name, given, device):
    attention, reference, exact = make(name, given, device)
    inputs = tokens(given["head_dim"], device)
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool, device=device)
    padding[0, :2], padding[1, 1:PROMPT:2] = True, True
    inputs[1][0, :, :2] *= 3
    inputs[2][0, :, :2] += 100
    _, state = reference.prefill(*(x[:, :, :PROMPT] for x in inputs), padding[:, :PROMPT])
    out = decode(attention, inputs, state, PROMPT)
    assert attention.executed == ("fused", "triton")
    assert state.length == LENGTH
    assert_rows(out, reference, exact, inputs, padding, PROMPT)


@pytest.mark.parametrize("norms", [(0, 1.5), (1.5, 0)], ids=["rising", "falling"])
def test_scales_that_grow_and_shrink_by_many_orders(norms, device):
    attention, reference, exact = make("performer", {"head_dim": 32, "num_features": 16, "eps": 0.1}, device)
    query, key, value = tokens(32, device)
    inputs = query, key * torch.logspace(*norms, LENGTH, device=device)[:, None], value
    out = decode(attention, inputs, attention.init_state(BATCH, device=device))
    assert_rows(out, reference, exact, inputs)


def test_a_block_of_several_tiles(device):
    given = {"head_dim": 32, "sketch_size": 8, "local": True, "block_size": 129}
    attention, reference, exact = make("polysketch", given, device)
    inputs = tokens(32, device, length=130)
    _, state = reference.prefill(*(x[:, :, :127] for x in inputs))
    assert_rows(decode(attention, inputs, state, 127), reference, exact, inputs, start=127)


@every_kernel
@pytest.mark.parametrize("by_prompt", [False, True], ids=["steps", "prompt"])
def test_a_state_that_a_reference_goes_on_with(name, given, device, by_prompt):
    """Its parts, normalisers and scales are those that plain PyTorch reads."""
    attention, reference, exact = make(name, given, device)
    # As after a convolution over tokens: any layout will do.
    inputs = [x.mT.contiguous().mT for x in tokens(given["head_dim"], device)]
    state = attention.init_state(BATCH, device=device)
    first, rest = decode(attention, [x[:, :, :PROMPT] for x in inputs], state), [x[:, :, PROMPT:] for x in inputs]
    last = reference.prefill(*rest, None, state)[0] if by_prompt else decode(reference, rest, state)
    assert reference.executed == ("reference", None)
    assert_rows(torch.cat([first, last], 2), reference, exact, inputs)


@every_kernel
def test_tokens_of_16_bits_are_summed_in_32(name, given, device):
    attention, reference, exact = make(name, given, device, torch.bfloat16)
    inputs = tokens(given["head_dim"], device, dtype=torch.bfloat16)
    state = attention.init_state(BATCH, device=device, dtype=torch.bfloat16)
    out = decode(attention, inputs, state)
    assert out.dtype == torch.bfloat16
    assert_rows(out, reference, exact, inputs, tolerance=1e-2)


# --- One launch -------------------------------------------------------------------------------------


@every_kernel
def test_a_step_is_one_launch_and_nothing_else_where_it_makes_the_features(name, given, device, monkeypatch):
    attention, *_ = make(name, given, device)
    inputs, state = tokens(given["head_dim"], device, length=1), attention.init_state(BATCH, device=device)
    seen = []
    monkeypatch.setattr(steps, "_launch", lambda kernel, *_, **__: seen.append(kernel))
    monkeypatch.setattr(steps, "_like", lambda x: x)
    with Called() as called, torch.no_grad():
        attention.step(*inputs, state)
    others = [function.overloadpacket.__name__ for function, _ in called.calls if not function.is_view]
    assert len(seen) == 1 and not {"bmm", "baddbmm_", "addcmul_", "index_select"} & set(others)
    assert others == [] or given in (GIVEN.values[1], LOCAL.values[1])


OPERATORS = {"featured_step": LINEAR, "exponential_step": PERFORMER, "sketched_step": GAUSSIAN, "block_read": LOCAL}


@pytest.mark.parametrize("operator", OPERATORS)
def test_compilers_see_an_operator_and_what_it_mutates(operator, device, monkeypatch):
    (name, given), step = OPERATORS[operator].values, getattr(steps, f"_{operator}")
    attention, *_ = make(name, given, device)
    inputs = tokens(given["head_dim"], device, length=2)
    state = attention.init_state(BATCH, device=device)
    attention.step(*(x[:, :, :1] for x in inputs), state)
    calls = []
    monkeypatch.setattr(steps, f"_{operator}", lambda *arguments: calls.append(arguments) or arguments[1])
    attention.step(*(x[:, :, 1:] for x in inputs), state)
    plain, compiled = copy.deepcopy(calls), copy.deepcopy(calls)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(getattr(torch.ops.attention_zoo, operator).default, calls[0], test_utils=tests)
    with torch.no_grad():
        out = torch.compile(lambda *arguments: step(*arguments) + 0, fullgraph=True, backend="aot_eager")(*compiled[0])
    assert torch.equal(out, step(*plain[0]))
    for one, other in zip(plain[0], compiled[0], strict=True):
        assert not isinstance(one, torch.Tensor) or torch.equal(one, other)


# --- What is chosen, and what is refused --------------------------------------------------------------


def test_a_cpu_has_one_part_and_no_kernel(monkeypatch):
    monkeypatch.setattr(launching, "on_gpu", lambda x: False)
    assert FeatureSums(2, HEADS, 32, 64, torch.device("cpu"), torch.float32, degree=2, split=True).rows == 64
    inputs = tokens(32, "cpu", length=1)
    for name in ("linear", "performer", "polysketch"):
        attention, *_ = make(name, {"head_dim": 32}, "cpu")
        attention.step(*inputs, attention.init_state(BATCH))
        assert attention.executed == ("reference", None)
        attention.impl = "fused"
        with pytest.raises(UnsupportedError, match="impl=fused: its steps are kernels for a GPU, the input is on cpu"):
            attention.step(*inputs, attention.init_state(BATCH))


@pytest.mark.parametrize(
    "name, given, dtype, reason",
    [
        ("linear", {"head_dim": 20}, torch.float32, "a head_dim that is a multiple of 8, the input has 20"),
        ("polysketch", {"head_dim": 32}, torch.float64, "the kernels take .*, the input is torch.float64"),
        ("performer", {"head_dim": 32, "num_features": 1025}, torch.float32, "at most 1024 features, there are 1025"),
    ],
)
def test_what_no_kernel_takes_goes_to_the_reference(name, given, dtype, reason, device):
    attention, reference, exact = make(name, given, device, dtype)
    inputs = tokens(given["head_dim"], device, length=3, dtype=dtype)
    out = decode(attention, inputs, attention.init_state(BATCH, device=device, dtype=dtype))
    assert attention.executed == ("reference", None)
    assert_rows(out, reference, exact, inputs)
    attention.impl = "fused"
    with pytest.raises(UnsupportedError, match=reason) as error:
        decode(attention, inputs, attention.init_state(BATCH, device=device, dtype=dtype))
    assert "\n" not in str(error.value)


def test_a_sketch_too_large_for_registers_is_made_outside(device, monkeypatch):
    attention, reference, exact = make("polysketch", {"head_dim": 32, "sketch_size": 8}, device)
    monkeypatch.setattr("attention_zoo.ops.decoding.tiles.LARGEST_MATRIX", 32 * 8 - 1)
    monkeypatch.setattr(steps, "step_sketched", None)
    inputs = tokens(32, device, length=3)
    out = decode(attention, inputs, attention.init_state(BATCH, device=device))
    assert_rows(out, reference, exact, inputs)


# --- On a GPU ---------------------------------------------------------------------------------------


SUMS = [pytest.param(*x.values, id=x.id, marks=pytest.mark.gpu) for x in CASES if "local" not in x.values[1]]


@pytest.mark.parametrize("name, given", SUMS)
def test_a_captured_step_goes_on_when_it_is_replayed(name, given, device, monkeypatch):
    attention, reference, exact = make(name, given, device)
    monkeypatch.undo()
    inputs = tokens(given["head_dim"], device)
    state = attention.init_state(BATCH, device=device)
    attention.step(*(x[:, :, :1] for x in inputs), state)
    token = [x[:, :, 1:2].clone() for x in inputs]
    graph, outs = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        out, _ = attention.step(*token, state)
    for at in range(1, LENGTH):
        for x, all_of_them in zip(token, inputs, strict=True):
            x.copy_(all_of_them[:, :, at : at + 1])
        graph.replay()
        outs.append(out.clone())
    assert_rows(torch.cat(outs, 2), reference, exact, inputs, start=1)
