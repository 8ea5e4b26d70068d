"""The kernels of a random sketch's level against its formula in float64: interpreted, and compiled on a GPU."""

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_near
from torch import nn

import attention_zoo
from attention_zoo.ops import launching
from attention_zoo.ops.random_features import triton
from attention_zoo.ops.random_features.tiles import why_unsupported

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS = 2

pytestmark = pytest.mark.usefixtures("poisoned")


def rows(n, width, seed=0, batch=2):
    made = torch.randn(batch, HEADS, n, width, generator=torch.Generator().manual_seed(seed))
    return (made * 2 + 0.5).to(DEVICE)


def matrices(groups, width, r):
    return torch.randn(groups, width, 2, r, generator=torch.Generator().manual_seed(3)).to(DEVICE)


def layernorm(width):
    norm = nn.LayerNorm(width, eps=0.1)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, width))
        norm.bias.copy_(torch.linspace(-1, 1, width))
    return norm.to(DEVICE)


def by_formula(x, y, norm, matrices, factor):
    x = x if norm is None else F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)
    left, right = matrices.unbind(2)  # (groups, width, r), of all heads or of each
    return factor * (x @ left) * ((x if y is None else y) @ right)


def with_gradients(function, x, y, norm, matrices, dtype):
    leaves = [z.detach().to(dtype).requires_grad_() for z in (x, y) if z is not None]
    norm = None if norm is None else layernorm(x.shape[-1]).to(dtype)
    out = function(leaves[0], leaves[1] if y is not None else None, norm, matrices.to(dtype), 0.3)
    d_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(out)
    trained = [*leaves, *(norm.parameters() if norm else ())]
    return [out.detach(), *torch.autograd.grad(out, trained, d_out)]


def assert_is_the_formula(x, y, norm, matrices, dtype=torch.float32, tolerance=2e-6):
    actual = with_gradients(triton.random_sketch, x, y, norm, matrices, dtype)
    expected = with_gradients(by_formula, x, y, norm, matrices, torch.float64)
    assert_near(actual, expected, tolerance)


@pytest.mark.parametrize("n", [1, 2, 31, 33, 64, 65, 130])
def test_every_length(n):
    assert_is_the_formula(rows(n, 16), None, layernorm(16), matrices(1, 16, 16))


@pytest.mark.parametrize(("width", "r"), [(16, 128), (32, 64), (64, 32), (64, 128), (128, 16), (128, 128)])
def test_every_width_and_size_of_a_sketch(width, r):
    assert_is_the_formula(rows(40, width, batch=1), None, layernorm(width), matrices(1, width, r))


@pytest.mark.parametrize("groups", [1, HEADS])
@pytest.mark.parametrize("with_norm", [True, False])
def test_matrices_of_each_head_and_no_norm(groups, with_norm):
    assert_is_the_formula(rows(70, 32), None, layernorm(32) if with_norm else None, matrices(groups, 32, 16))


@pytest.mark.parametrize("groups", [1, HEADS])
def test_a_level_above_others_has_two_inputs(groups):
    assert_is_the_formula(rows(70, 32), rows(70, 32, seed=1), None, matrices(groups, 32, 32))


def test_any_strides():
    by_position = rows(50, 32).transpose(1, 2).contiguous().transpose(1, 2)
    by_column = rows(50, 32, seed=1).mT.contiguous().mT
    expanded, given = rows(1, 32).expand(-1, -1, 50, -1), matrices(1, 32, 16)
    for x, y in ((by_position, by_column), (by_column, expanded), (expanded, by_position)):
        assert_is_the_formula(x, y, None, given)
    x = by_position.clone().requires_grad_()
    gradients = (torch.autograd.grad(f(x, None, None, given, 1.0).sum(), x) for f in (triton.random_sketch, by_formula))
    assert_near(*gradients, 1e-5)  # that of a sum is one number, expanded


def test_the_operators_are_what_they_are_registered_as():
    x, norm = rows(20, 16).requires_grad_(), layernorm(16)
    torch.library.opcheck(triton.sketch, (x, None, norm.weight, norm.bias, matrices(1, 16, 16), 0.5, norm.eps))
    torch.library.opcheck(triton.sketch, (x, rows(20, 16).requires_grad_(), None, None, matrices(2, 16, 16), 0.5, 0.0))


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
    x, norm, given = rows(300, 64).to(dtype), layernorm(64), matrices(1, 64, 32).to(dtype)
    assert_is_the_formula(x, None, norm, given, dtype, 1e-2)
