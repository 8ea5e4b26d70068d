"""The spectral-norm measure against closed forms, on a workbench of tensors given by hand."""

import json
import math

import numpy as np
import pytest
import torch
from no_gate import NoGate
from torch import nn

from attention_zoo import AttentionInfo, UnsupportedError, create
from bench.common.errors import NonFiniteError
from bench.measures.spectral_norm import SpectralNorm, spectral_norm


class Fake(nn.Module):
    """A mechanism that is any function of query, key, value and seed."""

    def __init__(self, function, random=False, approximates="softmax", size=None):
        super().__init__()
        self.function = function
        self.num_features = 16
        self.seeds = [0]
        self.info = AttentionInfo(
            name="fake", paper="", approximates=approximates, causal=False, padding=False, cross=False,
            random=random, complexity="", size=size,
        )  # fmt: skip

    def resample(self, seed):
        self.seeds.append(seed)

    def forward(self, query, key, value):
        return self.function(query, key, value, self.seeds[-1])


class Workbench:
    """Tensors, a mechanism and the exact function it approximates."""

    def __init__(self, attention, exact, shape=(2, 3, 64, 8), dtype=torch.float64, seed=0, repeats=2):
        self.config = {"label": "fake", "seed": seed, "repeats": repeats}
        self.device, self.dtype = torch.device("cpu"), dtype
        generator = torch.Generator().manual_seed(0)
        self._inputs = tuple(torch.randn(shape, generator=generator, dtype=dtype) for _ in range(3))
        self._attention, self._exact = attention, exact
        self.seen, self.trained = [], set()

    def inputs(self):
        return self._inputs

    def attention(self):
        return self._attention

    def exact(self):
        return self._exact

    def gate(self, inputs):
        return NoGate()

    def progress(self, done, total):
        self.seen.append((done, total))


def measure(workbench):
    return SpectralNorm().measure(workbench)


def zeros(query, key, value, seed=0):
    return torch.zeros_like(value)


def softmax(**shape):
    return create("softmax", **({"head_dim": 8, "num_heads": 3} | shape))


def test_rank_one_error():
    u = torch.linspace(-1, 2, 64, dtype=torch.float64)
    w = torch.linspace(1, 3, 8, dtype=torch.float64)

    def rank_one(query, key, value):
        return (u[:, None] * w).expand_as(value)

    result = measure(Workbench(Fake(zeros), rank_one))
    # The norm of u w^T is |u| |w|.
    norm = u.norm().item() * w.norm().item()
    for name, expected in (("absolute", norm), ("exact_norm", norm), ("relative", 1)):
        np.testing.assert_allclose(result[name], expected, rtol=1e-12)


def test_diagonal_error_takes_the_largest_entry_of_each_head():
    def diagonal(query, key, value):
        heads = [torch.diag(torch.arange(1.0, 9) * (head + 1)) for head in range(3)]
        blocks = torch.stack(heads).double()
        return torch.cat([blocks, torch.zeros(3, 56, 8)], 1).expand_as(value)

    def half(query, key, value, seed):
        return diagonal(query, key, value) / 2

    result = measure(Workbench(Fake(half), diagonal))
    # diag(1, ..., 8) times the head's factor: the norm is 8, 16, 24, the Frobenius norm is not.
    assert result["exact_norm"] == [pytest.approx([8, 16, 24], rel=1e-12)] * 2
    assert result["absolute"] == [pytest.approx([4, 8, 12], rel=1e-12)] * 2
    assert result["relative"] == [pytest.approx([0.5] * 3, rel=1e-12)] * 2


