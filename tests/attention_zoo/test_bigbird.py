import math

import numpy as np
import pytest
import torch
from small import HEADS, H, LargestTensor, maker, sized
from transformers import BigBirdConfig
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

W = 3
qkv, create = sized(31), maker("bigbird")


def make(r=2, w=W, **given):
    return create(block_size=w, num_random_blocks=r, **given)


def scattered_padding(n):
    """Whole blocks and single tokens; the second item has nothing left but one token in the middle."""
    mask = torch.zeros(2, n, dtype=torch.bool)
    mask[0, : W + 1] = mask[0, n // 2 : n // 2 + 2 * W] = mask[0, -2:] = True
    mask[1] = True
    mask[1, n // 2] = False
    return mask


def random_blocks(attention, num_blocks):
    """`[head][row - 1]`: the random blocks of the query blocks 1 to num_blocks - 2, without the fillers."""
    drawn = attention.key_blocks(num_blocks)[..., 5:].tolist()
    return [[[block for block in row if block > 0] for row in rows] for rows in drawn]


def legal_blocks(row, num_blocks):
    return [block for block in range(1, num_blocks - 1) if abs(block - row) > 1]


def seen_blocks(attention, num_blocks):
    """The pattern of the paper from the random blocks, `[head][row]`: a set."""
    every = set(range(num_blocks))
    return [
        [
            every if row in (0, num_blocks - 1) else {0, num_blocks - 1, row - 1, row, row + 1, *random_rows[row - 1]}
            for row in range(num_blocks)
        ]
        for random_rows in random_blocks(attention, num_blocks)
    ]


def dense(attention, query, key, value, mask=None):
    """Softmax over the pattern, one query after the other."""
    n, w = query.shape[2], attention.block_size
    blocks = seen_blocks(attention, math.ceil(n / w))
    output = torch.zeros_like(query)
    for b, head, i in np.ndindex(*query.shape[:3]):
        seen = [j for j in range(n) if j // w in blocks[head][i // w] and not (mask is not None and mask[b, j])]
        if seen:
            scores = key[b, head, seen] @ query[b, head, i] / math.sqrt(query.shape[3])
            output[b, head, i] = scores.softmax(0) @ value[b, head, seen]
    return output


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("n, r", [(1, 2), (7, 2), (12, 0), (15, 0), (18, 2), (31, 2), (31, 40)])
def test_equals_softmax_over_the_pattern(n, r, padded):
    attention, given, mask = make(r, seed=1), qkv(n), scattered_padding(n) if padded else None
    torch.testing.assert_close(attention(*given, mask), dense(attention, *given, mask), rtol=0, atol=1e-13)


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 4, 5, 6, 7, 8, 20])
@pytest.mark.parametrize("r", [0, 1, 3, 30])
def test_random_blocks_are_legal_distinct_and_as_many_as_possible(num_blocks, r):
    for seed in range(8):
        drawn = random_blocks(make(r, seed=seed), num_blocks)
        assert len(drawn) == HEADS
        for rows in drawn:
            assert len(rows) == max(num_blocks - 2, 0)
            for row, blocks in enumerate(rows, start=1):
                legal = legal_blocks(row, num_blocks)
                assert set(blocks) <= set(legal)
                assert len(set(blocks)) == len(blocks) == min(r, len(legal))


def test_random_blocks_are_uniform_over_the_legal_ones_near_and_far():
    """Chi-square for each row of 32 blocks, 2048 tokens at w = 64: official plans stop after 704.

    L blocks are legal. Counts of r draws without replacement vary less, by (L - r) / (L - 1), than those of
    independent draws, for which the statistic has L - 1 degrees of freedom.
    """
    num_blocks, r, seeds, heads = 32, 3, 400, 8
    attention = make(r, w=64, num_heads=heads)
    counts = torch.zeros(num_blocks - 2, num_blocks)
    for seed in range(seeds):
        attention.resample(seed)
        drawn = attention.key_blocks(num_blocks)[..., 5:].transpose(0, 1).flatten(1)
        counts.scatter_add_(1, drawn, torch.ones(drawn.shape))
    draws = seeds * heads
    for row in range(1, num_blocks - 1):
        legal = legal_blocks(row, num_blocks)
        expected = draws * r / len(legal)
        statistic = ((counts[row - 1, legal] - expected) ** 2 / expected).sum() * (len(legal) - 1) / (len(legal) - r)
        freedom = len(legal) - 1
        assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom)
        assert counts[row - 1].sum() == draws * r


def test_tensors_grow_linearly():
    """2^14 tokens: a dense matrix, even one bool for each entry, would have 2^28 entries."""
    n, w, r = 2**14, 16, 3
    attention = make(r, w=w, num_heads=1, dtype=torch.float32)
    given = torch.randn(3, 1, 1, n, H, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), LargestTensor() as largest:
        attention(*given)
    assert largest.entries <= n * (5 + r) * w


class TransformersBigBird(BigBirdBlockSparseAttention):
    """With random blocks that are given."""

    def _bigbird_block_rand_mask_with_head(self, *given, **named):
        return self.blocks.numpy()

    def attend(self, query, key, value, mask):
        n = query.shape[2]
        blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(
            (~mask).double(), self.block_size
        )
        settings = (self.num_attention_heads, self.num_random_blocks, H, W, W, len(query), n, n)
        masks = (band, rows, columns, blocked, blocked)
        named = {"seed": 0, "plan_from_length": None, "plan_num_rand_blocks": None}
        return self.bigbird_block_sparse_attention(query, key, value, *masks, *settings, **named)[0].transpose(1, 2)


@pytest.mark.parametrize("padded", [False, True])
def test_equals_transformers_with_our_random_blocks(padded):
    r, num_blocks = 2, 11
    n = num_blocks * W
    config = BigBirdConfig(
        hidden_size=HEADS * H, num_attention_heads=HEADS, num_random_blocks=r, block_size=W, max_position_embeddings=n
    )
    theirs, attention, given = TransformersBigBird(config), make(r), qkv(n)
    mask = torch.zeros(2, n, dtype=torch.bool)
    if padded:
        mask[0, -W - 1 :] = mask[1, 1:3] = mask[1, 4 * W : 6 * W] = True
    output = attention(*given, mask).masked_fill(mask[:, None, :, None], 0)  # theirs zeroes padded queries
    theirs.blocks = attention.key_blocks(num_blocks)[..., 5:]
    torch.testing.assert_close(theirs.attend(*given, mask), output, rtol=0, atol=1e-12)
