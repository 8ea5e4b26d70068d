import math
from functools import partial

import pytest
import torch
from small import HEADS, H, assert_close, heads_of, hidden_state, maker, padding_at, sized
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

import attention_zoo

N, M, BATCH = 19, 5, 2
# Theirs gives a position's own key a score of -1e5, which cancels to 1e5 times float64's rounding.
SELF_SCORE_ROUNDING = 1e-10
qkv, make = sized(N), maker("reformer", bucket_size=M)
PADDING = padding_at(N, [0, 3, 4, 5, 11, 18], slice(2 * N // 3, None))


def qv(n=N, **given):
    return qkv(n, **given)[:2]


def attend(attention, query, value, mask=None):
    return attention(query, query, value, mask)


def rotations(seed, columns, rounds, heads=HEADS, h=H):
    """Gaussian by the quantiles of uniform noise, columns first; `(heads, rounds, columns, h)`."""
    noise = torch.rand(columns, heads * rounds * h, generator=torch.Generator().manual_seed(seed))
    gaussian = math.sqrt(2) * torch.erfinv(2 * noise.double() - 1)
    return gaussian.view(columns, heads, rounds, h).permute(1, 2, 0, 3)


def bucket_of(x, rotation):
    rotated = (rotation @ x).tolist()
    both = rotated + [-y for y in rotated]
    return max(range(len(both)), key=both.__getitem__)


def buckets_of(query, mask, seed, rounds, m):
    """`(batch, heads, rounds, n)`, -1 at padding: a bucket and its opposite for every chunk of visible positions."""
    columns = math.ceil(query.shape[2] / min(m, query.shape[2]))
    drawn = rotations(seed, columns, rounds)
    buckets = torch.full((*query.shape[:2], rounds, query.shape[2]), -1)
    for b, head, r in ((b, head, r) for b in range(BATCH) for head in range(HEADS) for r in range(rounds)):
        visible = [i for i in range(query.shape[2]) if not mask[b, i]]
        used = drawn[head, r, : math.ceil(len(visible) / m)]
        for i in visible:
            buckets[b, head, r, i] = bucket_of(query[b, head, i], used)
    return buckets


def slow_reformer(query, value, buckets, m, causal):
    """One batch item and head, a pair at a time: `(n, h)`, `(n, h)`, `(rounds, n)`."""
    visible = [i for i in range(len(query)) if buckets[0, i] >= 0]
    weights = torch.zeros(len(query), len(query), dtype=torch.float64)
    for bucket in buckets.tolist():
        ranked = sorted(visible, key=lambda i: (bucket[i], i))
        chunk = {i: rank // m for rank, i in enumerate(ranked)}
        for i in visible:
            for j in visible:
                if j != i and chunk[i] - chunk[j] in (0, 1) and not (causal and j > i):
                    weights[i, j] += math.exp(query[i] @ query[j] / query[j].norm())
    for i in visible:
        if weights[i].sum() == 0:
            weights[i, i] = 1
    return weights[visible] @ value / weights[visible].sum(-1, keepdim=True), visible


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rounds, m", [(1, 1), (1, 5), (3, 4), (4, 2), (2, 10), (1, N), (2, 64)])
def test_equals_a_slow_implementation(rounds, m, causal, padded):
    query, value = qv()
    mask = PADDING if padded else torch.zeros(BATCH, N, dtype=torch.bool)
    output = attend(make(num_hashes=rounds, bucket_size=m, causal=causal, seed=3), query, value, mask)
    buckets = buckets_of(query, mask, 3, rounds, m)
    for b in range(BATCH):
        for head in range(HEADS):
            expected, visible = slow_reformer(query[b, head], value[b, head], buckets[b, head], m, causal)
            assert_close(output[b, head, visible], expected)


def test_the_key_is_not_read():
    query, value = qv()
    assert torch.equal(make()(query, 3 * query.flip(2), value), attend(make(), query, value))


def test_that_it_is_nearly_causal_only_is_said():
    with pytest.warns(UserWarning, match="^reformer: nearly causal only, later tokens change earlier outputs"):
        attention_zoo.create("reformer", head_dim=4, num_heads=1, causal=True)


def test_the_future_moves_past_outputs_although_none_attends_to_it():
    """Why it is called approximately causal: the future decides where the sorted past is cut into chunks."""
    query, value = qv()
    cut = 2 * N // 3
    moved = torch.cat([query[:, :, :cut], -query[:, :, cut:]], 2)
    attention = make(causal=True)
    leak = (attend(attention, moved, value) - attend(attention, query, value))[:, :, :cut]
    assert leak.abs().max() > 0.1
    # Values of the future do not: only how they are sorted.
    other = torch.cat([value[:, :, :cut], -8 * value[:, :, cut:]], 2)
    assert torch.equal(attend(attention, query, other)[:, :, :cut], attend(attention, query, value)[:, :, :cut])
    one_chunk = make(causal=True, bucket_size=N)
    assert_close(attend(one_chunk, moved, value)[:, :, :cut], attend(one_chunk, query, value)[:, :, :cut])
    info = attention_zoo.info("reformer")
    assert info.approximately_causal and not info.causal


def oracle_inputs(query, value, mask, buckets, m):
    """A chunk of padding before each round, where ours has none, and more behind to a length that it can divide.

    Theirs looks from the first chunk of a round at the last one of the round before; a chunk of padding is seen by
    none. Returns query, value, padding and buckets, numbered across rounds.
    """
    n, rounds = query.shape[2], buckets.shape[2]
    behind = -(n + m) % m
    query, value = (torch.nn.functional.pad(x, (0, 0, m, behind), value=1) for x in (query, value))
    padding = torch.nn.functional.pad(mask, (m, behind), value=True)
    last = buckets.max() + 2
    sorted_last = torch.nn.functional.pad((buckets + 1).masked_fill(mask[:, None, None], last), (0, behind), value=last)
    numbered = torch.nn.functional.pad(sorted_last, (m, 0)) + (last + 1) * torch.arange(rounds)[:, None]
    return query, value, padding, numbered.flatten(2)


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rounds, m", [(1, 5), (3, 4)])
def test_equals_transformers_given_the_buckets(rounds, m, causal, padded):
    """It adds 1e-6 to the mean square of keys, and draws rotations anew: both are taken from it here."""
    query, value = qv()
    mask = PADDING if padded else torch.zeros(BATCH, N, dtype=torch.bool)
    expected = attend(make(num_hashes=rounds, bucket_size=m, causal=causal, seed=3), query, value, mask)
    buckets = buckets_of(query, mask, 3, rounds, m)
    config = ReformerConfig(
        attention_head_size=H,
        num_attention_heads=HEADS,
        hidden_size=2 * HEADS * H,
        num_hashes=rounds,
        num_buckets=2,
        lsh_attn_chunk_length=m,
        lsh_num_chunks_before=1,
        lsh_num_chunks_after=0,
        lsh_attention_probs_dropout_prob=0.0,
        is_decoder=causal,
    )
    module = LSHSelfAttention(config, layer_idx=0).double().eval()
    module._len_norm = partial(module._len_norm, epsilon=0)
    both = torch.eye(2 * HEADS * H, dtype=torch.float64)
    module.query_key.weight.copy_(both[: HEADS * H])
    module.value.weight.copy_(both[HEADS * H :])
    wide_query, wide_value, padding, numbered = oracle_inputs(query, value, mask, buckets, m)
    output = module(hidden_state(wide_query, wide_value), attention_mask=~padding, buckets=numbered).hidden_states
    output = heads_of(output)[:, :, m : m + N]
    assert_close(output * ~mask[:, None, :, None], expected * ~mask[:, None, :, None], SELF_SCORE_ROUNDING)
