import math

import pytest
import torch
from small import assert_close, maker, padding_mask, sized

from bench.measures.flops import count

N = 13
qkv, make = sized(N), maker("linear")


def phi(x):
    """elu(x) + 1 without the sum that rounds away small features."""
    return torch.where(x > 0, x + 1, x.exp())


def test_features_are_elu_plus_one():
    x = 3 * qkv()[0]
    assert_close(make().features(x), torch.nn.functional.elu(x) + 1)
    x = torch.tensor([-2.0, 0.0, 3.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(make().features(x).sum(), x)
    assert_close(slope, torch.tensor([math.exp(-2), 1, 1], dtype=torch.float64))


def test_features_of_very_negative_numbers_are_not_rounded_to_zero():
    """In float32 `elu(x) + 1` is zero below -17, and the row with it."""
    x = torch.tensor([-20.0, -50.0])
    assert (torch.nn.functional.elu(x) + 1 == 0).all()
    torch.testing.assert_close(make().features(x), x.double().exp().float())
    query, key, value = (x.float() for x in qkv())
    given = (query - 30, key, value)
    out = make(eps=0, dtype=torch.float32)(*given)
    assert_close(out.double(), dense(*(x.double() for x in given)), 1e-5)


def dense(query, key, value, eps=0.0, causal=False, mask=None):
    """Katharopoulos et al., equation 4 and, causal, equation 8, with the whole matrix."""
    weights = torch.einsum("bhif,bhjf->bhij", phi(query), phi(key))
    if mask is not None:
        weights = weights * ~mask[:, None, None]
    weights = weights.tril() if causal else weights
    total = weights.sum(-1, keepdim=True) + eps
    return torch.where(total > 0, weights @ value / total, 0)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("eps", [0, 1e-6, 0.5])
def test_it_equals_the_dense_one_in_blocks_of_any_size(causal, padded, eps):
    mask = padding_mask(N)[:2] if padded else None
    expected = dense(*qkv(), eps, causal, mask)
    for block_size in (1, 2, 5, N, 64):
        assert_close(make(eps=eps, causal=causal, block_size=block_size)(*qkv(), mask), expected)


def test_eps_is_by_default_that_of_the_official_code():
    """1e-6, seen where sums are as small: phi(-16) = 1e-7."""
    query, key, value = qkv()
    assert_close(make()(query - 16, key, value), dense(query - 16, key, value, 1e-6))
    assert (dense(query - 16, key, value, 1e-6) - dense(query - 16, key, value)).abs().max() > 0.01


@pytest.mark.parametrize("causal", [False, True])
def test_a_row_of_features_that_underflow_is_zero(causal):
    """phi(-200) is zero in float32; without eps so is the denominator."""
    query, key, value = (x.float().requires_grad_() for x in qkv())
    out = make(eps=0, causal=causal, dtype=torch.float32)(query - 200, key, value)
    gradients = torch.autograd.grad(out.sum(), (query, key, value))
    assert (out == 0).all() and all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n, block_size", [(16, 8), (16, 16), (N, 5)])
def test_flops_are_those_of_the_products_that_run(causal, n, block_size):
    attention = make(causal=causal, block_size=block_size, impl="reference")
    assert sum(count(lambda: attention(*qkv(n))).values()) == attention.flops(2, n)
