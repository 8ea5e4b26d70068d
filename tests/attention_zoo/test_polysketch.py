import functools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small import algorithm_2, assert_close, assert_moments, maker, moved, padding_at, sized, unit_pair

from attention_zoo.ops import draws
from attention_zoo.ops.draws import hadamard
from attention_zoo.polysketch import SKETCHES
from bench.measures.flops import count

N, H, R = 13, 8, 4
every_sketch = pytest.mark.parametrize("sketch", SKETCHES)
qkv, make = sized(N, h=H), maker("polysketch", head_dim=H, sketch_size=R)
polynomial = maker("polynomial", head_dim=H)


def algorithm_1(x, state, name, degree):
    """ICML version, Algorithm 1 in numpy: sqrt(1/r) [(M1 G1) o (M2 G2)], M1 and M2 sketches of half the degree."""
    g = [state[f"{name}.matrices"][0, :, i] for i in range(2)]
    below = (
        [x, x] if degree == 2 else [algorithm_1(x, state, f"{name}.children_sketches.{i}", degree // 2) for i in (0, 1)]
    )
    return (below[0] @ g[0]) * (below[1] @ g[1]) / math.sqrt(g[0].shape[1])


@torch.no_grad()
@pytest.mark.parametrize("degree", [4, 8, 16])
@pytest.mark.parametrize("sketch", ["gaussian", "srht"])
def test_features_are_those_of_algorithm_1(sketch, degree):
    attention, (x, _, _) = make(sketch=sketch, degree=degree, scale=0.3, qk_layernorm=False), qkv()
    state = {name: tensor.numpy() for name, tensor in attention.state_dict().items()}
    expected = algorithm_1(math.sqrt(0.3) * x.numpy(), state, "sketch", degree // 2)
    np.testing.assert_allclose(attention.features(x), expected, rtol=1e-11, atol=1e-11)


def sketched_products(sketch, degree, r, pairs, draws):
    """`<L_q, L_k>` of each pair under independent sketches, which are those of the heads: `(pairs, draws)`."""
    attention = make(sketch=sketch, degree=degree, sketch_size=r, num_heads=draws, per_head=True, qk_layernorm=False)
    features = attention.features(torch.stack(pairs)[:, None].expand(-1, draws, -1, -1))
    return (features[:, :, 0] * features[:, :, 1]).sum(-1)


def standard_error(samples):
    return samples.std() / math.sqrt(len(samples))


def assert_mean(samples, expected):
    assert_moments(samples, expected)
    assert standard_error(samples) < 0.1 * max(abs(expected), 0.3), "too few draws to tell"


@pytest.mark.parametrize("sketch, degree, r", [("gaussian", 4, 4), ("srht", 4, 4)])
def test_sketched_products_are_unbiased_for_half_the_degree(sketch, degree, r):
    """Of <L, R>, not of its square, which is biased (below)."""
    cosines, norm = (1.0, 0.7, 0.0), 1.1
    products = sketched_products(sketch, degree, r, [norm * unit_pair(cosine) for cosine in cosines], 1500)
    for samples, cosine in zip(products, cosines, strict=True):
        assert_mean(samples, (norm**2 * cosine) ** (degree // 2))


def test_srht_is_applied_twice(monkeypatch):
    """v1, section 2.3: a base SRHT comes before each factor of TensorSRHT; without it the deviation is .48, not .58."""
    h, r, repeats, rng = 16, 8, 20_000, np.random.default_rng(0)

    def srht(x):
        """`x D H P`, D and P drawn anew for each repeat."""
        size = x.shape[-1]
        signs, sampled = rng.integers(0, 2, (repeats, 1, size)) * 2 - 1, rng.integers(0, size, (repeats, 1, r))
        return np.take_along_axis((x * signs) @ hadamard(size).numpy(), sampled, -1)

    pair = np.zeros((2, h))
    pair[0], pair[1] = 1 / 4, np.repeat([1 / 4, -1 / 4], [12, 4])  # unit vectors at a cosine of 1/2
    left, right = np.moveaxis(srht(srht(pair) / r**0.5) * srht(srht(pair) / r**0.5) / r**0.5, 1, 0)
    by_hand = (left * right).sum(-1)
    monkeypatch.setattr(draws, "hadamard", functools.cache(hadamard))  # it takes most of the time
    attention = make(sketch="srht", head_dim=h, sketch_size=r, num_heads=4000, per_head=True, qk_layernorm=False)
    features = attention.features(torch.from_numpy(pair)[None, None].expand(-1, 4000, -1, -1))
    drawn = (features[:, :, 0] * features[:, :, 1]).sum(-1).numpy()
    # With a fourth moment of 30, the deviation of 4,000 draws is good to 4%.
    assert abs(drawn.std() / by_hand.std() - 1) < 0.1


@pytest.mark.parametrize("r", [4, 16])
def test_squared_gaussian_sketch_has_the_bias_of_the_closed_form(r):
    """E <L, R>^2 = c^4 + [(|q|^2 |k|^2 + 2 c^2)^2 - c^4] / r: r products of two pairs of correlated Gaussians."""
    cosines = (1.0, 0.5, 0.0)
    squares = sketched_products("gaussian", 4, r, [unit_pair(c) for c in cosines], 10_000).square()
    for samples, c in zip(squares, cosines, strict=True):
        assert_mean(samples, c**4 + ((1 + 2 * c**2) ** 2 - c**4) / r)
        assert abs(samples.mean() - c**4) > 5 * standard_error(samples), "the square is not unbiased"


def by_definition(attention, query, key, value, exact_query, exact_key, mask, block_size):
    """One weight at a time. `block_size` 0 is no local block."""
    left, right = attention.features(query), attention.features(key)
    out = torch.zeros_like(value)
    for b, head, i in np.ndindex(*query.shape[:3]):
        total, weighted = torch.tensor(attention.bias, dtype=torch.float64), torch.zeros(H, dtype=torch.float64)
        for j in range(i + 1):
            if mask[b, j]:
                continue
            if block_size and i // block_size == j // block_size:
                weight = torch.dot(exact_query[b, head, i], exact_key[b, head, j]) ** attention.degree
            else:
                weight = torch.dot(left[b, head, i], right[b, head, j]) ** 2
            total, weighted = total + weight, weighted + weight * value[b, head, j]
        out[b, head, i] = weighted / total
    return out


@torch.no_grad()
@every_sketch
@pytest.mark.parametrize("degree", [4, 8])
@pytest.mark.parametrize("block_size", [0, 1, 5, N])
def test_causal_equals_the_definition_weight_by_weight(sketch, degree, block_size):
    query, key, value = (x[:1] for x in qkv())
    mask = padding_at(N, [0, 6])
    local = {"local": True, "block_size": block_size} if block_size else {"block_size": 4}
    attention = moved(make(sketch=sketch, degree=degree, causal=True, bias=0.7, scale=0.5, **local))
    exact = query, key
    if block_size:
        norms = list(attention.local_norms) if sketch == "learned" else [attention.layernorm] * 2
        assert len(norms) == 2
        exact = [F.layer_norm(x, (H,), norm.weight, norm.bias) for x, norm in zip(exact, norms, strict=True)]
    expected = by_definition(attention, query, key, value, 0.5 * exact[0], exact[1], mask, block_size)
    assert_close(attention(query, key, value, mask), expected)


@every_sketch
@pytest.mark.parametrize("degree, block_size", [(4, N), (8, None)])
def test_one_local_block_is_exact_polynomial_attention(sketch, degree, block_size):
    attention = make(sketch=sketch, degree=degree, causal=True, local=True, block_size=block_size)
    exact = polynomial(degree=degree, causal=True)
    if sketch != "learned":  # whose exact weights have norms of their own
        exact.layernorm.load_state_dict(moved(attention).layernorm.state_dict())
    assert_close(attention(*qkv()), exact(*qkv()))


@every_sketch
@pytest.mark.parametrize("causal", [False, True])
def test_degree_two_needs_no_sketch(sketch, causal):
    settings = {"degree": 2, "causal": causal, "scale": 0.3, "bias": 2.0}
    attention, exact = moved(make(sketch=sketch, block_size=4, **settings)), polynomial(**settings)
    exact.layernorm.load_state_dict(attention.layernorm.state_dict())
    assert_close(attention(*qkv()), exact(*qkv()))


@pytest.mark.parametrize("r, weights", [(32, 81_920), (64, 262_144)])
def test_learned_sketch_has_the_papers_number_of_parameters(r, weights):
    h = 64
    attention = make(sketch="learned", head_dim=h, sketch_size=r, num_heads=12)
    count = sum(p.numel() for p in attention.parameters())
    assert count == weights + 2 * (2 * h + 2 * r)  # two norms, of h and of r, in each of two networks
    local = make(sketch="learned", head_dim=h, sketch_size=r, num_heads=12, local=True, causal=True)
    assert sum(p.numel() for p in local.parameters()) == count + 2 * 2 * h
    assert not list(attention.buffers())


def test_learned_weights_start_as_lecun_normal():
    attention = make(sketch="learned", head_dim=64, sketch_size=32)
    for network in attention.sketch.networks:
        for weight in network.weights:
            unit = weight.detach() * math.sqrt(weight.shape[1])
            assert_moments(unit, 0, 1)
            assert unit.abs().max() <= 2 / 0.8796256610342398 + 1e-6  # two of the standard deviations it is cut at


@torch.no_grad()
def test_features_are_those_of_algorithm_2():
    attention, (x, _, _) = moved(make(sketch="learned")), qkv()
    state = {name: tensor.numpy() for name, tensor in attention.state_dict().items()}
    np.testing.assert_allclose(attention.features(x), algorithm_2(x.numpy(), state, R), rtol=0, atol=1e-12)


@every_sketch
@pytest.mark.parametrize("degree", [2, 4, 8])
def test_flops_are_those_of_the_products_that_run(sketch, degree):
    for form in ({}, {"causal": True}, {"causal": True, "local": True}):
        attention = make(sketch=sketch, degree=degree, **form, block_size=5, impl="reference")
        assert sum(count(lambda: attention(*qkv())).values()) == attention.flops(2, N)  # noqa: B023


@pytest.mark.parametrize("block_size", [None, 32])
def test_local_blocks_end_before_the_min_test_length(block_size):
    """In the first block the weights are exact, at the minimal test length they are not any more."""
    attention = make(local=True, causal=True, block_size=block_size)
    b, n = block_size or 1024, attention.min_test_length
    assert n > 2 * b and n % b
    query, key, value = qkv(n)
    positions = torch.tensor([b - 1, n - 1])
    both = attention, polynomial(causal=True)
    rows, exact = (each.output_rows(query, key, value, positions=positions) for each in both)
    assert_close(rows, attention(query, key, value)[:, :, positions])
    assert_close(rows[:, :, 0], exact[:, :, 0])
    assert (rows[:, :, 1] - exact[:, :, 1]).norm() > 1e-2 * exact[:, :, 1].norm()
