"""`(out, log-sum-exp)` of PyTorch's kernels against all scores in memory, and what is put together from it."""

import operations
import pytest
import torch
from closeness import assert_near, assert_within
from operations import softmax as with_all_scores
from small import padding_mask, sized

from attention_zoo.ops import fused_softmax
from attention_zoo.ops.fused_softmax import HIDDEN, attend, attend_with_column_norms, hidden_by, is_blind, merge

BATCH, HEADS, H = 3, 2, 12
LENGTHS = [(1, 1), (1, 7), (37, 37), (70, 515), (515, 3)]
qkv = sized(H, HEADS, H, BATCH)


def masks(queries, keys):
    yield None
    yield hidden_by(padding_mask(keys))
    yield torch.rand(1, HEADS, queries, keys, generator=torch.Generator().manual_seed(3)) < 0.4


def with_gradients(function, tensors):
    """Output, log-sum-exp and the gradients of both, but for that of rows that see nothing."""

    def upstream(x):
        return operations.direction(x).masked_fill(is_blind(x), 0)

    return operations.with_gradients(lambda *given: function(*given)[:2], tensors, upstream)


def assert_equal(actual, expected, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=atol)


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_output_log_sum_exp_and_gradients_are_those_of_all_scores(queries, keys):
    tensors = qkv(queries, keys)
    for hidden in masks(queries, keys):
        settings = {"scale": 0.3, "hidden": hidden}
        actual = with_gradients(lambda *x, s=settings: attend(*x, **s), tensors)
        assert_equal(actual, with_gradients(lambda *x, s=settings: with_all_scores(*x, **s), tensors))


def test_the_gradient_of_the_log_sum_exp_alone():
    query, key, value = (x.requires_grad_() for x in qkv(9, 11))
    lse = attend(query, key, value, scale=0.3).lse
    gradients = torch.autograd.grad(lse.square().sum(), [query, key, value])
    expected = torch.autograd.grad((0.3 * query @ key.mT).logsumexp(-1).square().sum(), [query, key])
    assert_equal(gradients[:2], expected)
    assert not gradients[2].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_in_less_precision(dtype):
    tensors = qkv(70, 130, dtype=dtype)
    hidden = hidden_by(padding_mask(130))
    actual = with_gradients(lambda *x: attend(*x, scale=0.3, hidden=hidden), tensors)
    expected = with_gradients(lambda *x: with_all_scores(*x, scale=0.3, hidden=hidden), [x.double() for x in tensors])
    assert actual[0].dtype == dtype and actual[1].dtype == torch.float32
    for one, other in zip(actual, expected, strict=True):
        keep = torch.isfinite(other) & (other > HIDDEN / 2)
        error = (one.double() - other)[keep].norm() / other[keep].norm()
        assert_within(error, {torch.float32: 2e-6, torch.bfloat16: 1.5e-2}[dtype])


every_function = pytest.mark.parametrize(
    "function", [attend, lambda *x, **y: attend_with_column_norms(*x, **y)[0]], ids=["attend", "with_column_norms"]
)


@every_function
def test_large_scores_do_not_overflow(function):
    query, key, value = qkv(6, 9, dtype=torch.float32)
    out, lse, _ = function(1e5 * query, 1e5 * key, value, scale=1.0)
    scores = query @ key.mT
    best = scores.argmax(-1, keepdim=True)
    torch.testing.assert_close(out, value.take_along_dim(best, 2))
    torch.testing.assert_close(lse, 1e10 * scores.amax(-1), rtol=1e-5, atol=0)
    norms = attend_with_column_norms(1e5 * query, 1e5 * key, value, scale=1.0)[1]
    torch.testing.assert_close(norms, torch.zeros_like(scores).scatter(-1, best, 1).sum(2).sqrt())


