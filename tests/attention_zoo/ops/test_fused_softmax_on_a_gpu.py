"""`ops.fused_softmax` with the kernels of a GPU, or of `fake_kernels`, which refuse what those refuse."""

import closeness
import pytest
import torch
from operations import softmax as with_all_scores
from small import padding_mask
from test_fused_softmax import HEADS, masks, qkv, with_gradients

from attention_zoo.ops.fused_softmax import HIDDEN, attend, hidden_by, is_blind
from attention_zoo.skeinformer import geometric_mean, merge

DEVICE = "cuda" if torch.cuda.is_available() else pytest.importorskip("fake_accelerator", exc_type=ImportError).DEVICE
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


def assert_near(actual, expected, dtype):
    """Rounded once as a weight and once as a result, both with the error of a row's largest entries."""
    assert actual.device.type == DEVICE
    actual, expected = actual.detach().cpu().double(), expected.detach().double()
    seen = expected > HIDDEN / 2
    assert torch.equal(actual > HIDDEN / 2, seen) and actual.isfinite().all()
    allowed = 4 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps * 8)
    closeness.assert_near(actual[seen], expected[seen], allowed, smallest=1e-30)


@every_dtype
@pytest.mark.parametrize("h", [8, 12, 248, 256])
def test_output_log_sum_exp_and_gradients_are_those_of_float64(h, dtype):
    for queries, keys in ((13, 37), (21, 21)):
        tensors = [x.repeat_interleave(-(-h // 12), -1)[..., :h] for x in qkv(queries, keys, dtype=dtype)]
        for hidden in masks(queries, keys):
            scale = 0.3 * 12 / h
            there = None if hidden is None else hidden.to(DEVICE)
            actual = with_gradients(
                lambda *x, s=scale, m=there: attend(*x, hidden=m, scale=s), [x.to(DEVICE) for x in tensors]
            )
            expected = with_gradients(
                lambda *x, s=scale, m=hidden: with_all_scores(*x, hidden=m, scale=s), [x.double() for x in tensors]
            )
            assert actual[0].dtype == dtype and actual[1].dtype == torch.float32
            for one, other in zip(actual, expected, strict=True):
                assert_near(one, other, dtype)


def laid_out():
    """Layouts that a caller may bring."""
    return {
        "heads side by side": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        "one tensor for three": lambda x: torch.cat([x] * 3, -1)[..., 8:16],
        "from the fourth column on": lambda x: torch.cat([x, x], -1)[..., 4:12],
        "columns first": lambda x: x.mT.contiguous().mT,
        "behind another number": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
        "one for all heads": lambda x: x[:, :1].expand_as(x),
    }


@pytest.mark.parametrize("layout", laid_out().values(), ids=laid_out())
def test_every_layout_is_taken(layout):
    tensors = [x[..., :8].contiguous() for x in qkv(13, 37, dtype=torch.bfloat16)]
    hidden = hidden_by(padding_mask(37))
    for mask in (None, hidden):
        out = attend(
            *(layout(x.to(DEVICE)) for x in tensors), scale=0.3, hidden=None if mask is None else mask.to(DEVICE)
        )
        expected = with_all_scores(*(layout(x).double() for x in tensors), scale=0.3, hidden=mask)
        assert_near(out.out, expected[0], torch.bfloat16)
        assert_near(out.lse, expected[1], torch.bfloat16)


@every_dtype
def test_rows_that_see_nothing_are_zeros_and_have_no_gradient(dtype):
    tensors = [x.to(DEVICE).requires_grad_() for x in qkv(5, 9, dtype=dtype)]
    mask = torch.zeros(len(tensors[0]), 1, 5, 9, dtype=torch.bool)
    mask[1, :, 2] = True
    out, lse, _ = attend(*tensors, scale=0.3, hidden=mask.to(DEVICE))
    assert is_blind(lse).cpu().nonzero()[:, [0, 2]].tolist() == [[1, 2]] * HEADS
    assert not out[1, :, 2].cpu().any() and out.cpu().isfinite().all() and lse.cpu().isfinite().all()
    query_gradient, *others = torch.autograd.grad(out.float().sum() + lse.masked_fill(is_blind(lse), 0).sum(), tensors)
    assert not query_gradient[1, :, 2].cpu().any()
    assert all(x.cpu().isfinite().all() for x in (query_gradient, *others))


@pytest.mark.parametrize("device", ["cpu", DEVICE])
@pytest.mark.parametrize("count", [3, 1016, 20_011])
@pytest.mark.parametrize("zero", [True, False], ids=["equal scores", "random scores"])
def test_a_count_is_exact_in_bfloat16(count, zero, device):
    """The logarithm of 20,011 in bfloat16 would make the weight of as many keys 3 % smaller."""
    query, keys, values = (x[:1, :1].to(device) for x in qkv(7, 5, dtype=torch.bfloat16))
    if zero:
        keys = torch.zeros_like(keys)
    value = torch.zeros(1, 1, count, 12, dtype=torch.bfloat16, device=device)  # all that is left is what the few weigh
    shown = torch.ones(1, 1, 1, 5, dtype=torch.bool, device=device)
    others = torch.ones(1, 1, 1, count, dtype=torch.bool, device=device)
    sampled = attend(query, keys, values, scale=0.3)
    merged = merge(sampled, geometric_mean(query, keys, value, shown, others, 0.3))
    exact = [x.cpu().double() for x in (query, keys, values, value)]
    of_mean = 0.3 * exact[0] @ exact[1].mean(2, keepdim=True).bfloat16().double().mT
    scores = torch.cat([0.3 * exact[0] @ exact[1].mT, of_mean.expand(-1, -1, -1, count)], -1)
    out = scores.softmax(-1) @ torch.cat([exact[2], exact[3]], 2)
    closeness.assert_near(merged.lse.cpu(), scores.logsumexp(-1), 1e-6)
    closeness.assert_near(merged.out.cpu(), out, 2 * torch.finfo(torch.bfloat16).eps)
