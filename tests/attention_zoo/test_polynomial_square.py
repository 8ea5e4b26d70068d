import itertools
import math

import numpy as np
import pytest
import torch
from closeness import assert_near
from omegaconf import OmegaConf
from small import HEADS, assert_close, assert_moments, maker, padding_at, sized

N, H = 9, 3
qkv, make = sized(N, h=H), maker("polynomial_square", head_dim=H, qk_layernorm=False)
MIXED = (0.7, -1.1, 0.3, 0.45)
POLYNOMIALS = [(1, 1), (2, -1, 1), MIXED, (0.5, 0, -0.3, 0, 0.1), (1,) * 6, (3, -1, 0, 2, 0, 0, -0.2)]
every_polynomial = pytest.mark.parametrize("coefficients", POLYNOMIALS, ids=lambda given: f"d{len(given) - 1}")


def by_the_formula(query, key, value, coefficients, *, alpha=0.0, beta=1.0, bias=0.0, causal=False, mask=None):
    """Section 4.3 with the argument of section 4.1, entry by entry, f by numpy."""
    out = np.zeros(query.shape)
    q, k, v = (x.numpy() for x in (query, key, value))
    for b, head, i in itertools.product(*map(range, query.shape[:3])):
        seen = [j for j in range(key.shape[2]) if not (causal and j > i) and (mask is None or not mask[b, j])]
        arguments = (k[b, head, seen] @ q[b, head, i] + alpha) / beta
        weights = np.polynomial.polynomial.polyval(arguments, coefficients) ** 2
        out[b, head, i] = weights @ v[b, head, seen] / (bias + weights.sum()) if seen else 0
    return torch.from_numpy(out)


@every_polynomial
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("given", [{}, {"bias": 1.0}, {"alpha": 0.8, "scale": 0.5, "bias": 0.3}, {"alpha": -1.5}])
def test_it_is_the_formula(coefficients, causal, given):
    mask = padding_at(N, slice(2, 4), slice(3))
    formula = {"alpha": given.get("alpha", 0), "beta": 1 / given.get("scale", 1), "bias": given.get("bias", 0)}
    out = make(coefficients=coefficients, causal=causal, **given)(*qkv(), mask)
    assert_close(out, by_the_formula(*qkv(), coefficients, causal=causal, mask=mask, **formula))


@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize(
    "given", [{}, {"scale": 0.4, "bias": 0.7}, {"bias": 0}, {"causal": True, "qk_layernorm": True}]
)
def test_the_square_of_a_monomial_is_polynomial_attention(degree, given):
    monomial = [0] * degree + [1]
    expected = make("polynomial", degree=2 * degree, **({"bias": 1} | given))(*qkv())
    assert_close(make(coefficients=monomial, **({"bias": 1} | given))(*qkv()), expected)


def test_defaults_are_those_of_the_thesis():
    """1 + x + x^2 + x^3 behind an affine layer norm, and nothing added to the row sum, unlike in section 4.1."""
    attention, (query, key, value) = make(qk_layernorm=True), qkv()
    gain, shift = torch.tensor([[1.5, 0.3, -0.8], [0.1, 0.4, -0.2]], dtype=torch.float64)
    attention.layernorm.weight.data, attention.layernorm.bias.data = gain, shift
    normed = [torch.nn.functional.layer_norm(x, (H,), gain, shift) for x in (query, key)]
    assert_close(attention(query, key, value), by_the_formula(*normed, value, (1, 1, 1, 1)))


def drawn(seeds, degree=6):
    return torch.stack([make(degree=degree, trainable=True, seed=seed).coefficients.detach() for seed in range(seeds)])


def test_learned_coefficients_start_uniform_on_minus_fifty_to_fifty():
    samples = drawn(500)
    assert samples.shape == (500, 7) and samples.abs().max() <= 50 and samples.abs().max() > 49
    assert_moments(samples, 0, 100**2 / 12)
    # Independent: the correlation of 500 pairs is N(0, 1 / 500).
    correlation = torch.corrcoef(samples.T) - torch.eye(7, dtype=torch.float64)
    assert correlation.abs().max() < 5 / math.sqrt(500)


