"""Positive random features, and one level of a random sketch, as custom operators.

Their matrices are random, and get no gradient.
"""

import torch
from torch import Tensor

from attention_zoo.ops.launching import Strided, by_rows, configuration, launcher, precision
from attention_zoo.ops.operators import autocast, like, register_with_gradient
from attention_zoo.ops.random_features.kernels import (
    features_gradient_kernel,
    features_kernel,
    sketch_gradient_kernel,
    sketch_kernel,
)
from attention_zoo.ops.random_features.tiles import ROWS


def exponential_features(
    x: Tensor, projection: Tensor, *, scale: float, eps: float, columns: int
) -> tuple[Tensor, Tensor]:
    """`(exp(W x' - t) + eps) / sqrt(m)` and its log scale `t - |x'|^2 / 2`, with `x' = sqrt(scale) x`, `t = max(W x')`.

    Choromanski et al. 2021 (Performer), section 2.4.

    Args:
        x: `(batch, heads, n, width)`, a width of 16, 32, 64 or 128.
        projection: W, `(m, width)`.
        scale: c in `exp(c <q, k>)`.
        eps: added to every feature, relative to the largest one of its row.
        columns: of the result; those after the first m are zeros.

    Returns:
        Features `(batch, heads, n, columns)` in the dtype of x, log scales `(batch, heads, n)` in float32.
    """
    x = by_rows(*autocast(x))
    return features(x, *parts(projection, x.dtype), scale**0.5, eps, columns)


def parts(projection: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The matrix in `dtype`, and its rounding error, None if it is zero: exponents are large, so it would matter."""
    projection = projection.contiguous()
    high = projection.to(dtype)
    is_exact = torch.promote_types(projection.dtype, dtype) == dtype
    return high, None if is_exact else (projection - high).to(dtype)


def launch_features(
    x: Tensor, high: Tensor, low: Tensor | None, factor: float, eps: float, columns: int
) -> tuple[Tensor, Tensor]:
    """As `exponential_features`, with `W = high + low` and `x' = factor x`."""
    (batch, heads, seq_len, width), m = x.shape, len(high)
    tiles = configuration(ROWS, "features", x, width=width)
    out, log_scale = _empty_features(x, high, low, factor, eps, columns)
    launcher(features_kernel, x, batch * heads * -(-seq_len // tiles.tiles["BLOCK_T"]))(
        *(Strided.of(x), high, low, out, log_scale, factor, eps, heads, width, m, columns, precision(x)),
        **tiles.options,
    )
    return out, log_scale


def _empty_features(
    x: Tensor, high: Tensor, low: Tensor | None, factor: float, eps: float, columns: int
) -> tuple[Tensor, ...]:
    return x.new_empty(*x.shape[:3], columns), x.new_empty(x.shape[:3], dtype=torch.float32)


def launch_features_backward(
    d_features: Tensor | None,
    d_log_scale: Tensor | None,
    x: Tensor,
    high: Tensor,
    low: Tensor | None,
    factor: float,
    eps: float,
    columns: int,
) -> Tensor:
    """The gradient of x; the gradient of the largest exponent goes to the first feature that has it."""
    (batch, heads, seq_len, width), m = x.shape, len(high)
    tiles = configuration(ROWS, "features_gradient", x, width=width)
    if d_features is None:
        d_features = x.new_zeros(()).expand(*x.shape[:3], columns)
    d_log_scale = None if d_log_scale is None else d_log_scale.contiguous()
    d_x = x.new_empty(x.shape)
    launcher(features_gradient_kernel, x, batch * heads * -(-seq_len // tiles.tiles["BLOCK_T"]))(
        *(Strided.of(x), high, low, Strided.of(d_features), d_log_scale, d_x, factor, heads, width, m, precision(x)),
        **tiles.options,
    )
    return d_x


features, features_backward = register_with_gradient(
    *("exponential_features", launch_features, launch_features_backward, _empty_features),
    tensors="Tensor x, Tensor high, Tensor? low",
    settings="float factor, float eps, SymInt columns",
    gradients=1,
    outputs=2,
    differentiable=2,
)


def random_sketch(
    x: Tensor, y: Tensor | None, norm: torch.nn.LayerNorm | None, matrices: Tensor, factor: float
) -> Tensor:
    """`factor (norm(x) G1) o (norm(x) G2)`, or `factor (x G1) o (y G2)`: PolySketchFormer (ICML version), Algorithm 1.

    Args:
        x: `(batch, heads, n, width)`; so is y, which must come without a norm.
        norm: a layer norm over the width, or None.
        matrices: `(groups, width, 2, r)`, G1 and G2 of each head, or shared by all.
        factor: of the result.

    Returns:
        `(batch, heads, n, r)`.
    """
    x, *others = autocast(x) if y is None else autocast(x, y)
    weight, bias, eps = (None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
    return sketch(x, others[0] if others else None, weight, bias, matrices.to(x.dtype), factor, eps)


def launch_sketch(
    x: Tensor, y: Tensor | None, weight: Tensor | None, bias: Tensor | None, matrices: Tensor, factor: float, eps: float
) -> Tensor:
    """The forward kernel."""
    (batch, heads, seq_len, width), r = x.shape, matrices.shape[-1]
    tiles = configuration(ROWS, "sketch", x, width=width, r=r)
    out = x.new_empty(batch, heads, seq_len, r)
    launcher(sketch_kernel, x, batch * heads * -(-seq_len // tiles.tiles["BLOCK_T"]))(
        *(Strided.of(x), None if y is None else Strided.of(y), weight, bias, matrices, out, factor, eps, heads),
        *(_stride_of_groups(matrices), width, r, precision(x)),
        **tiles.options,
    )
    return out


def launch_sketch_backward(
    grad: Tensor,
    x: Tensor,
    y: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    matrices: Tensor,
    factor: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """The gradients of x, y, weight and bias, empty for those that are None; the last two are summed over programs."""
    (batch, heads, seq_len, width), r = x.shape, matrices.shape[-1]
    tiles = configuration(ROWS, "sketch_gradient", x, width=width, r=r)
    programs = batch * heads * -(-seq_len // tiles.tiles["BLOCK_T"])
    d_x, d_y, *d_norm = like(x, y, weight, bias)
    shares = None if weight is None else x.new_empty(2, programs, width, dtype=torch.float32)
    launcher(sketch_gradient_kernel, x, programs)(
        *(Strided.of(x), None if y is None else Strided.of(y), weight, bias, matrices, Strided.of(grad), d_x),
        *(None if y is None else d_y, *((None, None) if shares is None else shares), factor, eps, heads),
        *(_stride_of_groups(matrices), width, r, precision(x)),
        **tiles.options,
    )
    if shares is not None:
        d_norm = [share.sum(0).to(parameter.dtype) for parameter, share in zip(d_norm, shares, strict=True)]
    return d_x, d_y, *d_norm


def _stride_of_groups(matrices: Tensor) -> int:
    """The stride from the matrices of one head to those of the next."""
    return matrices.stride(0) if len(matrices) > 1 else 0


sketch, sketch_backward = register_with_gradient(
    *("random_sketch", launch_sketch, launch_sketch_backward),
    lambda x, y, weight, bias, matrices, *_: x.new_empty(*x.shape[:3], matrices.shape[-1]),
    tensors="Tensor x, Tensor? y, Tensor? weight, Tensor? bias, Tensor matrices",
    settings="float factor, float eps",
    gradients=4,
)
