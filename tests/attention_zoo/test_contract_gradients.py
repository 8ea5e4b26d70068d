"""What every mechanism promises of its gradients, and of inputs that are extreme."""

import itertools
import re

import pytest
import torch
import torch.nn.functional as F
from contract import (
    BLOCK,
    HEAD_DIM,
    HEADS,
    LENGTH,
    assert_close,
    best_dtype,
    changes,
    every_case,
    inputs,
    make,
    matrix,
    needs_padding,
    padding_mask,
)
from small import gradients
from torch.autograd.gradcheck import GradcheckError
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import attention_zoo

# --- Gradients ------------------------------------------------------------------------------------


@every_case
def test_gradients_are_finite_and_reach_what_the_output_depends_on(name, causal):
    attention = make(name, causal=causal)
    mask = padding_mask() if attention.info.padding else None
    given = [tensor.requires_grad_() for tensor in inputs(name)]
    output = attention(*given, mask)
    leaves = [*given, *attention.parameters()]
    found = gradients(output.square(), leaves)
    assert all(gradient.isfinite().all() for gradient in found)
    for index, gradient in enumerate(found[:3]):
        moved = [tensor.flip(-1) if i == index else tensor for i, tensor in enumerate(given)]
        assert changes(attention(*moved, mask), output) == (gradient.abs().max().item() > 1e-6)
    assert all((gradient != 0).any() for gradient in found[3:])


class AsOnAGpu(TorchFunctionMode):
    """Autocast of a CPU gives these in float32, as that of a GPU does: backward passes then see several dtypes."""

    WIDE = (F.layer_norm, F.softmax, torch.softmax, torch.exp, torch.sum, torch.pow, torch.cumsum)
    WIDE += (torch.Tensor.softmax, torch.Tensor.exp, torch.Tensor.sum, torch.Tensor.pow, torch.Tensor.cumsum)

    def __torch_function__(self, function, types, given=(), named=None):
        if function in self.WIDE and torch.is_autocast_enabled("cpu"):
            given = [x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in given]
        return function(*given, **(named or {}))


