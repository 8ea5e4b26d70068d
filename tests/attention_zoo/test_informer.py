import math

import pytest
import torch
from small import H, maker, padding_at, sized, softmax
from transformers.models.informer.modeling_informer import InformerProbSparseAttention

N = 23
qkv, make = sized(N), maker("informer")


def slow_informer(query, key, value, mask, seed, u, samples, mask_samples):
    """Algorithm 1 of the paper, a scalar at a time, for a tensor of one batch item and head `(n, h)`."""
    n = len(query)
    noise = torch.rand(n, samples, generator=torch.Generator().manual_seed(seed))
    valid = [j for j in range(n) if not mask[j]]
    sparsity = {}
    for i in valid:
        drawn = [valid[math.floor(x * len(valid))] if mask_samples else math.floor(x * n) for x in noise[i].tolist()]
        scores = [float(query[i] @ key[j]) for j in drawn if not mask[j]]
        sparsity[i] = max(scores) - sum(scores) / len(scores) if scores else 0.0
    mean = torch.stack([value[j] for j in valid]).mean(0)
    output = mean.expand(n, -1).clone()
    ranked = sorted(sparsity, key=sparsity.__getitem__, reverse=True)
    chosen = ranked[:u]
    for i in chosen:
        weights = [math.exp(float(query[i] @ key[j]) / math.sqrt(H)) for j in valid]
        output[i] = sum(w * value[j] for w, j in zip(weights, valid, strict=True)) / sum(weights)
    # Queries whose samples are padding are alike, and of equals any may be chosen.
    at_the_cut = [sparsity[i] for i in ranked[u - 1 : u + 1]]
    tied = {i for i in ranked if at_the_cut == [sparsity[i]] * 2}
    return output, chosen, [i for i in valid if i not in tied]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("mask_samples", [False, True])
@pytest.mark.parametrize("u, samples", [(1, 3), (6, 6), (6, 40), (17, 2), (N, 1)])
def test_equals_a_slow_implementation(padded, mask_samples, u, samples):
    query, key, value = qkv()
    # The second item has so much padding that some queries sample nothing else.
    mask = padding_at(N, [0, 1, 4, 9, 10, 22], slice(3, None)) if padded else torch.zeros(2, N, dtype=torch.bool)
    attention = make(num_features=u, num_samples=samples, mask_samples=mask_samples, seed=3)
    output = attention(query, key, value, mask if padded else None)
    for b in range(2):
        for head in range(2):
            one = (query[b, head], key[b, head], value[b, head])
            expected, _, valid = slow_informer(*one, mask[b], 3, u, samples, mask_samples)
            torch.testing.assert_close(output[b, head, valid], expected[valid], rtol=0, atol=1e-13)


@torch.no_grad()
@pytest.mark.parametrize("factor", [1, 2, 4])
def test_equals_transformers_given_its_samples(factor):
    """It draws n keys, the same for all queries; elsewhere its sum over the samples divided by n is no mean."""
    d, n = 2 * H, 20
    module = InformerProbSparseAttention(d, 2, sampling_factor=factor).double().eval()
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(2, n, d, generator=generator, dtype=torch.float64)
    before = torch.get_rng_state()
    torch.manual_seed(factor)
    expected = module(x)[0]
    torch.manual_seed(factor)
    samples = torch.randint(0, n, (n,))
    torch.set_rng_state(before)
    attention = make(num_features=factor * math.ceil(math.log1p(n)), num_samples=n)
    attention._noise = lambda shape, device: ((samples + 0.5) / n).expand(shape)
    query, key, value = (
        layer(x).unflatten(-1, (2, H)).transpose(1, 2) for layer in (module.q_proj, module.k_proj, module.v_proj)
    )
    out = module.out_proj(attention(query, key, value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-11)


PAPER_ROWS = {1024: [14, 21, 35, 70, 133, 259], 4096: [9, 18, 36, 72, 144, 279]}


@pytest.mark.parametrize("longest", [False, True], ids=["length", "max_seq_len"])
@pytest.mark.parametrize("n", PAPER_ROWS)
def test_rows_of_the_number_of_features_mapping(n, longest):
    """`c ceil(ln n)` rows and samples, `c = ceil(d / ln n)`: of d = 256, 7 * 37 at n = 1024 and 9 * 31 at 4096."""
    for d, rows in zip((8, 16, 32, 64, 128, 256), PAPER_ROWS[n], strict=True):
        attention = make(num_features=d, use_sampling_factor=True, max_seq_len=n if longest else None)
        assert attention.counts(n) == (rows, rows)
        assert attention.flops(1, n) == make(num_features=rows).flops(1, n)
    assert make(num_features=256).counts(n) == (256, 256)


def test_the_sampling_factor_is_that_of_the_longest_sequence():
    """d = 256 at most 4096 long: a factor of 31, times ceil(ln 100) = 5 at n = 100, capped, and 7 at n = 1000."""
    attention = make(num_features=256, use_sampling_factor=True, max_seq_len=4096)
    assert attention.counts(100) == (100, 155) and attention.counts(1000) == (217, 217)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("max_seq_len", [None, 2])
def test_the_shortest_sequences_have_a_sampling_factor(n, max_seq_len):
    given = qkv(n)
    attention = make(num_features=1, use_sampling_factor=True, max_seq_len=max_seq_len)
    torch.testing.assert_close(attention(*given), softmax(*given), rtol=0, atol=1e-14)


@pytest.mark.parametrize("num_features", [1, 4, 16, 256])
@pytest.mark.parametrize("use_sampling_factor", [False, True])
def test_the_rows_of_the_minimal_test_length_are_neither_all_exact_nor_few_of_them(num_features, use_sampling_factor):
    """A quarter of what depends on the data may differ by rounding: more must be wrong if all exact rows are."""
    attention = make(num_features=num_features, use_sampling_factor=use_sampling_factor)
    length = attention.min_test_length
    assert 0.25 < attention.counts(length)[0] / length < 0.5
