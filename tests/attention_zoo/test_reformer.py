import math
from functools import partial

import pytest
import torch
from reformer_pytorch.reformer_pytorch import FullQKAttention, LSHAttention
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

import attention_zoo
from bench.measures.flops import count

N, H, M, HEADS, BATCH = 29, 4, 5, 2, 2
# Theirs give a position's own key a score of -5e4 or -1e5, which cancels to 1e5 times float64's rounding.
SELF_SCORE_ROUNDING = 1e-10


def qv(n=N, h=H, seed=0, batch=BATCH):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, HEADS, n, h, generator=generator, dtype=torch.float64) for _ in range(2)]


def make(**given):
    return attention_zoo.create("reformer", **({"head_dim": H, "num_heads": HEADS, "bucket_size": M} | given))


def attend(attention, query, value, mask=None):
    return attention(query, query, value, mask)


def support(attention, query, mask=None):
    """Which keys each query attends to: the scores are moderate, so no weight underflows."""
    return attention.attention_matrix(query, query, mask) > 0


def scattered_padding(n=N):
    mask = torch.zeros(BATCH, n, dtype=torch.bool)
    mask[0, [0, 3, 4, 5, 11, 20, 28]] = True
    mask[1, 2 * n // 3 :] = True
    return mask


def assert_close(actual, expected, tolerance=1e-12):
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


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


# --- The definition -------------------------------------------------------------------------------


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rounds, m", [(1, 1), (1, 5), (3, 4), (4, 2), (2, 15), (2, 64)])
def test_equals_a_slow_implementation(rounds, m, causal, padded):
    query, value = qv()
    mask = scattered_padding() if padded else torch.zeros(BATCH, N, dtype=torch.bool)
    output = attend(make(num_hashes=rounds, bucket_size=m, causal=causal, seed=3), query, value, mask)
    buckets = buckets_of(query, mask, 3, rounds, m)
    for b in range(BATCH):
        for head in range(HEADS):
            expected, visible = slow_reformer(query[b, head], value[b, head], buckets[b, head], m, causal)
            assert_close(output[b, head, visible], expected)


def dense_shared(query, value, causal=False, mask=None):
    """Softmax of `<q_i, q_j> / |q_j|` off the diagonal; a row with nothing else there sees itself."""
    scores = query @ (query / query.norm(dim=-1, keepdim=True)).mT
    n = query.shape[2]
    visible = ~torch.eye(n, dtype=torch.bool).expand(len(query), 1, n, n)
    visible = visible.tril() if causal else visible
    visible = visible if mask is None else visible & ~mask[:, None, None]
    alone = ~visible.any(-1, keepdim=True)
    weights = scores.masked_fill(~(visible | alone), -torch.inf).softmax(-1)
    itself = value if mask is None else value.masked_fill(mask[:, None, :, None], 0)
    return torch.where(alone, itself, weights @ value)


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rounds", [1, 2, 8])
@pytest.mark.parametrize("m", [N, 2 * N])
def test_one_chunk_is_dense_shared_attention(m, rounds, causal, padded):
    """Whatever the rounds: each sees the same. Softmax attention, with a diagonal and keys of any norm, it is not."""
    query, value = qv()
    mask = scattered_padding() if padded else None
    output = attend(make(bucket_size=m, num_hashes=rounds, causal=causal), query, value, mask)
    seen = ~mask[:, None, :, None] if padded else torch.ones(BATCH, 1, N, 1, dtype=torch.bool)
    assert_close(output * seen, dense_shared(query, value, causal, mask) * seen)
    softmax = attention_zoo.create("softmax", head_dim=H, num_heads=HEADS, causal=causal)
    assert (output - attend(softmax, query, value, mask)).abs().max() > 0.1


def test_near_directions_meet_and_opposite_ones_do_not():
    """Four tight clusters, two opposite to the other two, each two chunks long.

    A cluster that has its buckets to itself sees itself but for what its first chunk would see of its second: 11/16.
    """
    n, h = 64, 32
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(2, h, generator=generator, dtype=torch.float64)
    cluster = torch.arange(n) % 4
    query = torch.cat([centres, -centres])[cluster] + 1e-3 * torch.randn(1, HEADS, n, h, generator=generator)
    met = support(make(head_dim=h, num_hashes=8, bucket_size=8), query).double()
    apart = (cluster[:, None] - cluster).abs()
    assert met[..., apart == 0].mean() >= 11 / 16 and met[..., apart == 2].mean() < 0.05


# --- What is seen ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["zeros", "other"])
def test_the_key_is_not_read(key):
    query, value = qv()
    given = torch.zeros_like(query) if key == "zeros" else 3 * query.flip(2)
    assert torch.equal(make()(query, given, value), attend(make(), query, value))


def test_one_position_attends_to_itself():
    query, value = qv(1)
    assert torch.equal(attend(make(), query, value), value)
    mask = torch.tensor([[True] * (N - 1) + [False]]).expand(BATCH, N)
    query, value = qv()
    assert torch.equal(attend(make(), query, value, mask)[:, :, -1], value[:, :, -1])


@pytest.mark.parametrize("causal", [False, True])
def test_padding_is_as_if_absent(causal):
    """Wherever it is: the others' buckets, chunks and rotations are those of the sequence without it."""
    query, value = qv()
    attention, mask = make(causal=causal), scattered_padding()
    output = attend(attention, torch.where(mask[:, None, :, None], 9 * query, query), value, mask)
    for b in range(BATCH):
        seen = ~mask[b]
        short = attend(attention, query[b : b + 1, :, seen], value[b : b + 1, :, seen])
        assert_close(output[b : b + 1][:, :, seen], short)


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("m", [1, M, N])
def test_causal_attention_is_to_the_past_only(m, padded):
    """No weight above the diagonal, and no gradient from a later value to an earlier output."""
    query, value = qv()
    mask = scattered_padding() if padded else None
    attention = make(bucket_size=m, causal=True)
    matrix = attention.attention_matrix(query, query, mask)
    assert (matrix.triu(1) == 0).all() and (matrix.tril(-1) > 0).any()
    value.requires_grad_()
    cut = N // 2
    (gradient,) = torch.autograd.grad(attend(attention, query, value, mask)[:, :, :cut].sum(), value)
    assert (gradient[:, :, cut:] == 0).all() and (gradient[:, :, :cut] != 0).any()


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


# --- Rotations ------------------------------------------------------------------------------------


def test_rotations_are_standard_normal_and_independent():
    """Any quantile of the uniform noise but the Gaussian's would prefer some directions."""
    h, columns = 8, 500
    drawn = rotations(0, columns, 2, h=h).reshape(-1, h)
    number = len(drawn)
    assert drawn.mean(0).abs().max() < 5 / math.sqrt(number)
    deviation = drawn.T @ drawn / number - torch.eye(h)
    assert deviation.abs().max() < 5 * math.sqrt(2 / number)


# --- Other implementations ------------------------------------------------------------------------


def oracle_inputs(query, value, mask, buckets, m, multiple):
    """A chunk of padding before each round, where ours has none, and more behind to a length that they can divide.

    Theirs look from the first chunk of a round at the last one of the round before; a chunk of padding is seen by
    none. Returns query, value, padding and buckets, numbered across rounds.
    """
    n, rounds = query.shape[2], buckets.shape[2]
    behind = -(n + m) % multiple
    query, value = (torch.nn.functional.pad(x, (0, 0, m, behind), value=1) for x in (query, value))
    padding = torch.nn.functional.pad(mask, (m, behind), value=True)
    last = buckets.max() + 2
    sorted_last = torch.nn.functional.pad((buckets + 1).masked_fill(mask[:, None, None], last), (0, behind), value=last)
    numbered = torch.nn.functional.pad(sorted_last, (m, 0)) + (last + 1) * torch.arange(rounds)[:, None]
    return query, value, padding, numbered.flatten(2)


ORACLE_CASES = [
    (rounds, m, causal, padded) for rounds, m in ((1, 5), (3, 4), (2, 15)) for causal in (0, 1) for padded in (0, 1)
]


@torch.no_grad()
@pytest.mark.parametrize("rounds, m, causal, padded", ORACLE_CASES)
def test_equals_transformers_given_the_buckets(rounds, m, causal, padded):
    """It adds 1e-6 to the mean square of keys, and draws rotations anew: both are taken from it here."""
    query, value = qv()
    mask = scattered_padding() if padded else torch.zeros(BATCH, N, dtype=torch.bool)
    expected = attend(make(num_hashes=rounds, bucket_size=m, causal=bool(causal), seed=3), query, value, mask)
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
        is_decoder=bool(causal),
    )
    module = LSHSelfAttention(config, layer_idx=0).double().eval()
    module._len_norm = partial(module._len_norm, epsilon=0)
    both = torch.eye(2 * HEADS * H, dtype=torch.float64)
    module.query_key.weight.copy_(both[: HEADS * H])
    module.value.weight.copy_(both[HEADS * H :])
    wide_query, wide_value, padding, numbered = oracle_inputs(query, value, mask, buckets, m, m)
    hidden = torch.cat([x.transpose(1, 2).flatten(2) for x in (wide_query, wide_value)], -1)
    output = module(hidden, attention_mask=~padding, buckets=numbered).hidden_states
    output = output.unflatten(-1, (HEADS, H)).transpose(1, 2)[:, :, m : m + N]
    assert_close(output * ~mask[:, None, :, None], expected * ~mask[:, None, :, None], SELF_SCORE_ROUNDING)


