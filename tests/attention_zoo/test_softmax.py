import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import attention_zoo

N, H, HEADS = 7, 4, 2


def qkv(n=N, keys=None, h=H):
    generator = torch.Generator().manual_seed(0)
    lengths = (n, keys or n, keys or n)
    return [torch.randn(2, HEADS, length, h, generator=generator, dtype=torch.float64) for length in lengths]


def make(**given):
    return attention_zoo.create("softmax", **({"head_dim": H, "num_heads": HEADS} | given))


def assert_close(actual, expected, tolerance=1e-12):
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 1.0, 0.3])
def test_equals_the_formula_entry_by_entry(scale, causal):
    query, key, value = qkv()
    mask = torch.zeros(2, N, dtype=torch.bool)
    mask[1, [2, 3]] = True
    out = make(causal=causal, scale=scale)(query, key, value, mask)
    factor = 1 / math.sqrt(H) if scale is None else scale
    for b in range(2):
        for head in range(HEADS):
            for i in range(N):
                seen = [j for j in range(N) if not mask[b, j] and (j <= i or not causal)]
                weights = [math.exp(factor * float(query[b, head, i] @ key[b, head, j])) for j in seen]
                expected = sum(w * value[b, head, j] for w, j in zip(weights, seen, strict=True)) / sum(weights)
                assert_close(out[b, head, i], expected)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("causal", [False, True])
def test_equals_torchs_scaled_dot_product_attention(causal, scale):
    query, key, value = qkv()
    mask = torch.zeros(2, N, dtype=torch.bool)
    mask[1, [2, 3]] = True
    visible = ~mask[:, None, None, :].expand(-1, 1, N, -1)
    with sdpa_kernel(SDPBackend.MATH):
        full = F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)
        visible = visible.tril() if causal else visible
        padded = F.scaled_dot_product_attention(query, key, value, visible, scale=scale)
    assert_close(make(causal=causal, scale=scale)(query, key, value), full)
    assert_close(make(causal=causal, scale=scale)(query, key, value, mask), padded)


@torch.no_grad()
@pytest.mark.parametrize("causal", [False, True])
def test_equals_torchs_multihead_attention_with_its_projections(causal):
    d = HEADS * H
    module = torch.nn.MultiheadAttention(d, HEADS, batch_first=True, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(2, N, d, generator=generator, dtype=torch.float64)
    mask = torch.zeros(2, N, dtype=torch.bool)
    mask[0, [1, 4]] = True
    future = torch.ones(N, N, dtype=torch.bool).triu(1) if causal else None
    expected, weights = module(x, x, x, key_padding_mask=mask, attn_mask=future, average_attn_weights=False)
    projected = F.linear(x, module.in_proj_weight, module.in_proj_bias).chunk(3, dim=-1)
    query, key, value = (y.unflatten(-1, (HEADS, H)).transpose(1, 2) for y in projected)
    attention = make(causal=causal)
    assert_close(attention.attention_matrix(query, key, mask), weights)
    heads = attention(query, key, value, mask).transpose(1, 2).flatten(2)
    assert_close(module.out_proj(heads), expected, 1e-11)


@pytest.mark.parametrize("causal", [False, True])
def test_a_vector_added_to_all_keys_shifts_a_row_and_changes_nothing(causal):
    attention, (query, key, value) = make(causal=causal), qkv()
    expected = attention(query, key, value)
    for size in (1, 1000):  # exp(1000) overflows float64
        assert_close(attention(query, key + size * torch.arange(H), value), expected, 1e-11)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_rows_that_see_nothing_are_zero_and_have_zero_gradients():
    """Padding on the left hides all that the first causal rows may see."""
    given = [x.requires_grad_() for x in qkv()]
    mask = (torch.arange(N) < 3).expand(2, N)
    with torch.autograd.detect_anomaly(check_nan=True):  # no NaN on the way either, hidden by a mask
        out = make(causal=True)(*given, mask)
        assert (out[:, :, :3] == 0).all()
        assert_close(out[:, :, 3:], make(causal=True)(*(x[:, :, 3:] for x in given)))
        out.square().sum().backward()
    assert all(x.grad.isfinite().all() and (x.grad[:, :, :3] == 0).all() for x in given)


@pytest.mark.parametrize("given", [{"scale": 0}, {"scale": float("nan")}])
def test_bad_hyperparameters_are_refused(given):
    with pytest.raises(ValueError, match=f"^{next(iter(given))}="):
        make(**given)
