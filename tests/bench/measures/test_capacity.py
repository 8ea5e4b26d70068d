"""The capacity measure against a naive loop in float64, and where the number of recalled pairs is known."""

import copy

import pytest
import torch
from cells import config, measured, said

import attention_zoo
from attention_zoo import UnsupportedError
from attention_zoo.feature_map import FeatureMapAttention
from attention_zoo.info import AttentionInfo
from attention_zoo.v_mean import VMean
from bench.common.errors import IncorrectError, NonFiniteError
from bench.common.mechanism import build_attention
from bench.measures import capacity
from bench.measures.capacity import doubled, drawn_keys, is_nearest, read, written
from bench.measures.context import CellContext

HEADS, HEAD_DIM = 2, 8


DECODING = [
    *((name, {}) for name in ("softmax", "flash", "polynomial", "flex_polynomial", "linear")),
    *((name, {}) for name in ("polynomial_square", "v_mean", "identity")),
    ("performer", {"num_features": 16}),
    *(("local", {"block_size": 5, **given}) for given in ({}, {"sliding": True}, {"weights": "polynomial"})),
    *(("polysketch", {"sketch_size": 4, "sketch": sketch}) for sketch in ("gaussian", "srht", "learned")),
    ("polysketch", {"sketch_size": 4, "degree": 2}),
    *(("polysketch", {"sketch_size": 4, "local": True, "block_size": 5, "sketch": s}) for s in ("gaussian", "learned")),
]


def create(name, given, head_dim=HEAD_DIM, **common):
    return attention_zoo.create(name, head_dim=head_dim, num_heads=HEADS, causal=True, **given, **common).eval()


def pairs(count, head_dim=HEAD_DIM, batch=2, kind="gaussian", scale=1.0):
    generator = torch.Generator().manual_seed(0)
    size = batch, HEADS, count, head_dim
    value = torch.randn(size, generator=generator, dtype=torch.float64)
    return drawn_keys(kind, size, generator) * scale, value / value.norm(dim=-1, keepdim=True)


def shares(attention, key, value):
    """The share of right answers when all pairs are read."""
    everything = torch.arange(key.shape[2])
    return is_nearest(read(attention, written(attention, key, value), key), value, everything).double().mean().item()


def test_every_mechanism_that_decodes_is_here():
    decoding = {name for name in attention_zoo.list_attentions() if attention_zoo.info(name).decode}
    assert {name for name, _ in DECODING} == decoding - {"xformers_memory_efficient"}  # which needs a GPU


# --- A naive loop: token by token, one query after the other, weights as the matrix of the mechanism has them ---------


def naive(attention, key, value):
    """What each pair's key reads as the next token, and whether the nearest value is its own.

    The matrix of the pairs and one token more has the weights of that row, which sum to S / (bias + S); with the
    token's own weight left out the others have their own denominator again.
    """
    count = key.shape[2]
    outputs, right = torch.zeros_like(key), torch.zeros(key.shape[:3], dtype=torch.bool)
    padding = torch.zeros(len(key), count + 1, dtype=torch.bool)
    padding[:, -1] = True
    for i in range(count):
        longer = torch.cat([key, key[:, :, i : i + 1]], 2)
        matrix = attention.attention_matrix(longer, longer, padding)
        outputs[:, :, i] = (matrix[:, :, -1:, :count] @ value)[:, :, 0]
        products = (value @ outputs[:, :, i, :, None])[..., 0]
        others = products.clone()
        others[..., i] = -torch.inf
        right[:, :, i] = outputs[:, :, i].any(-1) & (products[..., i] > others.amax(-1))
    return outputs, right


def stepped(attention, key, value):
    """The state after one step for each pair."""
    state = attention.init_state(len(key), dtype=torch.float64)
    for i in range(key.shape[2]):
        attention.step(*(x[:, :, i : i + 1] for x in (key, key, value)), state)
    return state


@pytest.mark.parametrize("name, given", DECODING)
@pytest.mark.parametrize("count", [7, 10])
@torch.no_grad()
def test_what_is_read_and_whether_it_is_right_are_those_of_a_naive_loop(name, given, count, monkeypatch):
    """Of blocks of 5 the last is full at 10 pairs. Copies of the state are made one by one, or side by side."""
    attention, (key, value) = create(name, given).double(), pairs(count)
    outputs, right = naive(attention, key, value)
    whole = written(attention, key, value)
    for state, at_once in ((whole, 3 * whole.num_bytes), (stepped(attention, key, value), 1)):
        monkeypatch.setattr(capacity, "FORKED_BYTES", at_once)
        before = copy.deepcopy(state)
        found = read(attention, state, key)
        torch.testing.assert_close(found, outputs, rtol=1e-9, atol=1e-12)
        if name != "v_mean":  # whose products are ties
            assert torch.equal(is_nearest(found, value, torch.arange(count)), right)
        # Reading leaves the state as it was.
        torch.testing.assert_close(read(attention, state, key[:, :, :1]), outputs[:, :, :1], rtol=1e-9, atol=1e-12)
        assert state.length == before.length and state.num_bytes == before.num_bytes