def lucidrains(query, value, padding, numbered, rounds, m, causal):
    """It takes heads as a batch, and divides scores by sqrt(h) where trax has normalised keys only."""
    module = LSHAttention(bucket_size=m, n_hashes=rounds, causal=bool(causal)).eval()
    module.hash_vectors = lambda *_, **__: numbered.flatten(0, 1)
    scaled = math.sqrt(query.shape[-1]) * query
    output, _, _ = module(scaled.flatten(0, 1), value.flatten(0, 1), input_mask=~padding.repeat_interleave(HEADS, 0))
    return output.unflatten(0, query.shape[:2])


@torch.no_grad()
@pytest.mark.parametrize("rounds, m, causal, padded", ORACLE_CASES)
def test_equals_reformer_pytorch_given_the_buckets(rounds, m, causal, padded):
    query, value = qv()
    mask = scattered_padding() if padded else torch.zeros(BATCH, N, dtype=torch.bool)
    expected = attend(make(num_hashes=rounds, bucket_size=m, causal=bool(causal), seed=3), query, value, mask)
    buckets = buckets_of(query, mask, 3, rounds, m)
    wide = oracle_inputs(query, value, mask, buckets, m, 2 * m)
    output = lucidrains(*wide, rounds, m, causal)[:, :, m : m + N]
    assert_close(output * ~mask[:, None, :, None], expected * ~mask[:, None, :, None], SELF_SCORE_ROUNDING)


