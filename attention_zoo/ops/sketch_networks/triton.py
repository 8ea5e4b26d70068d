"""The networks of one level of a learned sketch by Triton kernels (PolySketchFormer, ICML version, Appendix D).

The forward pass reads its input once and writes the sketch. The backward pass runs it again and stores for each token
what is between the blocks: `h + 6 r` numbers, in 16 bits if the input has 16 bits.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from attention_zoo.ops import launching
from attention_zoo.ops.operators import autocast, register
from attention_zoo.ops.sketch_networks import kernels
from attention_zoo.ops.sketch_networks.tiles import ROWS

# Hidden units of a block, divided by r.
EXPANSION = 8
# The eps of PyTorch's LayerNorm.
EPS = 1e-5
# Programs for the gradients of weights: several per multiprocessor of any GPU, and the same sums on all GPUs.
PROGRAMS = 512
# w1, b1, w2 of the first block, w3, b3, w4 of the second, of both networks; the input of a block is its `hat`.
Weights = Sequence[Tensor]


class Between(NamedTuple):
    """What the backward pass stores for each token: `(inputs or 2, groups, rows)`, and `width` or `r` numbers a row.

    The normalised inputs of each network's blocks, one over their standard deviations, and the gradients of the
    networks' outputs.
    """

    hats: Tensor
    rstds: Tensor
    inner_hats: Tensor
    inner_rstds: Tensor
    d_networks: Tensor


def sketch_networks(
    x: Tensor, y: Tensor | None = None, *, weights: Sequence[Tensor], norms: Sequence[tuple[Tensor, Tensor]]
) -> Tensor:
    """As `cpu.sketch_networks`, of inputs that `tiles.why_unsupported` allows; no hidden unit is ever in memory."""
    inputs = autocast(x) if y is None else autocast(x, y)
    layers = zip(norms, weights[::2], weights[1::2], strict=True)
    folded = [weight for norm, into, onto in layers for weight in _fold(*norm, into, onto)]
    if weights[0].shape[1] == 1:
        return _networks(inputs, folded)
    # Heads first, so that the sequences of a group are together.
    return _networks([u.transpose(0, 1) for u in inputs], folded).transpose(0, 1)


def _fold(gain: Tensor, shift: Tensor, into: Tensor, onto: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Fold a LayerNorm's weight and bias into the layer after it: `(gain o u + shift) W = u (gain o W) + shift W`.

    In float32, under autocast too: it does not cast elementwise products.
    """
    gain, shift, into = gain.float()[:, None, :, None], shift.float()[:, None, :, None], into.float()
    return gain * into, (shift * into).sum(2), onto.float()


def gradients(d_out: Tensor, inputs: Sequence[Tensor], weights: Weights) -> list[Tensor]:
    """The gradients of the inputs, stacked, and of the weights: all kernels of the backward pass."""
    d_out = d_out.contiguous()
    # Not float16: its range is too small for gradients.
    kind = torch.float32 if d_out.dtype == torch.float32 else torch.bfloat16
    between = _empty_between(inputs, weights, kind)
    launch_networks(inputs, weights, None, d_out, between)
    first, second = (_operands(three, kind) for three in (weights[:3], weights[3:]))
    d_inner = launch_input_gradient(between.inner_hats, between.inner_rstds, between.d_networks, second, kind)
    d_inputs = launch_input_gradient(between.hats, between.rstds, d_inner, first, d_out.dtype)
    return [
        d_inputs.view(len(inputs), *inputs[0].shape),
        *launch_weight_gradients(between.hats, d_inner, first),
        *launch_weight_gradients(between.inner_hats, between.d_networks, second),
    ]


def _empty_between(inputs: Sequence[Tensor], weights: Weights, dtype: torch.dtype) -> Between:
    x, (groups, r) = inputs[0], (weights[0].shape[1], weights[2].shape[-1])
    rows = x.shape[0] * x.shape[1] * x.shape[2] // groups
    return Between(
        hats=x.new_empty(len(inputs), groups, rows, x.shape[-1], dtype=dtype),
        rstds=x.new_empty(len(inputs), groups, rows, dtype=torch.float32),
        inner_hats=x.new_empty(2, groups, rows, r, dtype=dtype),
        inner_rstds=x.new_empty(2, groups, rows, dtype=torch.float32),
        d_networks=x.new_empty(2, groups, rows, r, dtype=dtype),
    )