# --- Where it is known what is recalled ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax", "flash"])
def test_softmax_recalls_all_orthonormal_keys_of_a_large_scale_exactly_and_few_of_a_small_one(name):
    key, value = pairs(32, 32, kind="orthonormal", scale=8.0)
    attention = create(name, {}, 32)
    torch.testing.assert_close(read(attention, written(attention, key, value), key), value)
    assert shares(attention, key, value) == 1
    assert shares(attention, key / 80, value) < 0.9


class Sum(FeatureMapAttention):
    """The sum of the values by the products with features, nothing divided: the first r numbers are the features."""

    info = AttentionInfo(
        name="sum", paper="", causal=True, padding=True, cross=False, complexity="", decode=True, random=False
    )

    def __init__(self, features, **common):
        super().__init__(**common)
        self.num_features = features

    def features(self, x):
        return x[..., : self.num_features]

    def _new_state(self, batch_size, device, dtype):
        state = super()._new_state(batch_size, device, dtype)
        state._divided = lambda summed, bias: summed[..., :-1].flatten(-2).to(state.dtype)
        return state


@pytest.mark.parametrize("features", [1, 5, 16])
def test_an_unnormalised_sum_over_r_orthonormal_features_recalls_r_pairs_exactly(features):
    attention = Sum(features, head_dim=16, num_heads=HEADS, causal=True)
    key = torch.eye(16, dtype=torch.float64).expand(2, HEADS, -1, -1)
    _, value = pairs(16, 16)
    outputs = read(attention, written(attention, key, value), key)
    torch.testing.assert_close(outputs[:, :, :features], value[:, :, :features])
    assert not outputs[:, :, features:].any()
    assert shares(attention, key, value) == features / 16


def test_linear_attention_of_unit_keys_is_its_closed_form():
    """`<phi(s e_i), phi(s e_j)> = h + 2 s + s^2 [i = j]`: a mean of all values with little of the own one."""
    attention, scale, (_, value) = create("linear", {"eps": 0.0}).double(), 3.0, pairs(HEAD_DIM)
    key = scale * torch.eye(HEAD_DIM, dtype=torch.float64).expand(2, HEADS, -1, -1)
    common, own = HEAD_DIM + 2 * scale, scale**2
    expected = (common * value.sum(2, keepdim=True) + own * value) / (HEAD_DIM * common + own)
    torch.testing.assert_close(read(attention, written(attention, key, value), key), expected)


def found(name="v_mean", bench=None, **changes):
    attention = {"name": name, **changes.pop("attention", {})}
    cell = {"causal": True, "repeats": 3, "batch_size": 1, "attention": attention, **changes}
    return measured(name, {"name": "capacity", **(bench or {})}, **cell)


def test_capacities_that_are_known_and_the_state_of_one_head_there():
    orthonormal = {"keys": "orthonormal"}
    identity, v_mean = found("identity"), found("v_mean", batch_size=2)
    softmax = found("softmax", orthonormal | {"key_scale": 4.0})
    assert identity["capacity"] == [0, 0, 0] and v_mean["capacity"] == [1, 1, 1]
    assert softmax["capacity"] == [8, 8, 8] and softmax["most"] == 8
    # Keys and values in four bytes, and a head's half of which of the tokens are padding.
    assert softmax["state_bytes"] == [8 * (2 * 8 * 4 + 0.5)] * 3
    assert v_mean["state_bytes"] == [9 * 4] * 3 and identity["state_bytes"] == [(2 * 8 + 0.5) * 4 - 1.5] * 3
    assert found("performer", attention={"num_features": 16})["features"] == 16
    # Squared products of orthonormal keys: nothing but the own value is left.
    squares = {"attention": {"degree": 2, "qk_layernorm": False}}
    assert found("polysketch", orthonormal, **squares)["capacity"] == [8, 8, 8]
    # The token that reads is the block's last: with as many pairs as a block has it would begin the next one.
    exact = {"head_dim": 32, "seq_len": 100, "attention": {"block_size": 24, "scale": 1.0}}
    assert found("local", **exact)["capacity"] == [23, 23, 23]
    exact["attention"]["sliding"] = True  # 23 of 25 are 92 %, of 26 they are 88 %
    assert found("local", **exact)["capacity"] == [25, 25, 25]


def test_orthonormal_keys_are_that_and_turn_every_way():
    key = drawn_keys("orthonormal", (1, 400, 4, 4), torch.Generator().manual_seed(0))
    torch.testing.assert_close(key @ key.mT, (4 * torch.eye(4, dtype=torch.float64)).expand(1, 400, -1, -1))
    # Of a Haar matrix every entry has mean 0 and variance 1 / h: without R's signs the first has a negative mean.
    assert key.mean(1).abs().max() < 5 / 400**0.5
    assert (key.square().mean(1) - 1).abs().max() < 5 * 2**0.5 / 400**0.5


