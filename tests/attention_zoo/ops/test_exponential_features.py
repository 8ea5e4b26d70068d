"""The kernels of exponential features against their formula in float64: interpreted, and compiled on a GPU."""

import functools
import math

import pytest
import torch
from closeness import assert_near, assert_within, of_float32, with_rounding

import attention_zoo
from attention_zoo.ops import launching
from attention_zoo.ops.feature_product.tiles import padded
from attention_zoo.ops.random_features import triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS = 2

pytestmark = pytest.mark.usefixtures("poisoned")


def drawn(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def rows(n, width, batch=2):
    return drawn(batch, HEADS, n, width)


def projection(m, width):
    return drawn(m, width, seed=3)


def by_formula(x, projection, scale, eps):
    x = math.sqrt(scale) * x
    exponents = x @ projection.T
    largest = exponents.max(-1, keepdim=True).values
    features = ((exponents - largest).exp() + eps) / math.sqrt(len(projection))
    return features, largest.squeeze(-1) - x.square().sum(-1) / 2


def with_zeros(x, projection, scale, eps):
    """By kernels, and as many columns as the product's have."""
    return triton.exponential_features(x, projection, scale=scale, eps=eps, columns=padded(len(projection)))


def by_kernels(x, projection, scale, eps):
    m = len(projection)
    features, log_scale = with_zeros(x, projection, scale, eps)
    assert features.dtype == x.dtype and log_scale.dtype == torch.float32
    assert features.shape[-1] == padded(m) and not features[..., m:].any()
    return features[..., :m], log_scale


def with_gradients(function, x, projection, *, scale=0.3, eps=1e-2, given=(0, 1)):
    """Features, log scales, and the gradient that comes by those given."""
    x = x.detach().requires_grad_()
    outputs = function(x, projection, scale, eps)
    # Of float16, that they are the same for all.
    directions = [drawn(*out.shape, seed=7 + which).half().to(out) for which, out in enumerate(outputs)]
    gradient = torch.autograd.grad([outputs[i] for i in given], x, [directions[i] for i in given])
    return [*(out.detach() for out in outputs), *gradient]


def assert_is_the_formula(x, projection, tolerance=None, **options):
    actual = with_gradients(by_kernels, x, projection, **options)
    expected = with_gradients(by_formula, x.double(), projection.double(), **options)
    assert_near(actual, expected, tolerance or of_float32())


# --- The function and its gradient ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "m", "width"),
    [
        *((n, 40, 16) for n in (1, 2, 31, 32, 33, 63, 64, 65, 130)),
        *((40, m, 16) for m in (1, 2, 16, 31, 32, 33, 64, 100, 128, 266)),
        *((70, 48, width) for width in (32, 64, 128)),
    ],
)
def test_every_size(n, m, width):
    assert_is_the_formula(rows(n, width, batch=1), projection(m, width))


@pytest.mark.parametrize("given", [(0,), (1,)], ids=["features", "log scales"])
def test_the_gradient_of_one_output(given):
    assert_is_the_formula(rows(40, 16), projection(100, 16), given=given)


@pytest.mark.parametrize("eps", [0.0, 0.5])
@pytest.mark.parametrize("scale", [0.04, 1.0])
def test_settings(scale, eps):
    assert_is_the_formula(rows(40, 16), projection(40, 16), scale=scale, eps=eps)


def test_any_strides():
    by_position = rows(50, 32).transpose(1, 2).contiguous().transpose(1, 2)
    by_column = rows(50, 32).mT.contiguous().mT
    one_of_three = drawn(2, HEADS, 50, 3 * 32)[..., 32:64]
    for x in (by_position, by_column, one_of_three, rows(1, 32).expand(-1, -1, 50, -1)):
        assert_is_the_formula(x, projection(40, 32).mT.contiguous().mT)


def test_gradients_of_any_strides():
    x, given = rows(40, 16).requires_grad_(), projection(32, 16)
    outputs = by_kernels(x, given, 0.3, 0.1)
    double = x.detach().double().requires_grad_()
    expected_outputs = by_formula(double, given.double(), 0.3, 0.1)
    one = torch.ones((), device=DEVICE)
    turned = drawn(2, 40, HEADS, 32).transpose(1, 2), drawn(40, HEADS, 2).permute(2, 1, 0)
    for directions in (turned, [one.expand(out.shape) for out in outputs]):
        actual = torch.autograd.grad(outputs, x, directions, retain_graph=True)
        expected = torch.autograd.grad(expected_outputs, double, directions, retain_graph=True)
        assert_near(actual, expected, of_float32())


def test_large_exponents():
    """Up to thousands: as good as rounding the inputs leaves them."""
    x, given = 100 * rows(40, 64), projection(100, 64)
    exactly = functools.partial(with_gradients, by_formula)
    expected, rounding = with_rounding(exactly, [x.double(), given.double()])
    assert_near(with_gradients(by_kernels, x, given), expected, of_float32(), besides=rounding)


def test_the_largest_exponent_is_that_of_the_first_of_equals():
    """All of a row of zeros, whose gradient is then the first feature's row of the projection, and no other's."""
    given = projection(100, 16)
    x = torch.zeros(1, 1, 3, 16, device=DEVICE, requires_grad=True)
    _, log_scale = by_kernels(x, given, 0.25, 0.0)
    (gradient,) = torch.autograd.grad(log_scale.sum(), x)
    assert_near(gradient, 0.5 * given[0].expand(x.shape), 1e-6)