def launch_networks(
    inputs: Sequence[Tensor],
    weights: Weights,
    out: Tensor | None,
    d_out: Tensor | None = None,
    between: Between | None = None,
) -> None:
    """Write the sketch to `out`, or what its gradients need to `between`."""
    x, y = map(launching.by_rows, (inputs[0], inputs[-1]))
    outer, inner, n, width = x.shape
    r, groups = weights[2].shape[-1], weights[0].shape[1]
    kind = torch.float32 if x.dtype == torch.float32 else torch.float16
    chosen = launching.configuration(ROWS, "networks", x, r=r, width=width, recompute=int(between is not None))
    launching.launcher(kernels.networks, x, outer * inner * triton.cdiv(n, chosen.tiles["BLOCK_M"]))(
        *(x, y, *_operands(weights, kind), out, d_out, *([None] * 5 if between is None else between)),
        *(*x.stride()[:3], *y.stride()[:3], inner, n, outer * inner * n, groups, EPS),
        RECOMPUTE=between is not None,
        **_constants(x, width, r, len(inputs)),
        **chosen.options,
    )


def launch_input_gradient(hats: Tensor, rstds: Tensor, d_out: Tensor, weights: Weights, dtype: torch.dtype) -> Tensor:
    """The gradient of a block's input in `dtype`, shaped like the hats `(distinct, groups, rows, width)`."""
    distinct, groups, rows, width = hats.shape
    r = d_out.shape[-1]
    chosen = launching.configuration(ROWS, "input_gradient", hats, r=r, width=width)
    d_in = torch.empty_like(hats, dtype=dtype)
    launching.launcher(kernels.input_gradient, hats, distinct * groups * triton.cdiv(rows, chosen.tiles["BLOCK_M"]))(
        *(hats, rstds, d_out, *weights, d_in, rows, groups), **_constants(hats, width, r, distinct), **chosen.options
    )
    return d_in


def launch_weight_gradients(hats: Tensor, d_out: Tensor, weights: Weights) -> list[Tensor]:
    """The gradients of a block: `(2, groups, width, hidden)`, bias `(2, groups, hidden)`, `(2, groups, hidden, r)`."""
    distinct, groups, rows, width = hats.shape
    r = d_out.shape[-1]
    hidden = EXPANSION * r
    chosen = launching.configuration(ROWS, "weight_gradients", hats, r=r, width=width)
    programs = 2 * groups * (hidden // chosen.tiles["BLOCK_HIDDEN"])
    tiles = triton.cdiv(rows, chosen.tiles["BLOCK_M"])
    share = triton.cdiv(tiles, max(1, PROGRAMS // programs))
    splits = triton.cdiv(tiles, share)
    d_into, d_bias, d_onto = (
        hats.new_empty(splits, 2, groups, hidden, *width_or_r, dtype=torch.float32) for width_or_r in ([width], [], [r])
    )
    constants = _constants(hats, width, r, distinct)
    if r == 16:
        # Dot products over 16 numbers, as three in TF32, take more registers than there are.
        constants["PRECISION"] = "ieee"
    launching.launcher(kernels.weight_gradients, hats, splits * programs)(
        *(hats, d_out, *weights, d_into, d_bias, d_onto, rows, groups, share * chosen.tiles["BLOCK_M"]),
        **constants,
        **chosen.options,
    )
    return [d_into.sum(0).mT.contiguous(), d_bias.sum(0), d_onto.sum(0)]


def _operands(weights: Weights, dtype: torch.dtype) -> list[Tensor]:
    """The weights in the dtype of the products; biases are added, and keep their dtype."""
    return [(w.to(dtype) if w.ndim == 4 else w).contiguous() for w in weights]


def _constants(x: Tensor, width: int, r: int, distinct: int) -> dict[str, Any]:
    return {
        "WIDTH": width,
        "R": r,
        "HIDDEN": EXPANSION * r,
        "DISTINCT": distinct,
        # The hardware's approximations are as accurate as 16 bits.
        "FAST": x.element_size() == 2 and x.device.type != "cpu",
        "PRECISION": launching.precision(x),
    }


def _empty(inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    return inputs[0].new_empty(*inputs[0].shape[:3], weights[2].shape[-1])


def _forward(inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """The sketch of one or two inputs `(outer, inner, seq_len, width)`; the groups of the weights are 1 or outer."""
    out = _empty(inputs, weights)
    launch_networks(inputs, weights, out)
    return out


def _empty_gradients(d_out: Tensor, inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
    d_inputs = inputs[0].new_empty(len(inputs), *inputs[0].shape)
    return [d_inputs, *(torch.empty_like(w, memory_format=torch.contiguous_format) for w in weights)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors, weights = inputs
    ctx.distinct = len(tensors)
    ctx.save_for_backward(*tensors, *weights)


def _differentiate(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
    saved = ctx.saved_tensors  # checkpointing allows one access
    d_inputs, *d_weights = _backward(d_out, saved[: ctx.distinct], saved[ctx.distinct :])
    return list(d_inputs.unbind(0)), d_weights


# Not `register_with_gradient`: the gradients of two inputs are in one tensor; an operator may not return views of it.
_networks = register("sketch_networks", _forward, _empty)
_backward = register("sketch_networks_backward", gradients, _empty_gradients)
_networks.register_autograd(_differentiate, setup_context=_save)