@every_function
def test_a_hidden_key_is_below_any_score(function):
    """A query that sees two keys of very small scores does not see the hidden ones, and is not blind."""
    query, key = torch.ones(1, 1, 2, H), -1e6 * torch.ones(1, 1, 5, H)
    key[:, :, 3] *= -1
    value = torch.arange(5.0)[None, None, :, None].repeat(1, 1, 1, H)
    mask = torch.tensor([[False, True, False, True, True]])
    out, lse, _ = function(query, key, value, scale=1.0, hidden=hidden_by(mask))
    torch.testing.assert_close(out, torch.ones_like(out))
    torch.testing.assert_close(lse, torch.full((1, 1, 2), -1e6 * H))


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_results_over_disjoint_keys_merge(parts):
    query, key, value = qkv(13, 40)
    hidden = hidden_by(padding_mask(40))

    def merged(query, key, value):
        pieces = zip(
            key.tensor_split(parts, 2), value.tensor_split(parts, 2), hidden.tensor_split(parts, 3), strict=True
        )
        first, *others = [attend(query, k, v, scale=0.3, hidden=b) for k, v, b in pieces]
        for other in others:
            first = merge(first, other)
        return first

    expected = with_gradients(lambda *x: attend(*x, scale=0.3, hidden=hidden), (query, key, value))
    assert_equal(with_gradients(merged, (query, key, value)), expected)


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("entries", [1, 2**20])
def test_column_norms_are_those_of_the_weights(entries, padded, monkeypatch):
    monkeypatch.setattr(fused_softmax, "ENTRIES", entries)
    query, key, value = qkv(10, 17)
    hidden = hidden_by(padding_mask(17)) if padded else None
    found = []

    def function(*tensors):
        attended, norms = attend_with_column_norms(*tensors, scale=0.3, hidden=hidden)
        found.append(norms)
        return attended

    actual = with_gradients(function, (query, key, value))
    assert_equal(actual, with_gradients(lambda *x: with_all_scores(*x, scale=0.3, hidden=hidden), (query, key, value)))
    scores = 0.3 * query @ key.mT
    weights = (scores if hidden is None else scores.masked_fill(hidden, -torch.inf)).softmax(-1)
    seen = slice(0, 2) if padded else slice(0, 3)  # padding only has no norms
    torch.testing.assert_close(found[0][seen], weights.norm(dim=2)[seen], rtol=1e-12, atol=1e-14)
    assert not found[0].requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_column_norms_in_less_precision(dtype):
    tensors = qkv(70, 130, dtype=dtype)
    (_, lse, _), norms = attend_with_column_norms(*tensors, scale=0.3)
    (_, expected_lse, _), expected = attend_with_column_norms(*(x.double() for x in tensors), scale=0.3)
    assert lse.dtype == norms.dtype == torch.float32
    assert_near([norms, lse], [expected, expected_lse], 1e-5)


def test_column_norms_of_other_devices_are_the_same():
    query, key, value = qkv(10, 17)
    hidden = hidden_by(padding_mask(17))
    attended, norms = attend_with_column_norms(query, key, value, scale=0.3, hidden=hidden)
    other = fused_softmax._norms(query, key, fused_softmax._bias(hidden, query, 17), attended.lse, 0.3)
    assert_equal([other[:2]], [norms[:2]])  # padding only has none


def test_autocast_casts_as_pytorch_does():
    query, key, value = qkv(20, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend(query.bfloat16(), key, value, scale=0.3).out
        expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=0.3)
    assert out.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected)
    halves = [x.bfloat16() for x in (query, key, value)]
    expected = attend_with_column_norms(*halves, scale=0.3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        attended, norms = attend_with_column_norms(*halves, scale=0.3)
    torch.testing.assert_close((attended.out, norms), (expected[0].out, expected[1]), rtol=0, atol=0)


def test_memory_is_linear_with_masks_too():
    """n = 6,000: the scores of a head would take 144 MB."""
    query, key, value = torch.randn(3, 1, 1, 6000, 8)
    mask = torch.arange(6000)[None] >= 5000
    with torch.profiler.profile(profile_memory=True) as profile:
        attend(query, key, value, scale=1.0, hidden=hidden_by(mask))
    largest = max((event.cpu_memory_usage for event in profile.key_averages()), default=0)
    assert largest < 2**24
