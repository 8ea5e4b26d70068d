"""The kernels of a random sketch's level against its formula in float64: interpreted, and compiled on a GPU."""

import operations
import pytest
import torch
from closeness import assert_near
from operations import DEVICE, assert_equals_formula, drawn
from torch import nn

import attention_zoo
from attention_zoo.ops import launching
from attention_zoo.ops.polynomial.triton import Norm
from attention_zoo.ops.random_features import triton
from attention_zoo.ops.random_features.tiles import why_unsupported

HEADS = 2

pytestmark = pytest.mark.usefixtures("poisoned")


def rows(n, width, batch=2):
    return drawn(batch, HEADS, n, width) * 2 + 0.5


def assert_is_the_formula(x, groups, r, *, with_norm=True, tolerance=2e-6):
    width, matrices = x.shape[-1], drawn(groups, x.shape[-1], 2, r, seed=3).to(x.dtype)
    norm = [torch.linspace(*ends, width, device=DEVICE, dtype=x.dtype) for ends in ((0.5, 2), (-1, 1))]

    def kernels(x, *norm):
        return triton.random_sketch(x, None, Norm(*norm, 0.1) if norm else None, matrices, 0.3)

    def formula(x, weight=None, bias=None):
        return operations.random_sketch(x, None, weight, bias, matrices, 0.3)

    assert_equals_formula(kernels, formula, [x, *(norm if with_norm else ())], tolerance, rounding=None)


@pytest.mark.parametrize(("width", "r"), [(16, 128), (32, 64), (64, 32), (128, 16), (128, 128)])
def test_every_width_and_size_of_a_sketch(width, r):
    assert_is_the_formula(rows(40, width, batch=1), 1, r)


@pytest.mark.parametrize(("groups", "with_norm"), [(1, False), (HEADS, True)])
def test_matrices_of_each_head_and_no_norm(groups, with_norm):
    assert_is_the_formula(rows(70, 32), groups, 16, with_norm=with_norm)


def test_what_is_refused_is_named():
    assert why_unsupported(rows(4, 48), 16) == "the kernels take a width of 16, 32, 64, 128, not 48"
    assert why_unsupported(rows(4, 64), 24) == "the kernels take a sketch_size of 16, 32, 64, 128, not 24"
    assert why_unsupported(rows(4, 64), 32) is None


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"degree": 8, "scale": 0.7},
        {"degree": 16, "scale": 0.3, "qk_layernorm": False},
        {"sketch": "srht", "per_head": True, "scale": 0.2},
    ],
)
def test_the_features_of_a_mechanism_are_those_of_its_modules(given, monkeypatch):
    monkeypatch.setattr(launching, "is_gpu", lambda device: True)
    attention = attention_zoo.create("polysketch", head_dim=16, num_heads=HEADS, sketch_size=16, **given).to(DEVICE)
    x = rows(30, 16) * 0.5
    expected = attention.double().features(x.double())
    actual = attention.float()._features_by_kernels(x)
    assert_near(actual, expected, 5e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits(dtype):
    assert_is_the_formula(rows(300, 64).to(dtype), 1, 32, tolerance=1e-2)


@pytest.mark.parametrize("norm", [nn.RMSNorm(32), nn.LayerNorm(32, bias=False), nn.LayerNorm(32, 1e-5, False)])
@pytest.mark.parametrize("name", ["polynomial", "polysketch"])
def test_a_norm_that_somebody_has_replaced_is_applied(name, norm, monkeypatch):
    """Kernels apply a LayerNorm with weight and bias; any other module comes before them."""
    given = {"sketch_size": 16} if name == "polysketch" else {}
    attention = attention_zoo.create(name, head_dim=32, num_heads=HEADS, causal=True, **given).to(DEVICE)
    attention.layernorm = norm.to(DEVICE)
    tokens = [rows(20, 32) for _ in range(3)]
    with torch.no_grad():
        attention.impl = "reference"
        expected = attention(*tokens)
        monkeypatch.setattr(launching, "is_gpu", lambda device: True)
        attention.impl = "auto"
        assert_near(attention(*tokens), expected, 1e-4)
        assert attention.executed.backend.startswith("triton")
        _, state = attention.prefill(*(x[:, :, :19] for x in tokens))
        assert_near(attention.step(*(x[:, :, 19:] for x in tokens), state)[0], expected[:, :, 19:], 1e-4)
