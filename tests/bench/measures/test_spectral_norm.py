"""The spectral-norm measure against closed forms, on a context of tensors given by hand."""

import json
import math

import numpy as np
import pytest
import torch
from cells import Given
from torch import nn

from attention_zoo import AttentionInfo, UnsupportedError, create
from bench.common.errors import NonFiniteError
from bench.measures.spectral_norm import SpectralNorm, spectral_norm


class Fake(nn.Module):
    """A mechanism that is any function of query, key, value and seed."""

    def __init__(self, function, random=False, approximates="softmax", size=None):
        super().__init__()
        self.function, self.num_features, self.seeds = function, 16, [0]
        self.info = AttentionInfo(
            name="fake", paper="", approximates=approximates, causal=False, padding=False, cross=False,
            random=random, complexity="", size=size,
        )  # fmt: skip

    def resample(self, seed):
        self.seeds.append(seed)

    def forward(self, query, key, value):
        return self.function(query, key, value, self.seeds[-1])


def measured(attention, exact, shape=(2, 3, 64, 8), dtype=torch.float64, **given):
    """What is found, the context, and its inputs."""
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(shape, generator=generator, dtype=dtype) for _ in range(3))
    context = Given(attention if isinstance(attention, nn.Module) else Fake(attention), inputs, exact, **given)
    return SpectralNorm().measure(context), context, inputs


def zeros(query, key, value, seed=0):
    return torch.zeros_like(value)


def itself(query, key, value, *seed):
    return value


SOFTMAX = create("softmax", head_dim=8, num_heads=3)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-13), (torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_the_exact_mechanism_has_no_error_beyond_rounding(dtype, bound):
    result, _, _ = measured(SOFTMAX, SOFTMAX, dtype=dtype)
    assert torch.tensor(result["relative"]).max().item() < bound
    assert (torch.tensor(result["relative"]).max().item() > 1e-4) == (dtype == torch.bfloat16)
    assert result["reference"] == "softmax" and result["features"] is None


def test_agrees_with_numpys_singular_values_of_a_dense_computation():
    result, context, inputs = measured(lambda q, k, v, seed: SOFTMAX(q, k, v * 1.1) + 0.01 * q, SOFTMAX, repeats=5)
    query, key, value = (t.numpy() for t in inputs)
    for sequence, head in np.ndindex(2, 3):
        scores = np.exp(query[sequence, head] @ key[sequence, head].T / 8**0.5)
        exact = scores / scores.sum(1, keepdims=True) @ value[sequence, head]
        error = np.linalg.svd(0.1 * exact + 0.01 * query[sequence, head], compute_uv=False)[0]
        norm = np.linalg.svd(exact, compute_uv=False)[0]
        for name, expected in (("absolute", error), ("exact_norm", norm), ("relative", error / norm)):
            assert result[name][sequence][head] == pytest.approx(expected, rel=1e-10)
    # What draws nothing is measured once per sequence.
    assert len(result["absolute"]) == len(result["exact_norm"]) == 2 and context.attention().seeds == [0]
    assert json.loads(json.dumps(result, allow_nan=False)) == result


@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e160])
@pytest.mark.parametrize(
    ("n", "h", "rank"), [(200, 16, None), (200, 16, 3), (16, 16, 1), (16, 16, 0), (5, 16, None), (1, 1, None)]
)
def test_the_gram_matrix_has_the_singular_values_of_the_matrix(n, h, rank, scale):
    generator = torch.Generator().manual_seed(n)
    matrices = torch.randn(1, 4, n, h, generator=generator, dtype=torch.float64)
    if rank is not None:
        matrices = matrices[..., :rank] @ torch.randn(1, 4, rank, h, generator=generator, dtype=torch.float64)
    expected = scale * torch.linalg.matrix_norm(matrices[0], ord=2)
    torch.testing.assert_close(spectral_norm("", scale * matrices), expected, rtol=1e-10, atol=0)


def test_every_trial_is_one_sequence_and_one_draw_of_its_own():
    def drawn(query, key, value, seed):
        assert len(query) == 1
        return torch.full_like(value, -seed)

    seeds = []
    for seed in (0, 1, 2**63 - 1):
        attention = Fake(drawn, random=True, size="num_features")
        given = {"shape": (3, 2, 16, 4), "repeats": 4, "seed": seed}
        result, context, _ = measured(attention, lambda *inputs: torch.ones_like(inputs[2]), **given)
        assert context.seen == [(done, 12) for done in range(1, 13)] and result["features"] == 16
        seeds.append(attention.seeds[1:])
        # || (1 + seed) 1 1^T || = (1 + seed) sqrt(16 * 4).
        assert result["absolute"] == [pytest.approx([8 * (1 + drawn)] * 2) for drawn in seeds[-1]]
    assert seeds[0] == list(range(12)) and len({*seeds[0], *seeds[1], *seeds[2]}) == 36, "other cells share no draw"
    assert max(seeds[2]) == 2**63 - 1, "the largest that a mechanism takes"


def test_sequences_are_compared_with_their_own_exact_output():
    result, _, _ = measured(Fake(itself, random=True), itself, repeats=3)
    assert torch.tensor(result["absolute"]).max() == 0
    norms = result["exact_norm"]
    assert norms[0] == norms[1] == norms[2] != norms[3] == norms[4] == norms[5]


@pytest.mark.parametrize("planted", [math.nan, -math.inf])
@pytest.mark.parametrize("where", ["output", "exact"])
def test_a_value_that_is_not_finite_is_never_a_norm(planted, where):
    def plant(query, key, value, *seed):
        output = value.clone()
        output[0, 1, 5, 2] = planted
        return output

    with pytest.raises(NonFiniteError, match=r"1 of 1536 values are not finite, the first at \(0, 1, 5, 2\)"):
        measured(*((plant, itself) if where == "output" else (itself, plant)))


def test_what_has_no_relative_error():
    with pytest.raises(NonFiniteError, match="relative error"):
        measured(zeros, zeros)
    with pytest.raises(UnsupportedError, match="fake is a function of its own"):
        measured(Fake(zeros, approximates=None), SOFTMAX)
