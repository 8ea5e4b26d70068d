"""A level of a random sketch as a custom operator: `factor (norm(x) G1) o (y G2)`, y the same as `norm(x)` or another.

PolySketchFormer (ICML version), Algorithm 1. The matrices are drawn, and get no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attention_zoo.ops.launching import Rows, configuration, launcher, precision
from attention_zoo.ops.operators import autocast, like, register_with_gradient
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
    x, *others = autocast(x) if y is None else autocast(x, y)
    weight, bias, eps = (None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
    return sketch(x, others[0] if others else None, weight, bias, matrices.to(x.dtype), factor, eps)


def launch(
    x: Tensor, y: Tensor | None, weight: Tensor | None, bias: Tensor | None, matrices: Tensor, factor: float, eps: float
) -> Tensor:
    """The forward kernel."""
    (batch, heads, seq_len, width), r = x.shape, matrices.shape[-1]
    tiles = configuration(ROWS, "sketch", x, width=width, r=r)
    out = x.new_empty(batch, heads, seq_len, r)
    launcher(sketch_kernel, x, batch * heads * -(-seq_len // tiles.tiles["BLOCK_T"]))(
        *(Rows.of(x), None if y is None else Rows.of(y), weight, bias, matrices, out, factor, eps, heads),
        *(_stride_of_groups(matrices), width, r, precision(x)),
        **tiles.options,
    )
    return out


def launch_backward(
    grad: Tensor,
    x: Tensor,
    y: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    matrices: Tensor,
    factor: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """The gradients of x, y, weight and bias, empty for those that are None; of the last two, sums over programs."""
    (batch, heads, seq_len, width), r = x.shape, matrices.shape[-1]
    tiles = configuration(ROWS, "gradient", x, width=width, r=r)
    programs = batch * heads * -(-seq_len // tiles.tiles["BLOCK_T"])
    d_x, d_y, *d_norm = like(x, y, weight, bias)
    shares = None if weight is None else x.new_empty(2, programs, width, dtype=torch.float32)
    launcher(sketch_gradient_kernel, x, programs)(
        *(Rows.of(x), None if y is None else Rows.of(y), weight, bias, matrices, Rows.of(grad), d_x),
        *(None if y is None else d_y, *((None, None) if shares is None else shares), factor, eps, heads),
        *(_stride_of_groups(matrices), width, r, precision(x)),
        **tiles.options,
    )
    if shares is not None:
        d_norm = [share.sum(0).to(parameter.dtype) for parameter, share in zip(d_norm, shares, strict=True)]
    return d_x, d_y, *d_norm


def _stride_of_groups(matrices: Tensor) -> int:
    """How far the matrices of a head are from those of the next."""
    return matrices.stride(0) if len(matrices) > 1 else 0


sketch, sketch_backward = register_with_gradient(
    *("random_sketch", launch, launch_backward),
    lambda x, y, weight, bias, matrices, *_: x.new_empty(*x.shape[:3], matrices.shape[-1]),
    tensors="Tensor x, Tensor? y, Tensor? weight, Tensor? bias, Tensor matrices",
    settings="float factor, float eps",
    gradients=4,
)
