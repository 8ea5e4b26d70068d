import itertools
import math

import numpy as np
import pytest
import torch
from small import H, maker, padding_at, sized

from attention_zoo.ops.sampling import sample_without_replacement

N = 19
qkv, create, exact = sized(N), maker("skeinformer"), maker("softmax")
# The second item has fewer keys than d.
PADDING = padding_at(N, [0, 1, 4, 9, 10, 18], slice(4, None))
PAIRS = itertools.product(("importance", "uniform"), ("adaptive", "simple", "none"))
# The method itself, and ablations in which any two choices meet.
ABLATIONS = [("importance", "adaptive", True), *((*pair, i % 2 == 1) for i, pair in enumerate(PAIRS))]
every_ablation = pytest.mark.parametrize("sampling, normalization, reuse", ABLATIONS)


def make(sampling="importance", normalization="adaptive", reuse=True, **given):
    return create(column_sampling=sampling, row_normalization=normalization, pilot_reuse=reuse, **given)


def algorithm_1(query, key, value, valid, pilots, columns, normalization, reuse):
    """Lines 3 and 7 to 13, literally, for one head `(n, h)`; `valid` are the real positions."""
    n = len(valid)
    columns = [j for j in columns if j in valid]
    a = np.exp(query @ key.T / math.sqrt(H))
    row_sums = a[:, valid].sum(1)
    a_columns = a[:, columns]
    others = [j for j in valid if j not in columns]
    if normalization == "adaptive":
        g = np.prod(a_columns, axis=1) ** (1 / len(columns))
        row_sum = a_columns.sum(1) + (n - len(columns)) * g
        v = value[others].sum(0)
        output = (a_columns @ value[columns] + np.outer(g, v)) / row_sum[:, None]
    elif normalization == "simple":
        output = a_columns @ value[columns] / a_columns.sum(1, keepdims=True)
    else:
        output = a_columns @ value[columns] / row_sums[:, None]
    if reuse:
        for j in pilots:
            output[j] = a[j, valid] / row_sums[j] @ value[valid]
    return output


@every_ablation
@pytest.mark.parametrize("padded", [False, True])
def test_equals_algorithm_1_given_the_samples(sampling, normalization, reuse, padded):
    query, key, value = qkv()
    mask = PADDING if padded else torch.zeros(2, N, dtype=torch.bool)
    attention = make(sampling, normalization, reuse, num_features=6)
    full = make(num_features=6).sketch(query, key, value, mask)
    sketch = attention.sketch(query, key, value, mask)
    # The ablation draws what the full method draws, but for the columns that are drawn in another way.
    assert torch.equal(sketch.columns, full.columns) == (sampling == "importance")
    assert sketch.exact_rows is None if not reuse else torch.equal(sketch.exact_rows[0], full.exact_rows[0])
    output = attention(query, key, value, mask)
    for b, head in itertools.product(range(2), range(2)):
        valid = (~mask[b]).nonzero()[:, 0].tolist()
        samples = full.exact_rows[0][b].tolist(), sketch.columns[b, head].tolist()
        one = (tensor[b, head].numpy() for tensor in (query, key, value))
        expected = algorithm_1(*one, valid, *samples, normalization, reuse)
        np.testing.assert_allclose(output[b, head, valid], expected[valid], rtol=0, atol=1e-13)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("padded", [False, True])