@torch.no_grad()
def test_the_first_chunk_looks_back_in_reformer_pytorch_and_not_here():
    query, value = qv(4 * M)
    mask = torch.zeros(BATCH, 4 * M, dtype=torch.bool)
    buckets = buckets_of(query, mask, 0, 1, M)
    output = lucidrains(query, value, mask, buckets.flatten(2), 1, M, False)
    differs = (output - attend(make(num_hashes=1), query, value)).abs().amax(-1) > 1e-9
    assert (differs.sum(-1) == M).all()


@torch.no_grad()
@pytest.mark.parametrize("causal", [False, True])
def test_one_chunk_equals_the_full_attention_of_reformer_pytorch(causal):
    """But for its scale; it sets the diagonal to -5e4 where ours leaves it out, which is the same after exp."""
    query, value = qv()
    module = FullQKAttention(causal=causal).eval()
    output, _, _ = module((math.sqrt(H) * query).flatten(0, 1), value.flatten(0, 1))
    assert_close(attend(make(bucket_size=N, causal=causal), query, value), output.unflatten(0, query.shape[:2]))


# --- Counting and checking ------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1024, 1000])
@pytest.mark.parametrize("given", [{}, {"num_hashes": 4, "bucket_size": 32, "causal": True}])
def test_flops_are_those_of_the_products_that_run(n, given):
    given = {"head_dim": 32, "bucket_size": 64, "impl": "reference"} | given
    attention, (query, value) = make(**given), qv(n, 32, batch=1)
    counted = count(lambda: attend(attention, query, value))
    del counted["sum"]  # over rounds
    assert sum(counted.values()) == attention.flops(1, n)


@pytest.mark.parametrize("given", [{"num_hashes": 0}, {"bucket_size": 0}, {"num_hashes": 1.5}])
def test_bad_hyperparameters_are_refused(given):
    with pytest.raises(ValueError, match=f"^{next(iter(given))}="):
        make(**given)
