import pytest
import torch
import torch.nn.functional as F
from small import H, assert_close, maker, padding_at, sized
from torch.nn.attention import SDPBackend, sdpa_kernel

N = 7
qkv, make = sized(N), maker("softmax")


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("causal", [False, True])
def test_equals_torchs_scaled_dot_product_attention(causal, scale):
    query, key, value = qkv()
    mask = padding_at(N, [], [2, 3])
    visible = ~mask[:, None, None, :].expand(-1, 1, N, -1)
    with sdpa_kernel(SDPBackend.MATH):
        full = F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)
        visible = visible.tril() if causal else visible
        padded = F.scaled_dot_product_attention(query, key, value, visible, scale=scale)
    assert_close(make(causal=causal, scale=scale)(query, key, value), full)
    assert_close(make(causal=causal, scale=scale)(query, key, value, mask), padded)


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


@pytest.mark.parametrize("autocast", [False, True])
def test_scores_beyond_float16_are_right(autocast):
    """Weights are between 0 and 1, whatever the scores; 400 squared is not a number in float16."""
    query, key, value = (scale * x.half() for scale, x in zip((400, 400, 1), qkv(), strict=True))
    expected = make()(query.double(), key.double(), value.double())
    given = [x.float() if autocast else x for x in (query, key, value)]
    with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
        out = make(dtype=torch.float32 if autocast else torch.float16)(*given)
    torch.testing.assert_close(out.double(), expected, rtol=2e-3, atol=2e-3)