def test_columns_are_drawn_by_equation_5(padded, d):
    """Given pilots J, the first column is i with probability (sum_j b_ji^2)^(1/2) |v_i|, normalised; J is uniform."""
    n, draws = 5, 40_000
    query, key, value = (tensor.expand(draws, -1, -1, -1) for tensor in qkv(n, batch=1, heads=1))
    query = 3 * query  # rows so different that another norm over J shows
    mask = torch.zeros(draws, n, dtype=torch.bool)
    mask[:, 2] = padded
    sketch = make(num_heads=1, num_features=d).sketch(query, key, value, mask)
    pilots, columns = sketch.exact_rows[0].sort(-1).values, sketch.columns[:, 0, 0]
    weights = exact(num_heads=1).attention_matrix(query[:1], key[:1], mask[:1])[0, 0]
    sets = list(itertools.combinations([j for j in range(n) if not mask[0, j]], d))
    for chosen in sets:
        drawn = columns[(pilots == torch.tensor(chosen)).all(-1)]
        assert abs(len(drawn) / draws - 1 / len(sets)) < 5 * math.sqrt(1 / len(sets) / draws)
        importance = weights[list(chosen)].square().sum(0).sqrt() * value[0, 0].norm(dim=-1)
        probability = importance / importance.sum()
        frequency = torch.bincount(drawn, minlength=n) / len(drawn)
        deviation = (probability * (1 - probability) / len(drawn)).sqrt()
        assert ((frequency - probability).abs() <= 5 * deviation).all()


def test_sampling_without_replacement_is_successive_sampling():
    """The pair (i, j) in that order has probability p_i p_j / (1 - p_i)."""
    p, draws = torch.tensor([0.5, 0.3, 0.15, 0.05]), 200_000
    noise = torch.rand(draws, 4, generator=torch.Generator().manual_seed(0))
    pairs = sample_without_replacement(7 * p.expand(draws, 4), noise, 2, torch.ones(4, dtype=torch.bool))
    for i, j in itertools.permutations(range(4), 2):
        expected = p[i] * p[j] / (1 - p[i])
        frequency = ((pairs[:, 0] == i) & (pairs[:, 1] == j)).float().mean()
        assert abs(frequency - expected) < 5 * math.sqrt(expected / draws)


@pytest.mark.parametrize("sampling", ["importance", "uniform"])
def test_pilots_are_shared_by_the_heads_and_columns_are_not(sampling):
    sketch = make(sampling, num_features=6).sketch(*qkv(), None)
    assert sketch.exact_rows[0].shape == (2, 6) and sketch.columns.shape == (2, 2, 6)
    columns = sketch.columns.sort(-1).values
    assert not torch.equal(columns[:, 0], columns[:, 1])
    assert all(len(set(row)) == 6 for row in sketch.columns.flatten(0, 1).tolist())
    assert all(len(set(row)) == 6 for row in sketch.exact_rows[0].tolist())


@every_ablation
@pytest.mark.parametrize("padded", [False, True])
def test_all_columns_sampled_is_softmax(sampling, normalization, reuse, padded):
    """Also when values are zero, which importance would never draw, and d is only as large as needed."""
    query, key, value = qkv()
    value[:, :, ::3] = 0
    mask = PADDING if padded else None
    attention = make(sampling, normalization, reuse, num_features=13 if padded else N)
    expected = exact().attention_matrix(query, key, mask)
    actual = attention.attention_matrix(query, key, mask, value=value)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-14)
    actual = attention(query, key, value, mask)
    torch.testing.assert_close(actual, expected @ value, rtol=0, atol=1e-14)


@every_ablation
@pytest.mark.parametrize("impl", ["reference", "fused"])
def test_surplus_columns_weigh_nothing_however_large_the_padding(sampling, normalization, reuse, impl):
    """Four keys and six columns: two point to padding, whose exponentials overflow float64."""
    query, key, value = qkv()
    attention = make(sampling, normalization, reuse, num_features=6, impl=impl)
    expected = attention(query, key, value, PADDING)
    for sign in (1, -1):
        hidden = torch.where(PADDING[:, None, :, None], sign * 1e5 * key, key)
        torch.testing.assert_close(attention(query, hidden, value, PADDING), expected, rtol=0, atol=1e-14)


def test_importance_sampling_needs_the_values_for_its_matrix():
    query, key, _ = qkv()
    with pytest.raises(ValueError, match=r"^value=None: must be"):
        make(num_features=6).attention_matrix(query, key)
    assert make("uniform", num_features=6).attention_matrix(query, key).shape == (2, 2, N, N)
