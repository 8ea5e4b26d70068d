import pytest
import torch
from small import H, assert_close, maker, sized

N = 9
qkv, make = sized(N), maker("polynomial", qk_layernorm=False)


def tensor_power(x, degree):
    """The explicit features x^{tensor p}, h^p of them."""
    features = x
    for _ in range(degree - 1):
        features = torch.einsum("...i,...j->...ij", features, x).flatten(-2)
    return features


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("degree", [2, 4, 6])
def test_equals_linear_attention_with_the_explicit_features(degree, causal):
    query, key, value = qkv()
    left, right = tensor_power(query, degree), tensor_power(key, degree)
    sums = (right[..., :, None] * value[..., None, :]).cumsum(2), right.cumsum(2)
    state, total = sums if causal else (x[:, :, -1:].expand_as(x) for x in sums)
    expected = torch.einsum("bhnf,bhnfd->bhnd", left, state) / (1 + (left * total).sum(-1, keepdim=True))
    # Terms of both signs cancel in a product of features: it rounds as the product of their sizes.
    sizes, weights = (query.abs() @ key.abs().mT) ** degree, (query @ key.mT) ** degree
    cancelled = (sizes.sum(-1) / (1 + (weights.tril() if causal else weights).sum(-1))).max().item()
    assert_close(make(degree=degree, causal=causal)(query, key, value), expected, 1e-14 * max(1, cancelled))


def test_layernorm_comes_first_and_is_shared():
    attention, (query, key, value) = make(qk_layernorm=True), qkv()
    gain, shift = torch.randn(2, H, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        attention.layernorm.weight.copy_(gain)
        attention.layernorm.bias.copy_(shift)

    def normed(x):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain + shift

    assert_close(attention(query, key, value), make()(normed(query), normed(key), value), 1e-10)


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_scale_moves_into_the_bias(degree):
    """(s c)^p / (s^p + sum (s c')^p) = c^p / (1 + sum c'^p), and it is not the same with bias 1."""
    expected, scale = make(degree=degree)(*qkv()), 0.5
    assert_close(make(degree=degree, scale=scale, bias=scale**degree)(*qkv()), expected)
    assert_close(make(degree=degree)(scale * qkv()[0], *qkv()[1:]), make(degree=degree, scale=scale)(*qkv()))
    assert (make(degree=degree, scale=scale)(*qkv()) - expected).abs().max() > 0.01


@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("degree", [2, 8, 16])
def test_rows_of_any_size_are_exact(degree, bias):
    """Scores of 1e-3 to 1e3, the future's largest: their powers, 1e-48 to 1e48, are no 32-bit floats."""
    _, key, value = qkv(64, h=16)
    sizes = 10 ** torch.linspace(-3, 3, 64).double()[:, None]
    directions = torch.nn.functional.normalize(key, dim=-1)  # the same for both: self weights are the largest
    common = {"degree": degree, "bias": bias, "head_dim": 16}
    for causal in (False, True):
        for given in ((directions, sizes * directions, value), (sizes * directions, directions, value)):
            rounded = [x.float().requires_grad_() for x in given]
            out = make(**common, causal=causal, dtype=torch.float32)(*rounded)
            exact = make(**common, causal=causal)(*(x.detach().double() for x in rounded))
            torch.testing.assert_close(out.double(), exact, rtol=1e-5 * degree, atol=1e-5 * degree)
            assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), rounded))


def test_a_row_of_zero_weights_without_bias_is_zero():
    query, key, value = qkv()
    query = query.clone().requires_grad_()
    out = make(bias=0)(torch.zeros_like(query) * query, key, value)
    out.sum().backward()
    assert (out == 0).all() and query.grad.isfinite().all()