def test_nearest_is_strict_and_nothing_is_near_zero():
    value = torch.eye(3)[None, None]
    output = torch.tensor([[0.1, 0.0, -1.0], [0.0, 0.0, 0.0], [1.0, 0.2, 1.0], [-3.0, -2.0, -1.0]])[None, None]
    assert is_nearest(output, value, torch.tensor([0, 0, 2, 2])).tolist() == [[[True, False, False, True]]]
    assert not is_nearest(output[:, :, 1:2], value[:, :, :1], torch.tensor([0])).any()


# --- Draws -----------------------------------------------------------------------------------------------------------


def test_draws_differ_are_repeated_and_are_no_other_seeds():
    cell = {"attention": {"num_features": 8}, "seq_len": 256, "repeats": 4}
    first, again, other = (found("performer", seed=seed, **cell)["right"] for seed in (0, 0, 1))
    assert first == again != other
    assert len(set(first["2"])) > 1 and [*first] == [str(n) for n in doubled(256)[: len(first)]]
    assert doubled(1) == [1] and doubled(5) == [1, 2, 4, 5] and doubled(8) == [1, 2, 4, 8]


def test_every_draw_has_its_own_pairs_and_features(monkeypatch):
    context = CellContext(config("performer", {"name": "capacity"}, causal=True, repeats=2, seed=3), None)
    attention = build_attention(context.config)
    drawn = [capacity.Capacity()._drawn(context, attention, number, 16) for number in (0, 1)]
    assert [draw.seed for draw in drawn] == [6, 7]
    # Features of the seed with which the keys were drawn would be made of these keys.
    keys = drawn_keys("gaussian", drawn[0].key.shape, torch.Generator().manual_seed(6))
    assert not torch.isclose(drawn[0].key.double(), keys).any()
    assert not torch.equal(drawn[0].key, drawn[1].key) and not torch.equal(drawn[0].value, drawn[1].value)
    states = [draw._written(4) for draw in (drawn[0], drawn[1], drawn[0])]
    assert torch.equal(states[0].sums, states[2].sums) and attention.seed == 6
    trained = capacity.Capacity()
    context.trained.add("performer")
    assert trained._drawn(context, attention, 1, 16).seed is None


# --- What is refused -------------------------------------------------------------------------------------------------


class Wrong(VMean):
    """Whose steps are not what the forward pass says, or are not finite where pairs are read."""

    def __init__(self, factor, of_padding=1.0):
        super().__init__(head_dim=8, num_heads=2, causal=True, max_seq_len=65)
        self.factor, self.of_padding = factor, of_padding

    def _decode_step(self, state, query, key, value, padding):
        out = super()._decode_step(state, query, key, value, padding)
        return out * (self.factor if padding is None else self.of_padding)


@pytest.mark.parametrize(
    "attention, error, reason",
    [
        (Wrong(1.01), IncorrectError, r"^v_mean, steps: output: relative error 1\.0e-02"),
        (Wrong(1.0, float("nan")), NonFiniteError, "what is read of 1 pairs"),
    ],
)
def test_steps_that_are_wrong_have_no_capacity(attention, error, reason):
    context = CellContext(config("v_mean", {"name": "capacity"}, causal=True), None)
    context.attention = lambda **changes: attention
    with pytest.raises(error, match=reason):
        capacity.Capacity().measure(context)


def test_what_cannot_be_measured_is_unsupported():
    with pytest.raises(UnsupportedError, match=r"^seq_len=3: must be at least 4$"):
        found(seq_len=3)
    assert found(seq_len=4)["most"] == 4


def test_numbers():
    given = {"right": {"1": [1.0, 1.0, 1.0], "2": [1.0, 0.5, 0.0]}, "capacity": [2, 1, 3], "state_bytes": [512.0] * 3}
    numbers = said("capacity", {**given, "most": 3, "features": None})
    assert numbers["capacity"].value == 2 and numbers["capacity"].low < 1 < 3 < numbers["capacity"].high
    assert numbers["state_bytes"].text == "0.5 KiB" and numbers["state_bytes"].unit == "bytes"
    assert numbers["capacity_per_byte"].value == 2 / 512 and numbers["capacity_per_byte"].text == "4 /KiB"
    assert numbers["reached"].value == pytest.approx(1 / 3)
    assert numbers["right_at_2"].value == 0.5 and numbers["right_at_2"].samples == 3
    (curve,) = capacity.Capacity.curves(given).values()
    assert curve == [(1, 1.0), (2, 0.5)]


def test_the_largest_seed_draws_other_pairs_and_features():
    right = [
        measured("performer", seq_len=32, causal=True, seed=seed, bench={"name": "capacity"})["right"]
        for seed in (0, 2**63 - 1)
    ]
    assert right[0] != right[1]
