"""The kernels of exponential features against their formula in float64: interpreted, and compiled on a GPU."""

import functools
import math

import pytest
import torch
from closeness import assert_near, assert_within, of_float32, with_rounding
from operations import DEVICE, assert_equals_formula, drawn, with_gradients
from operations import exponential_features as by_formula

from attention_zoo.ops.feature_product.tiles import padded
from attention_zoo.ops.random_features import triton

HEADS = 2

pytestmark = pytest.mark.usefixtures("poisoned")


def rows(n, width, batch=2):
    return drawn(batch, HEADS, n, width)


def projection(m, width):
    """Columns first; a contiguous one: test_operations.py."""
    return drawn(width, m, seed=3).mT


def by_kernels(x, projection, scale, eps):
    """As many columns as the product's have, and then those that are features."""
    m = len(projection)
    features, log_scale = triton.exponential_features(x, projection, scale=scale, eps=eps, columns=padded(m))
    assert features.dtype == x.dtype and log_scale.dtype == torch.float32
    assert features.shape[-1] == padded(m) and not features[..., m:].any()
    return features[..., :m], log_scale


def both(projection, scale=0.3, eps=1e-2):
    return [functools.partial(f, projection=projection, scale=scale, eps=eps) for f in (by_kernels, by_formula)]


def assert_is_the_formula(x, projection, tolerance=None, **settings):
    assert_equals_formula(*both(projection, **settings), [x], tolerance, rounding=None)


# --- The function and its gradient ------------------------------------------------------------------


@pytest.mark.parametrize(("m", "width"), [(1, 16), (31, 16), (64, 16), (266, 16), (48, 32), (48, 128)])
def test_every_size(m, width):
    assert_is_the_formula(rows(40, width, batch=1), projection(m, width))


@pytest.mark.parametrize("which", [0, 1], ids=["features", "log scales"])
def test_the_gradient_of_one_output(which):
    kernels, formula = (lambda x, f=f: f(x)[which] for f in both(projection(100, 16)))
    assert_equals_formula(kernels, formula, [rows(40, 16)], rounding=None)


@pytest.mark.parametrize(("scale", "eps"), [(0.04, 0.5), (1.0, 0.0)])
def test_settings(scale, eps):
    assert_is_the_formula(rows(40, 16), projection(40, 16), scale=scale, eps=eps)


def test_large_exponents():
    """Up to thousands: as good as rounding the inputs leaves them."""
    x, given = 100 * rows(40, 64), projection(100, 64)

    def exactly(x, given):
        return with_gradients(both(given)[1], [x])

    expected, rounding = with_rounding(exactly, [x.double(), given.double()])
    assert_near(with_gradients(both(given)[0], [x]), expected, of_float32(), besides=rounding)


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
    expected = with_gradients(both(given)[0], [x])
    x[:, :, 7, 3] = what
    others = torch.arange(40, device=DEVICE) != 7
    for actual, other in zip(with_gradients(both(given)[0], [x]), expected, strict=True):
        assert torch.equal(actual[:, :, others], other[:, :, others])
        assert not actual[:, :, 7].isfinite().all()


# --- 16 bits ----------------------------------------------------------------------------------------


def every_16_bits(test):
    """What is not interpreted in bfloat16 is in float16."""
    on_a_gpu = pytest.param(torch.bfloat16, marks=pytest.mark.gpu)
    return pytest.mark.parametrize("dtype", [torch.float16, on_a_gpu], ids=str)(test)


@every_16_bits
@pytest.mark.parametrize("width", [64, 128])
def test_of_16_bits(dtype, width):
    eps = torch.finfo(dtype).eps
    for given in (projection(100, width), projection(100, width).to(dtype)):
        assert_is_the_formula(rows(140, width, batch=1).to(dtype), given, eps)


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
