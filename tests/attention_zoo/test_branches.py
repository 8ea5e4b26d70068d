"""Hybrids without a branch, held against the mechanisms that a branch is by itself."""

import pytest
import torch
from small import maker, sized

from attention_zoo import UnsupportedError
from attention_zoo.branches import BRANCHES, WithoutBranch, branches

qkv, create = sized(29, h=8), maker("polysketch", head_dim=8, causal=True)
HYBRID = {"local": True, "block_size": 8, "sketch_size": 4}


@pytest.mark.parametrize("sketch", ["gaussian", "learned", "srht"])
def test_without_its_sketch_a_hybrid_is_local_attention(sketch):
    hybrid = create(sketch=sketch, **HYBRID)
    local = create("local", weights="polynomial", block_size=8, separate_norms=sketch == "learned")
    torch.testing.assert_close(WithoutBranch(hybrid, "sketch")(*qkv()), local(*qkv()))


def test_without_its_window_a_hybrid_is_the_sketch_of_the_other_blocks():
    hybrid = create(**HYBRID)
    query, key, value = qkv()
    block = torch.arange(29) // 8
    weights = (hybrid.features(query) @ hybrid.features(key).mT).square() * (block[:, None] > block)
    expected = weights / (1 + weights.sum(-1, keepdim=True)) @ value
    torch.testing.assert_close(WithoutBranch(hybrid, "window")(query, key, value), expected)


@pytest.mark.parametrize("sketch", ["gaussian", "learned"])
def test_the_parts_of_the_numerator_add_up_to_the_hybrid(sketch):
    hybrid = create(sketch=sketch, **HYBRID)
    parts = [WithoutBranch(hybrid, branch, keeps_denominator=True)(*qkv()) for branch in BRANCHES]
    torch.testing.assert_close(sum(parts), hybrid(*qkv()))


def test_only_hybrids_have_branches():
    assert branches(create(**HYBRID)) == BRANCHES
    for other in (create(), create("softmax")):
        assert branches(other) == ()
        with pytest.raises(UnsupportedError, match="has no branches here"):
            WithoutBranch(other, "sketch")
