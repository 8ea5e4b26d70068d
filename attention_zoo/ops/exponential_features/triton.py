"""Positive random features as a custom operator, relative to the largest of each row.

Choromanski et al. 2021 (Performer), section 2.4. The projection is drawn, and gets no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attention_zoo.ops.exponential_features.kernels import features_gradient_kernel, features_kernel
from attention_zoo.ops.exponential_features.tiles import ROWS
from attention_zoo.ops.launching import Rows, by_rows, configuration, launcher, precision
from attention_zoo.ops.operators import autocast, register_with_gradient


def exponential_features(
    x: Tensor, projection: Tensor, *, scale: float, eps: float, columns: int
) -> tuple[Tensor, Tensor]:
    """`(exp(W x' - t) + eps) / sqrt(m)` and its log scale `t - |x'|^2 / 2`, with `x' = sqrt(scale) x`, `t = max(W x')`.

    Args:
        x: `(batch, heads, n, width)`, a width of 16, 32, 64 or 128.
        projection: W, `(m, width)`.
        scale: of the products of rows.
        eps: added to every feature, whose largest is 1.
        columns: of the features, zeros behind the first m.

    Returns:
        Features `(batch, heads, n, columns)` in the dtype of x, log scales `(batch, heads, n)` in float32.
    """
    x = by_rows(*autocast(x))
    return features(x, *parts(projection, x.dtype), scale**0.5, eps, columns)


def parts(projection: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """A matrix and what is left of it, None where that is nothing: exponents are large, and so is their rounding."""
    projection = projection.contiguous()
    high = projection.to(dtype)
    is_exact = torch.promote_types(projection.dtype, dtype) == dtype
    return high, None if is_exact else (projection - high).to(dtype)


def launch(
    x: Tensor, high: Tensor, low: Tensor | None, factor: float, eps: float, columns: int
) -> tuple[Tensor, Tensor]:
    """As `exponential_features`, of `high + low` as W and of `factor x` as x'."""
    (batch, heads, seq_len, width), m = x.shape, len(high)
    tiles = configuration(ROWS, "features", x, width=width)
    out, log_scale = _empty(x, high, low, factor, eps, columns)
    launcher(features_kernel, x, batch * heads * -(-seq_len // tiles.tiles["BLOCK_T"]))(
        *(Rows.of(x), high, low, out, log_scale, factor, eps, heads, width, m, columns, precision(x)), **tiles.options
    )
    return out, log_scale


def _empty(x: Tensor, high: Tensor, low: Tensor | None, factor: float, eps: float, columns: int) -> tuple[Tensor, ...]:
    return x.new_empty(*x.shape[:3], columns), x.new_empty(x.shape[:3], dtype=torch.float32)


def launch_backward(
    d_features: Tensor | None,
    d_log_scale: Tensor | None,
    x: Tensor,
    high: Tensor,
    low: Tensor | None,
    factor: float,
    eps: float,
    columns: int,
) -> Tensor:
    """The gradient of x; that of a largest exponent goes to the first feature that has it."""
    (batch, heads, seq_len, width), m = x.shape, len(high)
    tiles = configuration(ROWS, "gradient", x, width=width)
    if d_features is None:
        d_features = x.new_zeros(()).expand(*x.shape[:3], columns)
    d_log_scale = None if d_log_scale is None else d_log_scale.contiguous()
    d_x = x.new_empty(x.shape)
    launcher(features_gradient_kernel, x, batch * heads * -(-seq_len // tiles.tiles["BLOCK_T"]))(
        *(Rows.of(x), high, low, Rows.of(d_features), d_log_scale, d_x, factor, heads, width, m, precision(x)),
        **tiles.options,
    )
    return d_x


features, features_backward = register_with_gradient(
    *("exponential_features", launch, launch_backward, _empty),
    tensors="Tensor x, Tensor high, Tensor? low",
    settings="float factor, float eps, SymInt columns",
    gradients=1,
    outputs=2,
    differentiable=2,
)