@pytest.mark.parametrize("from_a_layer", [False, True], ids=["float32", "of a product"])
@every_case
def test_a_training_step_under_the_autocast_of_a_gpu_is_near_one_in_float32(name, causal, from_a_layer):
    """The backward pass runs outside of autocast, where a product of two dtypes is an error."""
    if torch.bfloat16 not in attention_zoo.info(name).dtypes or attention_zoo.info(name).package:
        pytest.skip("takes no bfloat16, or is somebody else's")
    tensors = [x.float() for x in inputs(name)]
    weight = torch.eye(HEAD_DIM).requires_grad_()
    blocks = [{"local": True, "block_size": BLOCK}] if name == "polysketch" and causal else []
    for impl, more in itertools.product(attention_zoo.info(name).implementations, [{}, *blocks]):
        if (name, impl) == ("flex_polynomial", "fused"):  # needs a GPU
            continue
        attention, found = make(name, causal=causal, dtype=torch.float32, impl=impl, **more), {}
        for half in (False, True):
            with AsOnAGpu(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
                given = [x @ weight if from_a_layer else x * weight.diagonal() for x in tensors]
                out = attention(*given)
            with AsOnAGpu():
                (found[half],) = torch.autograd.grad(out.float().square().sum(), weight)
        assert found[True].isfinite().all()
        if not attention_zoo.info(name).data_dependent:
            assert (found[True] - found[False]).norm() <= 0.1 * found[False].norm()


@every_case
def test_second_derivatives_are_right_or_an_error(name, causal):
    """Never left out in silence: `torch.autograd.grad` does not run what only raises where a leaf's `grad` is set."""
    if best_dtype(name) != torch.float64:
        pytest.skip("finite differences need float64")
    attention = make(name, causal=causal)
    given = [tensor.requires_grad_() for tensor in inputs(name, 2 * BLOCK + 1, batch=1)]
    try:
        assert torch.autograd.gradgradcheck(lambda *x: attention(*x), given, fast_mode=True)
    except GradcheckError:
        raise
    except RuntimeError as error:
        assert re.search("no second derivatives|derivative for .* is not implemented|no autograd formula", str(error))


@every_case
def test_gradients_of_a_checkpoint_may_be_asked_for_as_if_for_second_ones(name, causal):
    """A checkpoint unpacks what is saved once; `create_graph=True` does not change the first derivatives."""
    attention, given = make(name, causal=causal), [tensor.requires_grad_() for tensor in inputs(name)]
    found = [
        torch.autograd.grad(checkpoint(attention, *given, use_reentrant=False).sum(), given[2], create_graph=create)[0]
        for create in (False, True)
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize(
    "length, padded", [(1, False), (BLOCK, False), (BLOCK + 1, False), (LENGTH, False), (2, True), (LENGTH, True)]
)
@every_case
def test_outputs_and_gradients_are_those_of_attention_matrix_times_value(name, causal, length, padded):
    """Over several blocks: what a backward pass of its own recomputes, autograd derives from the dense matrix.

    Padding has none, nor has the query of a batch item that is padding only.
    """
    if padded:
        needs_padding(name)
    attention, mask = make(name, causal=causal), padding_mask(length) if padded else None
    given = [tensor.requires_grad_() for tensor in inputs(name, length)]
    leaves = [*given, *attention.parameters()]
    query, key, value = given
    weights = matrix(attention, query, key, mask, value)
    assert weights.shape == (*query.shape[:3], key.shape[2]) and weights.dtype == query.dtype
    dense = weights @ value
    outputs = attention(query, key, value, mask), dense
    assert_close(name, *outputs)
    found, expected = (gradients(output, leaves) for output in outputs)
    assert_close(name, found, expected)
    if padded:
        assert all((gradient.masked_select(mask[:, None, :, None]) == 0).all() for gradient in found[1:3])
        assert all((gradient[2] == 0).all() for gradient in found[:3])
        assert found[2].abs().sum() > 0


@every_case
def test_gradients_equal_finite_differences(name, causal):
    """Of a fixed draw: the steps are far too small to change which rows or columns are selected."""
    if torch.float64 not in attention_zoo.info(name).dtypes:
        pytest.skip("refuses float64")
    if name == "lucidrains_performer":
        pytest.skip("performer-pytorch differentiates as if its largest exponents were constants")
    attention = make(name, causal=causal, head_dim=3, num_heads=1, max_seq_len=6)
    given = [t.requires_grad_() for t in inputs(name, 6, batch=1, heads=1, head_dim=3)]
    mask = torch.tensor([[False, False, True, False, False, True]]) if attention.info.padding else None
    scale = attention(*given, mask).detach().abs().max()
    assert torch.autograd.gradcheck(lambda *qkv: attention(*qkv, mask) / scale, given, atol=1e-5, fast_mode=True)


# --- Extreme inputs -------------------------------------------------------------------------------


def extreme_queries_and_keys(length, kinds):
    """Of each kind a batch of three, one after the other; the largest |q| |k| of all but two kinds is 1000."""
    directions = torch.randn(2, 3, HEADS, length, HEAD_DIM, generator=torch.Generator().manual_seed(4)).double()
    query, key = directions / directions.norm(dim=-1, keepdim=True)
    row = query[:, :, :1].expand_as(query)
    one_hot = torch.eye(HEAD_DIM, dtype=torch.float64)[torch.arange(length) % HEAD_DIM].expand_as(query)
    norms = 10 ** torch.linspace(-3, 3, length, dtype=torch.float64)[:, None]
    root = 1000**0.5
    extreme = {
        "large": (root * query, root * key),
        "ever larger keys": (query, norms * key),
        "zero": (torch.zeros_like(query), torch.zeros_like(key)),
        "the same everywhere": (root * row, root * row),
        "opposite": (root * row, -root * row),
        "one-hot": (root * one_hot, root * one_hot),
        "ever smaller keys": (query, norms.flip(0) * key),
    }
    return [torch.cat(of_kinds) for of_kinds in zip(*list(extreme.values())[:kinds], strict=True)]


@pytest.mark.parametrize("dtype, kinds", [(torch.float32, 7), (torch.bfloat16, 3)], ids=str)
@every_case
def test_extreme_inputs_give_finite_outputs_and_gradients(name, causal, dtype, kinds):
    if dtype not in attention_zoo.info(name).dtypes:
        pytest.skip(f"refuses {dtype}")
    attention = make(name, causal=causal, dtype=dtype)
    for length in (1, LENGTH):
        extreme = *extreme_queries_and_keys(length, kinds), inputs(name, length)[2].repeat(kinds, 1, 1, 1)
        given = [tensor.to(dtype).requires_grad_() for tensor in extreme]
        leaves = [*given, *attention.parameters()]
        for mask in (None, padding_mask(length).repeat(kinds, 1)) if attention.info.padding else (None,):
            output = attention(*given, mask)
            assert output.isfinite().all()
            assert all(gradient.isfinite().all() for gradient in gradients(output.float().square(), leaves))
