"""The kernels of feature products against all n x n weights in float64: interpreted, and compiled on a GPU."""

import functools

import operations
import pytest
import torch
from closeness import assert_near, assert_within, of_float32
from operations import DEVICE, HAS_GPU, use_tiles
from operations import feature_product as by_formula

from attention_zoo.ops.feature_product import launches, tiles, triton
from attention_zoo.ops.feature_product.chunks import SCAN_BLOCK, Chunks
from attention_zoo.ops.feature_product.reference import LocalInputs

SQUARES = {"degree": 2, "bias": 1.0}
FEATURES = {"degree": 1, "bias": 0.0}
every_degree = pytest.mark.parametrize("given", [SQUARES, FEATURES], ids=["squares", "features"])

pytestmark = pytest.mark.usefixtures("poisoned")


def inputs(queries, keys=None, *, r=16, h=16, m=None, batch=1, heads=1, seed=0):
    """Features `(left, right)` that are positive, as those of the mechanisms of degree 1, and values."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(rows, columns):
        return torch.randn(batch, heads, rows, columns, generator=generator).to(DEVICE)

    keys = keys or queries
    features = [drawn(n, m or r) * 16**0.25 * (m or r) ** -0.25 for n in (queries, keys)]
    return [*((x.abs() for x in features) if m else features), drawn(keys, h)]


def of(given, *sizes, **more):
    """Inputs for these settings."""
    return inputs(*sizes, m=16 if given is FEATURES else None, **more)


def exact(length, h=16, seed=1, **sizes):
    """Queries and keys of the weights inside blocks."""
    return [x * 3 / h**0.5 for x in inputs(length, r=h, h=16, seed=seed, **sizes)[:2]]


def by_kernels(left, right, value, query=None, key=None, log_scale=None, *, local_degree=1, **given):
    local = None if query is None else LocalInputs(query, key, local_degree)
    return triton.normalised_product(left, right, value, local=local, log_scale=log_scale, **given)[0]


def assert_equals_formula(tensors, **given):
    kernels, formula = (functools.partial(f, **given) for f in (by_kernels, by_formula))
    operations.assert_equals_formula(kernels, formula, tensors, ones=operations.product_ones)


def with_gradients(function, tensors, **given):
    return operations.with_gradients(functools.partial(function, **given), tensors)


@pytest.fixture
def few_tiles(monkeypatch):
    """Those of 16 bits, which are larger: the interpreter has room for them, and takes less time."""
    use_tiles(monkeypatch, 16, tiles)


few_tiles_do = pytest.mark.usefixtures("few_tiles")

# --- What it computes -----------------------------------------------------------------------------


@every_degree
@pytest.mark.parametrize(("block_size", "length", "bias"), [(16, 40, 0.0), (50, 70, 3.7), (128, 150, 0.5)])
def test_every_block_size_and_bias(block_size, length, bias, given):
    """Multiples of tiles and others, the last chunk being a part of one."""
    settings = {**given, "causal": True, "block_size": block_size, "bias": bias}
    assert_equals_formula(of(given, length), **settings)


@few_tiles_do
@pytest.mark.parametrize(
    ("r", "h", "causal"), [(16, 128, True), (32, 16, False), (32, 64, True), (64, 32, True), (128, 16, False)]
)
def test_every_number_of_squared_features_and_columns(r, h, causal):
    assert_equals_formula(inputs(20, r=r, h=h), causal=causal, block_size=16, **SQUARES)


@pytest.mark.parametrize(
    ("m", "h", "causal"),
    [
        *((3, 32, True), (64, 64, True), (266, 128, True)),
        *((3, 16, False), (128, 32, False), (266, 128, False)),
    ],
)
def test_any_number_of_features(m, h, causal):
    """Others: `test_log_scales`."""
    assert_equals_formula(inputs(50, m=m, h=h), causal=causal, block_size=40, **FEATURES)


@few_tiles_do
def test_parts_of_a_sequence_of_few_heads():
    """So few programs that each sequence is walked along in parts, the last of which is shorter."""
    length = 64 * 7 - 5
    assert launches.segments_of(torch.ones(1, device=DEVICE), Chunks.of(length, 64), rows=1, r=16, h=16).count == 3
    assert_equals_formula(inputs(length), causal=True, block_size=64, **SQUARES)


@few_tiles_do
@pytest.mark.parametrize(
    ("length", "given", "kept"),
    [
        (443, {**SQUARES, "causal": True, "block_size": 64}, [7 * 256, 2 * 256 * 16]),  # three parts
        (130, {**SQUARES, "causal": True, "block_size": 40}, [4 * 256, 0]),
        (50, {**SQUARES, "causal": False, "block_size": 64}, [256, 0]),
        (130, {**FEATURES, "causal": True, "block_size": 64}, [0, 0]),
    ],
)
def test_the_fake_kernel_knows_what_is_kept(length, given, kept):
    settings = given["bias"], given["causal"], min(length, given["block_size"]), given["degree"], given["degree"] - 1
    tensors, others = inputs(length), (None, None, None, *settings)
    assert [x.numel() for x in triton.attend(*(x.to("meta") for x in tensors), *others)[2:]] == kept
    torch.library.opcheck(triton.attend, (*tensors, *others), test_utils="test_faketensor")


@every_degree
@pytest.mark.parametrize(("queries", "keys"), [(1, 70), (70, 2), (65, 129)])
def test_other_keys_than_queries(queries, keys, given, monkeypatch):
    """In one segment, and in several."""
    monkeypatch.setattr(triton, "SEGMENT", 64 if keys == 129 else 2048)
    assert_equals_formula(of(given, queries, keys), causal=False, **given)


@pytest.mark.parametrize(
    ("length", "block_size", "local_degree", "r", "h"),
    [
        *((65, 64, 8, 16, 16), (100, 40, 2, 16, 16)),
        *((60, 100, 8, 16, 16), (60, 48, 4, 16, 128), (60, 48, 4, 32, 16)),
    ],
)
def test_exact_weights_inside_blocks(length, block_size, local_degree, r, h):
    tensors = [*inputs(length, r=r, h=h), *exact(length, h)]
    assert_equals_formula(tensors, causal=True, block_size=block_size, local_degree=local_degree, **SQUARES)


@every_degree
def test_a_row_of_almost_nothing_is_zero_and_has_no_gradient(given):
    """Its denominator is a number in float32, the inverse of that is none."""
    tensors = of(given, 20)
    tensors[0][:, :, 5] *= 1e-41 if given is FEATURES else 1e-20
    settings = {**given, "bias": 0.0, "causal": True, "block_size": 16}
    for x in with_gradients(by_kernels, tensors, **settings):
        assert x.isfinite().all() and x[:, :, 4].any()
    assert not by_kernels(*tensors, **settings)[:, :, 5].any()


@few_tiles_do
@every_degree
@pytest.mark.parametrize(
    ("hidden", "causal"),
    [(slice(70), True), (slice(0, None, 3), True), (slice(0, None, 3), False), (slice(None), False)],
    ids=["first", "scattered", "scattered-full", "all-full"],
)
def test_keys_without_features_are_not_seen_and_rows_without_weights_are_zeros(hidden, causal, given):
    """That is how padding is hidden. A row that sees nothing else has no gradient, nor has one without features."""
    tensors = of(given, 100)
    tensors[0][:, :, [1, 80, 99]] = 0
    tensors[1][:, :, hidden] = 0
    tensors[2][:, :, hidden] *= 50
    weights = tensors[0] @ tensors[1].mT
    blind = ~(weights.tril() if causal else weights)[0, 0].any(-1)
    settings = {**given, "bias": 0.0, "causal": causal, "block_size": 64}
    expected = with_gradients(by_formula, [x.double() for x in tensors], **settings)
    actual = with_gradients(by_kernels, tensors, **settings)
    # Where a gradient is zero by formula, its terms are about 1.
    assert_near(actual, expected, of_float32(), smallest=0.3)
    assert blind[99] and not any(x[:, :, blind].any() for x in actual[:2])


# --- Log scales -----------------------------------------------------------------------------------


def log_scales(kind, length):
    generator = torch.Generator().manual_seed(5)
    position = torch.arange(length) / max(length, 2)
    noise = torch.randn(1, 1, length, generator=generator)
    scales = {
        "random": 3 * noise,
        "up": 200 * (position > 0.6) + noise,
        "down": -200 * (position > 0.3) + noise,
        "huge": 1e4 * (position > 0.6) + 1e4 + noise,
        "hidden": torch.where(position < 0.5, -1e30, noise),
    }
    return scales[kind].to(DEVICE, torch.float32)


@few_tiles_do
@pytest.mark.parametrize(
    ("kind", "bias", "length", "block_size", "m"),
    [
        ("random", 1.0, 100, 32, 16),
        *((kind, 0.0, 100, 32, 16) for kind in ("up", "down", "hidden")),
        *(("random", 0.0, length, 64, 16) for length in (1, 65, SCAN_BLOCK)),
        ("huge", 0.0, 200, SCAN_BLOCK, 16),  # rows behind the end have no largest scale
        *(("random", 0.0, 70, 40, m) for m in (100, 192)),
    ],
)
def test_log_scales(kind, bias, length, block_size, m):
    left, right, value = inputs(length, m=m)
    scale = log_scales(kind, length)
    if kind == "hidden":
        right = right.masked_fill(scale[..., None] < -1e29, 0)
    tensors = left, right, value, None, None, scale
    assert_equals_formula(tensors, causal=True, block_size=block_size, degree=1, bias=bias)


def test_nothing_of_the_future_is_seen():
    """Not even a key that is infinitely larger than all before."""
    left, right, value = inputs(100, m=16)
    scale = log_scales("random", 100)
    settings = {"causal": True, "block_size": 64, **FEATURES}
    out = by_kernels(left, right, value, log_scale=scale, **settings)
    for first in (20, 64):
        x, v, s = right.clone(), value.clone(), scale.clone()
        x[:, :, first:], v[:, :, first:], s[:, :, first:] = 1e3, -1e3, 1e4
        changed = by_kernels(left, x, v, log_scale=s, **settings)
        assert torch.equal(changed[:, :, :first], out[:, :, :first])


@few_tiles_do
@pytest.mark.parametrize(("given", "wrong"), [(SQUARES, torch.nan), (FEATURES, torch.inf)], ids=["squares", "features"])
def test_numbers_that_are_none_stay_in_their_chunk(wrong, given):
    """Tiles reach into the next chunk, and zero times infinity is no number."""
    tensors = of(given, 120)
    settings = {**given, "causal": True, "block_size": 40}
    expected = with_gradients(by_kernels, tensors, **settings)
    changed = [tensors[0], *(x.clone() for x in tensors[1:])]
    for x in changed[1:]:
        x[:, :, 80] = wrong
    out, of_queries, *_ = with_gradients(by_kernels, changed, **settings)
    assert torch.equal(out[:, :, :80], expected[0][:, :, :80])
    assert torch.equal(of_queries[:, :, :80], expected[1][:, :, :80])
    leaves = [x.detach().requires_grad_() for x in tensors]
    d_out = operations.direction(expected[0])
    d_out[:, :, 39] = wrong
    _, *of_keys = torch.autograd.grad(by_kernels(*leaves, **settings), leaves, d_out)
    for x, other in zip(of_keys, expected[2:], strict=True):
        assert torch.equal(x[:, :, 40:], other[:, :, 40:])


# --- Keys that have much in common ----------------------------------------------------------------


def test_denominators_of_keys_with_a_common_part_and_their_gradients():
    """Features of 16 bits: keys share a part of ten standard deviations, which half of the queries do not see."""
    left, right, value = inputs(300, r=32)
    common = torch.nn.functional.normalize(left[0, 0, 0], dim=0)
    right = right / 10 + right.std() * 32**0.5 * common
    left[:, :, ::2] -= (left[:, :, ::2] @ common)[..., None] * common
    left, right, value = (x.to(torch.bfloat16 if HAS_GPU else torch.float16) for x in (left, right, value))
    _, totals, *_ = triton.attend(left, right, value, None, None, None, 0.0, True, 64, 2, 1)
    expected = ((left.double() @ right.double().mT) ** 2).tril().sum(-1)[0]
    assert_within(((totals - expected).abs() / expected).max(), 2e-3)
    chunks, nothing = Chunks.of(300, 64), torch.zeros_like(value)
    _, norms = launches.prepared(right, chunks, value.shape[-1], scan=True)
    zeros = right.new_zeros(1, chunks.count, 32 * value.shape[-1], 32)
    actual = launches.square_gradient(left, nothing, zeros, norms, chunks)[:, :, 64::2]
    before = torch.stack(
        [right[0, 0, :first].double().mT @ right[0, 0, :first].double() for first in range(0, 300, 64)]
    )
    row = torch.arange(64, 300, 2, device=DEVICE)
    expected = 2 * (left[0, 0, row, None].double() @ before[row // 64]).squeeze(1)
    assert_within((actual[0, 0] - expected).norm(dim=-1).div(expected.norm(dim=-1)).max(), 2e-2)


# --- Tiles of 16 bits ------------------------------------------------------------------------------


@few_tiles_do
@pytest.mark.skipif(HAS_GPU, reason="too large for float32")
@every_degree
@pytest.mark.parametrize(("block_size", "length"), [(64, 150), (100, 210)])
def test_larger_tiles(block_size, length, given):
    tensors = [*of(given, length), *(exact(length) if given is SQUARES else ())]
    assert_equals_formula(tensors, causal=True, block_size=block_size, local_degree=4, **given)
