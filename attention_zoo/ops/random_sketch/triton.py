"""A level of a random sketch as a custom operator: `factor (norm(x) G1) o (y G2)`, y the same as `norm(x)` or another.

PolySketchFormer (ICML version), Algorithm 1. The matrices are drawn, and get no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_zoo.ops.autocast import autocast
from attention_zoo.ops.launching import by_rows, configuration, launcher, precision
from attention_zoo.ops.random_sketch.kernels import sketch_gradient_kernel, sketch_kernel
from attention_zoo.ops.random_sketch.tiles import ROWS


def random_sketch(
    x: Tensor, y: Tensor | None, norm: torch.nn.LayerNorm | None, matrices: Tensor, factor: float
) -> Tensor:
    """`factor (norm(x) G1) o (norm(x) G2)`, or `factor (x G1) o (y G2)`.

    Args:
        x: `(batch, heads, n, width)`; so is y, which comes without a norm.
        norm: over the width; None is none.
        matrices: `(groups, width, 2, r)`, G1 and G2 of each head, or of all.
        factor: of the result.

    Returns:
        `(batch, heads, n, r)`.
    """
    given = (x,) if y is None else (x, y)
    x, *others = map(by_rows, autocast(*given))
    weight, bias, eps = (None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
    return sketch(x, others[0] if others else None, weight, bias, matrices.to(x.dtype), factor, eps)


def _strides(*tensors: Tensor | None) -> list[int]:
    return [stride for x in tensors for stride in ((0, 0, 0) if x is None else x.stride()[:3])]


def _sizes(x: Tensor, matrices: Tensor) -> tuple[int, int, int]:
    """Heads, rows, and how far the matrices of a head are from those of the next."""
    return x.shape[1], x.shape[2], matrices.stride(0) if len(matrices) > 1 else 0


def launch(
    x: Tensor, y: Tensor | None, weight: Tensor | None, bias: Tensor | None, matrices: Tensor, factor: float, eps: float
) -> Tensor:
    """The forward kernel."""
    (batch, heads, seq_len, width), r = x.shape, matrices.shape[-1]
    tiles = configuration(ROWS, "sketch", x, width=width, r=r)
    out = x.new_empty(batch, heads, seq_len, r)
    launcher(sketch_kernel, x, batch * heads * -(-seq_len // tiles.tiles["BLOCK_T"]))(
        *(x, y, weight, bias, matrices, out, factor, eps, *_sizes(x, matrices), *_strides(x, y)),
        *(width, r, precision(x)),
        **tiles.options,
    )
    return out


@torch.library.custom_op("attention_zoo::random_sketch", mutates_args=())
def sketch(
    x: Tensor, y: Tensor | None, weight: Tensor | None, bias: Tensor | None, matrices: Tensor, factor: float, eps: float
) -> Tensor:
    """As `random_sketch`."""
    return launch(x, y, weight, bias, matrices, factor, eps)


@sketch.register_fake
def _(x: Tensor, y: Any, weight: Any, bias: Any, matrices: Tensor, factor: float, eps: float) -> Tensor:
    return x.new_empty(*x.shape[:3], matrices.shape[-1])


def launch_backward(
    grad: Tensor,
    x: Tensor,
    y: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    matrices: Tensor,
    factor: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The backward kernel, and the sums of what its programs have of the norm's gradients."""
    (batch, heads, seq_len, width), r = x.shape, matrices.shape[-1]
    tiles = configuration(ROWS, "gradient", x, width=width, r=r)
    programs = batch * heads * -(-seq_len // tiles.tiles["BLOCK_T"])
    grad = by_rows(grad)
    d_x, d_y = x.new_empty(x.shape), None if y is None else x.new_empty(y.shape)
    d_norm = None if weight is None else x.new_empty(2, programs, width, dtype=torch.float32)
    launcher(sketch_gradient_kernel, x, programs)(
        *(x, y, weight, bias, matrices, grad, d_x, d_y, *((None, None) if d_norm is None else d_norm)),
        *(factor, eps, *_sizes(x, matrices), *_strides(x, y, grad), width, r, precision(x)),
        **tiles.options,
    )
    of_y = x.new_empty(0) if d_y is None else d_y
    if d_norm is None or weight is None:
        return d_x, of_y, x.new_empty(0), x.new_empty(0)
    d_weight, d_bias = d_norm.sum(1).to(weight.dtype).unbind()
    return d_x, of_y, d_weight.clone(), d_bias.clone()


@torch.library.custom_op("attention_zoo::random_sketch_backward", mutates_args=())
def sketch_backward(
    grad: Tensor,
    x: Tensor,
    y: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    matrices: Tensor,
    factor: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, y, weight and bias; empty for those that are None."""
    return launch_backward(grad, x, y, weight, bias, matrices, factor, eps)


@sketch_backward.register_fake
def _(
    grad: Tensor, x: Tensor, y: Tensor | None, weight: Tensor | None, bias: Tensor | None, *_: Any
) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(0) if z is None else z.new_empty(z.shape) for z in (x, y, weight, bias))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.settings = inputs[5:]


def _pull(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *inputs, matrices = ctx.saved_tensors
    gradients = sketch_backward(grad, *inputs, matrices, *ctx.settings)
    return *(None if z is None else d for z, d in zip(inputs, gradients, strict=True)), None, None, None


sketch.register_autograd(_pull, setup_context=_setup)
