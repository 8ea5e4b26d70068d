import pytest
import torch
from small import maker, sized, softmax

EPS = torch.finfo(torch.float64).eps  # of each of 11 terms
qkv, make = sized(11), maker("v_mean")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_is_softmax_attention_with_zero_queries(causal, padded):
    query, key, value = qkv()
    mask = torch.zeros(2, 11, dtype=torch.bool)
    mask[0, [0, 1, 5, 10]] = padded  # causal: the first two positions see padding only
    expected = softmax(0 * query, key, value, mask, causal=causal)
    actual = make(causal=causal)(query, key, value, mask)
    torch.testing.assert_close(actual, expected, rtol=0, atol=11 * EPS)
    assert (actual[0, :, :2] == 0).all() == (causal and padded)


@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16_rounds_once(causal):
    """Nothing but the result is rounded to 8 bits: the error is at most half a unit in the last place."""
    value = torch.rand(1, 1, 5000, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    attention = make(num_heads=1, causal=causal)
    exact = attention(*[value.double()] * 3)
    assert ((attention(value, value, value) - exact).abs() <= 2**-8 * 1.001 * exact).all()


def test_output_has_memory_of_its_own():
    query, key, value = qkv()
    output = make()(query, key, value)
    expected = output[:, :, 1:].clone()
    output[:, :, 0] += 1
    assert torch.equal(output[:, :, 1:], expected)
