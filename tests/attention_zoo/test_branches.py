"""Hybrids without a branch, held against the mechanisms that a branch is by itself."""

import pytest
import torch

from attention_zoo import UnsupportedError, create
from attention_zoo.branches import BRANCHES, WithoutBranch, branches

SIZES = {"head_dim": 8, "num_heads": 2, "causal": True, "dtype": torch.float64}
HYBRID = {"local": True, "block_size": 8, "sketch_size": 4}


def inputs(seq_len=29):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 2, 2, seq_len, 8, dtype=torch.float64, generator=generator).unbind(0)


@pytest.mark.parametrize("sketch", ["gaussian", "learned", "srht"])
def test_without_its_sketch_a_hybrid_is_local_attention(sketch):
    hybrid = create("polysketch", sketch=sketch, **HYBRID, **SIZES)
    local = create("local", weights="polynomial", block_size=8, separate_norms=sketch == "learned", **SIZES)
    torch.testing.assert_close(WithoutBranch(hybrid, "sketch")(*inputs()), local(*inputs()))


def test_without_its_window_a_hybrid_is_the_sketch_of_the_other_blocks():
    hybrid = create("polysketch", **HYBRID, **SIZES)
    query, key, value = inputs()
    block = torch.arange(29) // 8
    weights = (hybrid.features(query) @ hybrid.features(key).mT).square() * (block[:, None] > block)
    expected = weights / (1 + weights.sum(-1, keepdim=True)) @ value
    torch.testing.assert_close(WithoutBranch(hybrid, "window")(query, key, value), expected)


@pytest.mark.parametrize("sketch", ["gaussian", "learned"])
def test_the_parts_of_the_numerator_add_up_to_the_hybrid(sketch):
    hybrid = create("polysketch", sketch=sketch, **HYBRID, **SIZES)
    parts = [WithoutBranch(hybrid, branch, keeps_denominator=True)(*inputs()) for branch in BRANCHES]
    torch.testing.assert_close(sum(parts), hybrid(*inputs()))


def test_only_hybrids_have_branches():
    assert branches(create("polysketch", **HYBRID, **SIZES)) == BRANCHES
    for other in (create("polysketch", **SIZES), create("softmax", **SIZES)):
        assert branches(other) == ()
        with pytest.raises(UnsupportedError, match="has no branches here"):
            WithoutBranch(other, "sketch")