def test_the_seed_decides_the_initial_coefficients_and_nothing_else_does():
    assert torch.equal(drawn(3), drawn(3)) and not torch.equal(drawn(2)[0], drawn(2)[1])
    attention = make(degree=6, trainable=True)
    attention.resample(1)
    assert torch.equal(attention.coefficients.detach(), drawn(2)[1])
    for trainable in (False, True):
        given = make(coefficients=MIXED, trainable=trainable)
        given.resample(1)
        assert_close(given.coefficients.detach(), torch.tensor(MIXED, dtype=torch.float64), 1e-7)  # float32
    assert torch.equal(make(degree=2).coefficients, torch.ones(3, dtype=torch.float64))


def test_a_learned_polynomial_can_be_frozen():
    learned = make(degree=3, trainable=True, seed=3)
    expected = learned(*qkv()).detach()
    assert_close(make(coefficients=learned.coefficients.tolist())(*qkv()), expected, 0)
    frozen = make(degree=3)
    frozen.load_state_dict(learned.state_dict())
    assert_close(frozen(*qkv()), expected, 0)


@pytest.mark.parametrize("bias", [0.0, 0.5])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_the_coefficients_equal_finite_differences(bias, causal):
    attention = make(degree=4, trainable=True, causal=causal, bias=bias, scale=0.3, seed=2)

    def of(coefficients):
        return torch.func.functional_call(attention, {"coefficients": coefficients}, tuple(qkv(5)))

    given = (attention.coefficients.detach() / 50).requires_grad_()
    assert torch.autograd.gradcheck(of, given, fast_mode=True)


@pytest.mark.parametrize("degree", [1, 3, 6])
@pytest.mark.parametrize("given", [{"trainable": True}, {"trainable": True, "causal": True, "bias": 1.0}, {}])
def test_large_scores_are_exact_in_float32_and_have_gradients(degree, given):
    """Scores of +-1e3: f is up to 5e19 and its square 2e39, beyond float32."""
    query, key, value = qkv(12)
    query, key = (1e3**0.5 * x / x.norm(dim=-1, keepdim=True) for x in (query, key))
    key[:, :, 1::4] = query[:, :, 1::4]
    query, key, value = (x.float() for x in (query, key, value))
    attention, exact = make(degree=degree, dtype=torch.float32, **given), make(degree=degree, **given)
    exact.load_state_dict(attention.state_dict())
    inputs = [x.requires_grad_() for x in (query, key, value)]
    out = attention(*inputs)
    expected = exact(*(x.detach().double() for x in inputs))
    # A score of a thousand is rounded in its 7th digit, a small one among them to 1e-4 of itself: f to d times that.
    assert_near(out, expected, 1e-4 * degree)
    leaves = [*inputs, *attention.parameters()]
    gradients = torch.autograd.grad(out.square().sum(), leaves)
    assert all(g.isfinite().all() and (g != 0).any() for g in gradients)


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_a_row_of_zero_weights_is_zero(bias):
    """1 + x is zero where every score is -1."""
    query = torch.zeros(1, HEADS, 4, H, dtype=torch.float64)
    query[..., 0] = 1
    key, value = -query.clone(), qkv(4)[2][:1]
    query.requires_grad_(), key.requires_grad_()
    attention = make(coefficients=(1.0, 1.0), trainable=True, bias=bias)
    out = attention(query, key, value)
    out.sum().backward()
    assert (out == 0).all()
    assert all(x.grad.isfinite().all() for x in (query, key, attention.coefficients))


def test_terms_that_cancel_are_not_added_in_16_bits():
    """(x - 1)(x - 2)(x - 3)(x - 4) at scores that bfloat16 holds exactly, just beside the roots."""
    generator = torch.Generator().manual_seed(0)
    key = torch.randint(55, 240, (2, HEADS, N, 1), generator=generator).double() / 64
    query, value = torch.ones_like(key), torch.randn(key.shape, generator=generator, dtype=torch.float64).bfloat16()
    coefficients = (24.0, -50.0, 35.0, -10.0, 1.0)
    out = make(head_dim=1, coefficients=coefficients, dtype=torch.bfloat16)(query.bfloat16(), key.bfloat16(), value)
    expected = by_the_formula(query, key, value.double(), coefficients)
    # The weights, their products and the output round at 2^-9 of at most 1, a few times.
    assert_close(out.double(), expected, 0.02)


@pytest.mark.parametrize("kind", [list, tuple, OmegaConf.create, lambda a: [int(x) for x in a]])
def test_coefficients_may_be_any_sequence_of_numbers(kind):
    assert make(coefficients=kind([1.0, -2.0, 3.0])).coefficients.tolist() == [1, -2, 3]
    assert make(coefficients=(0.1, 0.3)).coefficients.tolist() == [0.1, 0.3], "not rounded to float32"