def test_the_mean_of_the_values_is_exact_where_queries_are_zero():
    def mean(query, key, value, seed):
        return value.mean(2, keepdim=True).expand_as(value)

    bench = Workbench(Fake(mean), softmax())
    bench._inputs[0].zero_()
    result = measure(bench)
    # Rows of softmax are 1/n, so BV = 1 mean(V)^T, of norm sqrt(n) |mean(V)|.
    wanted = 8 * bench._inputs[2].mean(2).norm(dim=-1)
    torch.testing.assert_close(torch.tensor(result["exact_norm"], dtype=torch.float64), wanted)
    assert torch.tensor(result["relative"]).max() < 1e-14


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-13), (torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_the_exact_mechanism_has_no_error_beyond_rounding(dtype, bound):
    result = measure(Workbench(softmax(), softmax(), dtype=dtype))
    assert torch.tensor(result["relative"]).max().item() < bound
    assert (torch.tensor(result["relative"]).max().item() > 1e-4) == (dtype == torch.bfloat16)
    assert result["reference"] == "softmax" and result["features"] is None


def test_agrees_with_numpys_singular_values_of_a_dense_computation():

    def perturbed(query, key, value, seed):
        return softmax()(query, key, value * 1.1) + 0.01 * query

    bench = Workbench(Fake(perturbed), softmax())
    result = measure(bench)
    query, key, value = (t.numpy() for t in bench.inputs())
    for sequence in range(2):
        for head in range(3):
            scores = np.exp(query[sequence, head] @ key[sequence, head].T / 8**0.5)
            exact = scores / scores.sum(1, keepdims=True) @ value[sequence, head]
            error = np.linalg.svd(0.1 * exact + 0.01 * query[sequence, head], compute_uv=False)[0]
            norm = np.linalg.svd(exact, compute_uv=False)[0]
            assert result["absolute"][sequence][head] == pytest.approx(error, rel=1e-10)
            assert result["relative"][sequence][head] == pytest.approx(error / norm, rel=1e-10)


@pytest.mark.parametrize("scale", [1.0, 1e-160, 1e-300, 1e160])
@pytest.mark.parametrize("n, h", [(200, 16), (16, 16), (5, 16), (1, 1)])
@pytest.mark.parametrize("rank", [None, 1, 3])
def test_the_gram_matrix_has_the_singular_values_of_the_matrix(n, h, rank, scale):
    generator = torch.Generator().manual_seed(n)
    matrices = torch.randn(1, 4, n, h, generator=generator, dtype=torch.float64)
    if rank:
        matrices = matrices[..., :rank] @ torch.randn(1, 4, min(rank, h), h, generator=generator, dtype=torch.float64)
    expected = scale * torch.linalg.matrix_norm(matrices[0], ord=2)
    torch.testing.assert_close(spectral_norm("", scale * matrices), expected, rtol=1e-10, atol=0)


def test_singular_values_that_are_equal_nearly_equal_or_zero():
    orthogonal = torch.linalg.qr(torch.randn(64, 8, generator=torch.Generator().manual_seed(0)).double())[0]
    nearly = orthogonal * torch.linspace(1, 1 + 1e-9, 8, dtype=torch.float64)
    stacked = torch.stack([orthogonal, nearly, torch.zeros_like(nearly)])[None]
    torch.testing.assert_close(spectral_norm("", stacked).tolist(), [1.0, 1 + 1e-9, 0.0], rtol=1e-12, atol=0)


def test_every_trial_is_one_sequence_and_one_draw_of_its_own():
    def ones(query, key, value):
        return torch.ones_like(value)

    def drawn(query, key, value, seed):
        assert len(query) == 1
        return torch.full_like(value, -seed)

    attention = Fake(drawn, random=True, size="num_features")
    bench = Workbench(attention, ones, shape=(3, 2, 16, 4), repeats=4)
    result = measure(bench)
    assert result["features"] == 16
    # || (1 + seed) 1 1^T || = (1 + seed) sqrt(16 * 4); seeds 0 ... 11.
    assert result["absolute"] == [pytest.approx([8 * (1 + trial)] * 2) for trial in range(12)]
    assert bench.seen == [(done, 12) for done in range(1, 13)]

    other = Fake(drawn, random=True)
    measure(Workbench(other, ones, shape=(3, 2, 16, 4), repeats=4, seed=1))
    assert not set(attention.seeds[1:]) & set(other.seeds[1:]), "cells of other seeds share no draw"
    assert len(set(attention.seeds[1:])) == 12


def test_what_was_trained_is_not_drawn_again():
    attention = Fake(lambda query, key, value, seed: value, random=True)
    bench = Workbench(attention, lambda query, key, value: value, shape=(3, 2, 16, 4), repeats=4)
    bench.trained = {"fake"}
    assert len(measure(bench)["absolute"]) == 3 and attention.seeds == [0]


def test_sequences_are_compared_with_their_own_exact_output():
    def value_itself(query, key, value, *seed):
        return value

    result = measure(Workbench(Fake(value_itself, random=True), value_itself, repeats=3))
    assert torch.tensor(result["absolute"]).max() == 0
    norms = result["exact_norm"]
    assert norms[0] == norms[1] == norms[2] != norms[3] == norms[4] == norms[5]


def test_what_draws_nothing_is_measured_once_per_sequence():
    attention = Fake(zeros)
    result = measure(Workbench(attention, softmax(), repeats=5))
    assert len(result["absolute"]) == len(result["relative"]) == len(result["exact_norm"]) == 2
    assert attention.seeds == [0]


@pytest.mark.parametrize("planted", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["output", "exact"])
def test_a_value_that_is_not_finite_is_never_a_norm(planted, where):
    def plant(query, key, value, *seed):
        output = value.clone()
        output[0, 1, 5, 2] = planted
        return output

    def fine(query, key, value, *seed):
        return value

    attention, exact = (plant, fine) if where == "output" else (fine, plant)
    with pytest.raises(NonFiniteError, match=r"1 of 1536 values are not finite, the first at \(0, 1, 5, 2\)"):
        measure(Workbench(Fake(attention), exact))


def test_a_relative_error_of_nothing_is_not_a_number():
    with pytest.raises(NonFiniteError, match="relative error"):
        measure(Workbench(Fake(zeros), zeros))


def test_a_function_of_its_own_has_no_error():
    with pytest.raises(UnsupportedError, match="fake is a function of its own"):
        measure(Workbench(Fake(zeros, approximates=None), softmax()))


def test_the_result_is_plain_json():
    result = measure(Workbench(Fake(zeros, approximates="polynomial"), softmax()))
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["reference"] == "polynomial"
