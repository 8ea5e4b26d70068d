import math

import numpy as np
import pytest
import scipy.special
import torch
from closeness import assert_near, assert_within
from small import HEADS, H, assert_moments, heads_of, hidden_state, maker, padding_at, sized, softmax
from transformers import NystromformerConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

from attention_zoo.nystromformer import pseudo_inverse

CONVERGED = 32
draw, make = sized(12), maker("nystromformer")
PADDING = padding_at(12, [0, 3, 4, 5, 6, 10], slice(3, None))


def qkv(n=12, scale=1.0, **given):
    query, key, value = draw(n, **given)
    return scale * query, key, value


def means(x, m):
    """One after the other; n = 11 and m = 4 give segments of 2, 3, 3 and 3."""
    n = len(x)
    return np.stack([x[j * n // m : (j + 1) * n // m].mean(0) for j in range(m)])


def hyperpower(a, iterations):
    """The iteration with its brackets multiplied out."""
    z = a.T / (np.abs(a).sum(0).max() * np.abs(a).sum(1).max())
    for _ in range(iterations):
        az = a @ z
        z = z @ (13 * np.eye(len(a)) - 15 * az + 7 * az @ az - az @ az @ az) / 4
    return z


def formula(query, key, value, m, iterations):
    """F Z B V for one head `(n, h)` without padding."""
    landmarks = means(query, m), means(key, m)
    f, a, b = (
        scipy.special.softmax(left @ right.T / math.sqrt(query.shape[1]), axis=1)
        for left, right in ((query, landmarks[1]), landmarks, (landmarks[0], key))
    )
    return f @ hyperpower(a, iterations) @ b @ value


@pytest.mark.parametrize("iterations", [1, 6])
@pytest.mark.parametrize("n, m", [(12, 4), (11, 4), (11, 7), (11, 1), (5, 8), (1, 3)])
def test_equals_the_formula_head_by_head(n, m, iterations):
    """`scale` makes the matrices of the batch differ in their largest column sum."""
    query, key, value = qkv(n)
    query[1] *= 5
    output = make(num_landmarks=m, iterations=iterations)(query, key, value)
    for b, head in np.ndindex(2, HEADS):
        one = (tensor[b, head].numpy() for tensor in (query, key, value))
        expected = formula(*one, min(m, n), iterations)
        np.testing.assert_allclose(output[b, head], expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("m", [12, 100])
@pytest.mark.parametrize("padded", [False, True])
def test_a_landmark_for_each_token_is_softmax_once_the_inverse_has_converged(m, padded):
    """Rounding costs up to eps over the square of A's smallest singular value; A is the softmax of real tokens."""
    mask = PADDING if padded else None
    given = qkv(scale=3)
    expected, matrices = softmax(*given, mask), maker("softmax")().attention_matrix(*given[:2], mask)
    real = ~(mask if padded else torch.zeros(2, 12, dtype=torch.bool))
    smallest = min(torch.linalg.svdvals(a[:, keep][..., keep]).min() for a, keep in zip(matrices, real, strict=True))
    converged = make(num_landmarks=m, iterations=CONVERGED)(*given, mask)
    assert_within((converged - expected).abs().max(), torch.finfo(torch.float64).eps / smallest**2)
    assert (make(num_landmarks=m)(*given, mask) - expected).abs().max() > 1e-3, "6 iterations are not enough"


def test_iterations_converge_to_the_pseudo_inverse_at_the_rate_of_the_polynomial():
    """An eigenvalue x of A Z becomes x (13 - 15 x + 7 x^2 - x^3) / 4: 1 - x becomes (1 - x)^3 (3 + (1 - x)) / 4."""
    kernel = torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(-1)
    column_sum, rounding = kernel.sum(1).amax(1), torch.finfo(torch.float64).eps * torch.linalg.cond(kernel).max() ** 2
    missing = 1 - torch.linalg.svdvals(kernel).square() / column_sum[:, None]
    for iterations in range(1, 15):
        missing = missing**3 * (3 + missing) / 4
        error = torch.eye(5) - kernel @ pseudo_inverse(kernel, iterations)
        expected = torch.linalg.norm(missing, dim=-1)
        assert_near(torch.linalg.norm(error, dim=(1, 2)), expected, 1e-9, smallest=1e9 * rounding)
    inverse = pseudo_inverse(kernel, CONVERGED)
    assert_near(
        inverse, torch.linalg.pinv(kernel), torch.finfo(torch.float64).eps * torch.linalg.cond(kernel).max() ** 2
    )


def test_equal_tokens_in_a_segment_are_softmax():
    """Landmarks lose nothing if a segment's tokens are equal: rows and columns of the softmax repeat, rank m."""
    query, key, value = (tensor.repeat_interleave(3, 2) for tensor in qkv(4, scale=3))
    output = make(num_landmarks=4, iterations=CONVERGED)(query, key, value)
    # B sums over three equal keys what A has once; its rows are normalised, so that they agree.
    torch.testing.assert_close(output, softmax(query, key, value), rtol=0, atol=1e-9)


@pytest.mark.parametrize("m", [1, 2, 5, 12, 20])
def test_a_padded_sequence_gives_what_it_gives_without_its_padding(m):
    """Padding anywhere, large enough to be noticed; some items have fewer tokens than m."""
    attention, mask = make(num_landmarks=m), PADDING
    given = [torch.where(mask[:, None, :, None], 30.0, tensor) for tensor in qkv()]
    output = attention(*given, mask)
    for b in range(2):
        expected = attention(*(tensor[b : b + 1, :, ~mask[b]] for tensor in given))
        torch.testing.assert_close(output[b : b + 1, :, ~mask[b]], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("padded", [False, True])
def test_the_convolution_adds_its_kernel_along_the_sequence(padded):
    n, size = 12, 5
    given, mask = qkv(n), PADDING if padded else None
    attention = make(num_landmarks=4, conv_kernel_size=size)
    added = attention(*given, mask) - make(num_landmarks=4)(*given, mask)
    value = given[2] if mask is None else given[2] * ~mask[:, None, :, None]
    weight = attention.conv_weight.detach()
    for head in range(HEADS):
        for i in range(n):
            reached = [(s, i + s - size // 2) for s in range(size) if 0 <= i + s - size // 2 < n]
            expected = sum(weight[head, 0, s, 0] * value[:, head, j] for s, j in reached)
            torch.testing.assert_close(added[:, head, i].detach(), expected, rtol=0, atol=1e-12)
    output, matrix = attention(*given, mask), attention.attention_matrix(*given[:2], mask)
    torch.testing.assert_close(matrix @ given[2], output, rtol=0, atol=1e-12)


def test_kernels_are_drawn_from_the_seed_uniformly_and_differ_by_head():
    size = 2001
    attention = make(num_landmarks=4, conv_kernel_size=size)
    weight = attention.conv_weight.detach().clone()
    assert not torch.equal(weight[0], weight[1])
    entries = weight.flatten() * math.sqrt(size)
    assert entries.abs().max() <= 1
    assert_moments(entries, 0, 1 / 3)
    attention.resample(1)
    assert not torch.equal(attention.conv_weight, weight)
    attention.resample(0)
    assert torch.equal(attention.conv_weight, weight)


@pytest.mark.parametrize("impl", ["reference", "fused"])
def test_bfloat16_is_good_to_its_digits_where_landmarks_nearly_coincide(impl):
    """A rounded to bfloat16 would not do: what little its rows differ by is what Z magnifies. A step is 2^-7."""
    query, key, value = qkv(256)
    given = [tensor.bfloat16() for tensor in (1 + query / 10, 1 + key / 10, value)]
    attention = make(num_landmarks=64, impl=impl)
    expected = attention(*(tensor.double() for tensor in given))
    assert_near(attention(*given), expected, 2**-7)


def test_equals_transformers():
    """With its start for each matrix, which its configuration cannot select: the key is misspelt, a KeyError."""
    n, m, size = 12, 4, 5
    config = NystromformerConfig(
        hidden_size=HEADS * H,
        num_attention_heads=HEADS,
        num_landmarks=m,
        segment_means_seq_len=n,
        conv_kernel_size=size,
        attention_probs_dropout_prob=0.0,
    )
    theirs = NystromformerSelfAttention(config)
    for index, name in enumerate(("query", "key", "value")):
        delattr(theirs, name)  # a module may only be replaced by a module
        setattr(theirs, name, lambda hidden, index=index: hidden.chunk(3, dim=-1)[index])
    attention = make(num_landmarks=m, conv_kernel_size=size)
    theirs.conv.weight = attention.conv_weight
    query, key, value = qkv(n)
    query[1] *= 5
    output = attention(query, key, value)

    def their_output():
        return heads_of(theirs(hidden_state(query, key, value))[0])

    # Theirs by default: one start for the whole batch, so that the second item changes the first.
    assert (their_output() - output).abs().max() > 1e-3
    theirs.init_option = "exact"
    torch.testing.assert_close(their_output(), output, rtol=0, atol=1e-12)
