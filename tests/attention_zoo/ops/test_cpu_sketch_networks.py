"""The networks of a learned sketch on a CPU, against their formula and, as part of a mechanism, its reference."""

import operations
import pytest
import torch
from small import maker, outcomes, padding_mask, sized

from attention_zoo.ops.sketch_networks import cpu as networks

HEADS, H, N = 2, 8, 45
qkv, create = sized(N, h=H, batch=3), maker("polysketch", head_dim=H, causal=True, sketch="learned", local=True)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several tiles, and a part of one."""
    monkeypatch.setattr(networks, "ENTRIES", 3000)


def parameters(width, r, groups):
    return [x.cpu().double() for x in operations.network_parameters(width, r, groups)]


by_cpu, by_formula = operations.networks_by(networks, 1)


@pytest.mark.parametrize(
    ("r", "degree", "per_head", "qk_layernorm", "padded"),
    [(16, 4, False, True, True), (16, 4, True, False, False), (16, 8, True, True, True), (32, 8, False, False, False)],
)
def test_a_mechanism_with_it_is_its_reference(r, degree, per_head, qk_layernorm, padded):
    given = {"sketch_size": r, "degree": degree, "per_head": per_head, "qk_layernorm": qk_layernorm, "block_size": 8}
    reference, fused = (create("polysketch", impl=impl, **given) for impl in ("reference", "fused"))
    tensors, mask = qkv(N), padding_mask(N) if padded else None
    tensors = [x.mT.contiguous().mT for x in tensors]
    expected, actual = (outcomes(attention, tensors, mask) for attention in (reference, fused))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12 * max(1, float(other.abs().max())))


def test_a_row_of_equal_numbers_is_finite():
    x = torch.full((1, 1, 3, 16), 5.0, dtype=torch.float64)
    given = parameters(16, 16, 1)
    torch.testing.assert_close(by_cpu(x, *given), by_formula(x, *given))


def test_bfloat16_is_that_of_float32_rounded():
    x, given = operations.drawn(1, HEADS, 9, 16).cpu().bfloat16(), [p.float() for p in parameters(16, 16, 1)]
    made = by_cpu(x, *given)
    assert made.dtype == torch.bfloat16
    torch.testing.assert_close(made, by_cpu(x.float(), *given).bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("onednn", ["not built in", "without the private operator"])
def test_without_onednn_it_is_the_formula(onednn, monkeypatch):
    """With it: test_operations.py."""
    assert networks.ONEDNN is not None  # a PyTorch that has it no more is slower, and right
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: onednn != "not built in")
    if onednn == "without the private operator":
        monkeypatch.setattr(networks, "ONEDNN", None)
    given = [operations.drawn(2, HEADS, 64, 16).cpu(), *(p.float() for p in parameters(16, 16, 1))]
    operations.assert_equals_formula(by_cpu, by_formula, given, 1e-5)


def test_what_a_backward_pass_reads_is_made_for_one_only(monkeypatch):
    x, given, made = operations.drawn(1, HEADS, 9, 16).cpu(), [p.float() for p in parameters(16, 16, 1)], []
    operator = networks._networks
    monkeypatch.setattr(networks, "_networks", lambda *arguments: made.append(operator(*arguments)) or made[-1])
    by_cpu(x, *given)
    by_cpu(x.requires_grad_(), *given)
    (_,), (_, *kept) = made
    # Normalised rows and results of both networks, and the deviations: 8r hidden units are not.
    assert sum(one.numel() for one in kept) == HEADS * 9 * 2 * (16 + 1 + 16)