def test_of_equal_features_one_has_the_gradient():
    given = projection(50, 16)[torch.arange(100) % 50]
    assert_is_the_formula(rows(40, 16), given)


@pytest.mark.parametrize("what", [torch.inf, torch.nan])
def test_what_is_no_number_stays_in_its_row(what):
    x, given = rows(40, 16), projection(40, 16)
    expected = with_gradients(by_kernels, x, given)
    x[:, :, 7, 3] = what
    others = torch.arange(40, device=DEVICE) != 7
    for actual, other in zip(with_gradients(by_kernels, x, given), expected, strict=True):
        assert torch.equal(actual[:, :, others], other[:, :, others])
        assert not actual[:, :, 7].isfinite().all()


# --- 16 bits ----------------------------------------------------------------------------------------


def every_16_bits(test):
    """What is not interpreted in bfloat16 is in float16."""
    on_a_gpu = pytest.param(torch.bfloat16, marks=pytest.mark.gpu)
    return pytest.mark.parametrize("dtype", [torch.float16, on_a_gpu], ids=str)(test)


@every_16_bits
@pytest.mark.parametrize("width", [16, 64, 128])
def test_of_16_bits(dtype, width):
    eps = torch.finfo(dtype).eps
    assert_is_the_formula(rows(140, width).to(dtype), projection(100, width), eps)
    assert_is_the_formula(rows(140, width).to(dtype), projection(100, width).to(dtype), eps)


@every_16_bits
def test_exponents_are_those_of_a_projection_in_float32(dtype):
    """They are large, and would be off by more than 0.01."""
    x, given = 10 * rows(40, 64).to(dtype), projection(100, 64)
    _, log_scale = by_kernels(x, given, 0.125, 0.0)
    largest = log_scale.double() + 0.125 * x.double().square().sum(-1) / 2
    expected = math.sqrt(0.125) * (x.double() @ given.double().T).amax(-1)
    assert_within((largest - expected).abs().max(), 1e-3)


@every_16_bits
def test_the_largest_feature_is_a_constant(dtype):
    """Where it is all but the whole row, what it is given leaves nothing in a gradient a thousand times smaller."""
    x, given = 5 * rows(40, 64).to(dtype), projection(64, 64)
    zeros = torch.zeros(2, HEADS, 40, device=DEVICE)
    actual, expected = (
        torch.autograd.grad(function(leaf, matrix, 0.3, 0.0), leaf, [drawn(2, HEADS, 40, 64).half().to(leaf), zeros])
        for function, leaf, matrix in (
            (by_kernels, x.clone().requires_grad_(), given),
            (by_formula, x.double().requires_grad_(), given.double()),
        )
    )
    errors = (actual[0] - expected[0]).norm(dim=-1) / expected[0].norm(dim=-1)
    assert_within(errors.median(), 8 * torch.finfo(dtype).eps)


# --- Where it is used -------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_features_come_with_the_columns_that_products_need(causal, monkeypatch):
    pad, widened = torch.nn.functional.pad, []

    def look(x, *given, **options):
        widened.append(x.ndim == 4)
        return pad(x, *given, **options)

    monkeypatch.setattr(torch.nn.functional, "pad", look)
    monkeypatch.setattr(launching, "is_gpu", lambda device: True)
    attention = attention_zoo.create(
        "performer", head_dim=16, num_heads=HEADS, num_features=140, causal=causal, impl="fused"
    ).to(DEVICE)
    query, key, value = (drawn(1, HEADS, 20, 16, seed=seed).requires_grad_() for seed in range(3))
    attention(query, key, value).sum().backward()
    assert query.grad.isfinite().all() and key.grad.any() and not any(widened)


def test_autocast():
    x, given = rows(40, 16), projection(40, 16)
    with torch.autocast(DEVICE, dtype=torch.float16):
        features, log_scale = with_zeros(x, given, 0.3, 0.0)
    assert (features.dtype, log_scale.dtype) == (torch.float16, torch.float32)
    expected, expected_scale = by_formula(x.half().double(), given.double(), 0.3, 0.0)
    assert_near([features[..., :40]], [expected], 2**-11)
    assert_near([log_scale], [expected_scale], of_float32())


@pytest.mark.parametrize("given", [(0, 1), (0,), (1,)], ids=["both", "features", "log scales"])
def test_compiled(given):
    x, matrix = rows(20, 16, batch=1), projection(20, 16)
    compiled = torch.compile(with_zeros, fullgraph=True, backend="aot_eager")
    actual = with_gradients(compiled, x, matrix, given=given)
    assert_near(actual, with_gradients(with_zeros, x, matrix, given=given), 1e-6)


def test_the_operators_are_what_they_are_registered_as():
    x, high, low = rows(20, 16), projection(20, 16), 1e-3 * projection(20, 16)
    torch.library.opcheck(triton.features, (x.clone().requires_grad_(), high, None, 0.5, 1e-3, 32))
    torch.library.opcheck(triton.features, (x.clone().requires_grad_(), high, low, 0.5, 1e-3, 32))
    for d_log_scale in (None, drawn(2, HEADS, 20)):
        torch.library.opcheck(
            triton.features_backward, (drawn(2, HEADS, 20, 32), d_log_scale, x, high, low, 0.5, 1e-3, 32)
        )
