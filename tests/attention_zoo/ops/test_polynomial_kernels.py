"""The kernels of polynomial attention against its formula in float64: interpreted, or compiled for a GPU."""

import functools

import closeness
import operations
import pytest
import torch
import triton.language as tl
from closeness import assert_within, of_float32
from operations import DEVICE, HAS_GPU
from operations import polynomial as by_formula

import attention_zoo
from attention_zoo.ops import launching
from attention_zoo.ops.polynomial import kernels
from attention_zoo.ops.polynomial import triton as polynomial

pytestmark = pytest.mark.usefixtures("poisoned")

BATCH, HEADS = 2, 2
every_mask = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


@pytest.fixture(autouse=True)
def large_tiles(monkeypatch):
    """Few of them take less time to be interpreted."""
    if not HAS_GPU:
        use_tiles(monkeypatch, 90, 16)


def qkv(queries, keys=None, head_dim=32, dtype=torch.float32, batch=BATCH):
    lengths = queries, keys or queries, keys or queries
    return [operations.drawn(batch, HEADS, n, head_dim, seed=i).to(dtype) for i, n in enumerate(lengths)]


def padding_masks(keys):
    """On the left, on the right."""
    position = torch.arange(keys, device=DEVICE)
    return torch.stack([position < keys // 3, position > keys // 2])


def beside_a_large_one(tensors, size):
    """The first key is so large, and weighs nothing: the units of all queries are its."""
    query, key, value = (x.clone() for x in tensors)
    query[..., 16:] = 0
    key[:, :, 0, :16] = 0
    key[:, :, 0] *= size
    return query, key, value


def with_gradients(function, tensors, **given):
    return operations.with_gradients(functools.partial(function, **given), tensors)


def assert_near(actual, expected, tolerance=None, **besides):
    closeness.assert_near(actual, expected, tolerance or 2 * of_float32(), **besides)


def assert_equals_formula(tensors, **given):
    kernels, formula = (functools.partial(f, **given) for f in (polynomial.polynomial_attention, by_formula))
    tolerance = 2 * of_float32() if tensors[0].dtype == torch.float32 else 1e-2
    settings = {"ones": operations.polynomial_ones, "rounding": tensors[0].dtype}
    operations.assert_equals_formula(kernels, formula, tensors, tolerance, **settings)


def use_tiles(monkeypatch, arch, bits):
    """Those that numbers of so many bits get on that architecture."""
    monkeypatch.setattr(launching, "architecture", lambda device: arch)
    monkeypatch.setattr(polynomial, "loads_tiles", lambda x: arch >= 90 and bits == 16)
    operations.use_tiles(monkeypatch, bits, polynomial)


# --- What it computes -----------------------------------------------------------------------------


def dtype_of(bits):
    """What the tiles are for; the interpreter, to which all are the same, knows no products of bfloat16."""
    return torch.bfloat16 if HAS_GPU and bits == 16 else torch.float32


@every_mask
@pytest.mark.parametrize(("arch", "bits"), [(90, 16), (80, 16), (80, 32)])
def test_tiles_of_every_architecture(arch, bits, causal, monkeypatch):
    """Several tiles of 32 to 128 rows and a part of one."""
    use_tiles(monkeypatch, arch, bits)
    assert_equals_formula(qkv(129, dtype=dtype_of(bits), batch=1), degree=4, scale=0.2, causal=causal)


@pytest.mark.parametrize(("queries", "keys"), [(1, 70), (65, 129), (130, 2)])
def test_other_keys_than_queries(queries, keys):
    assert_equals_formula(qkv(queries, keys, batch=1), degree=2)


@pytest.mark.parametrize(
    ("arch", "bits", "head_dim", "causal"),
    [(90, 16, 64, True), (90, 16, 128, False), (80, 16, 64, False), (80, 16, 128, True), (80, 32, 128, True)],
)
def test_every_head_dim(arch, bits, head_dim, causal, monkeypatch):
    use_tiles(monkeypatch, arch, bits)
    assert_equals_formula(qkv(36, head_dim=head_dim, dtype=dtype_of(bits), batch=1), degree=4, causal=causal)


@pytest.mark.parametrize(("degree", "causal"), [(2, False), (10, True), (16, False)])
def test_every_even_degree(degree, causal):
    assert_equals_formula(qkv(40, batch=1), degree=degree, scale=0.3, causal=causal)


@pytest.mark.parametrize(("bias", "scale"), [(0.0, 1.0), (1.0, 0.03), (3.7, 20.0)])
def test_scale_and_bias(bias, scale):
    assert_equals_formula(qkv(40, batch=1), degree=4, scale=scale, bias=bias, causal=True)


@pytest.mark.parametrize(("length", "causal"), [(3, True), (130, True), (130, False)])
def test_padding_is_not_seen(length, causal):
    tensors, padding = qkv(length), padding_masks(length)
    for x in tensors[1:]:
        x[padding[:, None].expand(-1, HEADS, -1)] *= 50
    assert_equals_formula(tensors, degree=4, bias=0.5, causal=causal, padding=padding)


@pytest.mark.parametrize(("causal", "bias"), [(True, 0.0), (False, 0.0), (False, 1.0)])
def test_padding_only_gives_zeros_and_no_gradients(causal, bias):
    padding = torch.tensor([[False] * 40, [True] * 40], device=DEVICE)
    given = {"degree": 4, "bias": bias, "causal": causal, "padding": padding}
    outcomes = with_gradients(polynomial.polynomial_attention, qkv(40), **given)
    assert all((x[1] == 0).all() and (x[0] != 0).any() for x in outcomes)


def test_a_row_whose_denominator_is_zero_is_zero_and_has_no_gradient():
    query, key, value = qkv(66, batch=1)
    query[:, :, [0, 3, 65]] = 0
    out, d_query, *_ = with_gradients(polynomial.polynomial_attention, (query, key, value), degree=2, bias=0.0)
    for x in (out, d_query):
        assert x.isfinite().all() and (x[:, :, [0, 3, 65]] == 0).all() and (x[:, :, 1] != 0).all()


def test_a_vanished_denominator_leaves_no_gradient_behind():
    """Scores whose eighth power is none in float32, and whose slope is a number."""
    tensors = beside_a_large_one(qkv(3, batch=1), 5e6)
    found = with_gradients(polynomial.polynomial_attention, tensors, degree=8, bias=0.0)
    assert all((x == 0).all() for x in found)


@every_mask
def test_sixteen_bits_are_summed_in_float32(causal):
    """Hundreds of values of which float16 would lose all but the first."""
    value = torch.full((1, 1, 500, 32), 2.0**-11, dtype=torch.float16, device=DEVICE)
    value[:, :, 0] = 1
    ones = torch.ones_like(value) / 32**0.5
    out = polynomial.polynomial_attention(ones, ones, value, degree=2, bias=0.0, causal=causal)
    expected = (1 + 499 * 2.0**-11) / 500
    assert_within(abs(float(out[0, 0, -1, 0]) - expected), 2e-3 * expected)


@pytest.mark.parametrize("degree", [2, 4, 16])
def test_float16_neither_overflows_nor_vanishes(degree):
    """Norms of 1e-2 to 1e2: scores of up to 1e4, and weights of up to 1e64."""
    sizes = 10 ** torch.linspace(-2, 2, 64, device=DEVICE)[:, None]
    query, key, value = qkv(64, dtype=torch.float16, batch=1)
    for tensors in ((query, (sizes * key).half(), value), ((sizes * query).half(), key, value)):
        for causal in (False, True):
            given = {"degree": degree, "causal": causal}
            expected = with_gradients(by_formula, [x.double() for x in tensors], **given)
            actual = with_gradients(polynomial.polynomial_attention, tensors, **given)
            assert all(x.dtype == torch.float16 for x in actual)
            assert_near(actual, expected, 2e-3)


def test_gradients_of_faint_rows_are_numbers():
    """Weights of 1e-35 beside what is possible, and gradients a millionfold: over their sum these would be infinite."""

    def faint(function):
        return lambda *tensors: 1e6 * function(*tensors, degree=4, bias=0.0)

    tensors = beside_a_large_one(qkv(40, batch=1), 2e12)
    expected = with_gradients(faint(by_formula), [x.double() for x in tensors])
    assert_near(with_gradients(faint(polynomial.polynomial_attention), tensors), expected)


# --- The layer norm -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "affine", "causal"),
    [((1,), 2, True), ((65,), 0, True), ((65,), 1, False), ((130,), 2, True), ((65, 129), 2, False)],
)
def test_a_layer_norm_before_it(lengths, affine, causal):
    """Of queries and keys, some so small that its epsilon counts, and padding hidden behind it."""
    query, key, value = qkv(*lengths)
    of_query, of_key = (10 ** torch.linspace(-3, 1, x.shape[2], device=DEVICE)[:, None] for x in (query, key))
    parameters = [0.3 * operations.drawn(32, seed=3) + 1, 0.2 * operations.drawn(32, seed=4)][:affine]
    tensors = [of_query * (query + 0.5), of_key.flip(0) * (key + 0.5), value, *parameters]
    given = {"degree": 4, "scale": 0.2, "causal": causal, "padding": padding_masks(key.shape[2])}

    def by_kernels(query, key, value, weight=None, bias=None):
        return polynomial.polynomial_attention(query, key, value, norm=polynomial.Norm(weight, bias, 1e-5), **given)

    def exactly(query, key, value, *affine):
        query, key = (torch.nn.functional.layer_norm(x, (32,), *affine) for x in (query, key))
        return by_formula(query, key, value, **given)

    expected = with_gradients(exactly, [x.double() for x in tensors])
    assert_near(with_gradients(by_kernels, tensors), expected, smallest=0.3)


# --- Units ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [1e6, torch.inf, torch.nan])
def test_nothing_of_the_future_is_seen(later):
    """Not by the units of the rows either: not a bit changes."""
    query, key, value = qkv(130, batch=1)
    seen = polynomial.polynomial_attention(query, key, value, degree=4, causal=True)
    for first in (1, 64, 100):
        changed = key.clone()
        changed[:, :, first:] *= later
        out = polynomial.polynomial_attention(query, changed, value, degree=4, causal=True)
        assert torch.equal(out[:, :, :first], seen[:, :, :first])


def test_units_of_more_tiles_of_keys_than_are_read_together(monkeypatch):
    tiles = 256 if HAS_GPU else 2
    if not HAS_GPU:
        monkeypatch.setattr(kernels, "TILES_READ", tl.constexpr(tiles))
    query, key = (operations.drawn(1, 1, tiles * 64 + 70, 32, seed=seed) for seed in range(2))
    key[:, :, tiles * 64 :] *= 100
    norms = key.norm(dim=-1)
    _, *of_keys = polynomial._prepare_keys(key, None, None)
    for causal in (True, False):
        query = query if causal else query[:, :, -70:]
        _, unit = polynomial._prepare_queries(query, None, *of_keys, polynomial.Settings(2, 1.0, 0.0, causal))
        seen = norms.cummax(-1).values if causal else norms.amax(-1, keepdim=True)
        bound = query.norm(dim=-1) * seen / 2**30
        assert_near([unit], [bound / bound.frexp().mantissa], 1e-30)


@every_mask
@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("degree", [2, 32])
def test_rows_of_any_size_are_exact(degree, bias, causal):
    """Scores of 1e-3 to 1e3, the future's largest: their powers are no 32-bit floats."""
    _, key, value = qkv(64, batch=1)
    sizes = 10 ** torch.linspace(-3, 3, 64, device=DEVICE)[:, None]
    directions = torch.nn.functional.normalize(key, dim=-1)  # the same for both: self weights are the largest
    for tensors in ((directions, sizes * directions, value), (sizes * directions, directions, value)):
        given = {"degree": degree, "bias": bias, "causal": causal}
        expected = with_gradients(by_formula, [x.double() for x in tensors], **given)
        actual = with_gradients(polynomial.polynomial_attention, tensors, **given)
        # A GPU multiplies float32 in three products of 11 bits.
        rounding = of_float32() / 2
        assert_near(actual[:1], expected[:1], rounding * degree)
        # Gradients are differences of numbers that are nearly equal, and without a bias equal where one key decides.
        assert_near(actual[1:], expected[1:], 4 * rounding * degree if bias else torch.inf)


@pytest.mark.parametrize("sizes", [(0, 0), (1e-22, 1e-22), (1e17, 1e17), (1e-25, 1e15), (1e15, 1e-25)], ids=str)
def test_units_of_extreme_inputs_are_numbers(sizes):
    query, key, value = qkv(5, batch=1)
    for bias in (0.0, 1.0):
        tensors = sizes[0] * query, sizes[1] * key, value
        found = with_gradients(polynomial.polynomial_attention, tensors, degree=8, bias=bias)
        assert all(x.isfinite().all() for x in found)


# --- The mechanism --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head_dim", "dtype", "on_gpu"),
    [(32, torch.float64, True), (16, torch.float32, True), (32, torch.float32, False)],
    ids=str,
)
def test_what_the_kernels_do_not_take_goes_some_rows_at_a_time(head_dim, dtype, on_gpu, monkeypatch):
    monkeypatch.setattr(launching, "on_gpu", lambda x: on_gpu)
    tensors = qkv(40, head_dim=head_dim, dtype=dtype)
    given = {"head_dim": head_dim, "num_heads": HEADS, "device": DEVICE}
    fused = attention_zoo.create("polynomial", impl="fused", dtype=dtype, **given)
    actual = with_gradients(fused, tensors)
    assert fused.executed == ("fused", "rows")
    exact = attention_zoo.create("polynomial", impl="reference", dtype=torch.float64, **given)
    assert_near(actual, with_gradients(exact, [x.double() for x in tensors]))
