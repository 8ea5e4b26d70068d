"""Positive random features as a custom operator, relative to the largest of each row.

Choromanski et al. 2021 (Performer), section 2.4. The projection is drawn, and gets no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_zoo.ops.autocast import autocast
from attention_zoo.ops.exponential_features.kernels import features_gradient_kernel, features_kernel
from attention_zoo.ops.exponential_features.tiles import ROWS
from attention_zoo.ops.launching import by_rows, configuration, launcher, precision


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
    """The forward kernel."""
    (batch, heads, seq_len, width), m = x.shape, len(high)
    tiles = configuration(ROWS, "features", x, width=width)
    out = x.new_empty(batch, heads, seq_len, columns)
    log_scale = x.new_empty(batch, heads, seq_len, dtype=torch.float32)
    launcher(features_kernel, x, batch * heads * -(-seq_len // tiles.tiles["BLOCK_T"]))(
        *(x, high, low, out, log_scale, factor, eps, heads, seq_len, *x.stride()[:3]),
        *(width, m, columns, precision(x)),
        **tiles.options,
    )
    return out, log_scale


@torch.library.custom_op("attention_zoo::exponential_features", mutates_args=())
def features(
    x: Tensor, high: Tensor, low: Tensor | None, factor: float, eps: float, columns: int
) -> tuple[Tensor, Tensor]:
    """As `exponential_features`, of `high + low` as W and of `factor x` as x'."""
    return launch(x, high, low, factor, eps, columns)


@features.register_fake
def _(x: Tensor, high: Tensor, low: Tensor | None, factor: float, eps: float, columns: int) -> tuple[Tensor, Tensor]:
    return x.new_empty(*x.shape[:3], columns), x.new_empty(x.shape[:3], dtype=torch.float32)


def launch_backward(
    d_features: Tensor, d_log_scale: Tensor | None, x: Tensor, high: Tensor, low: Tensor | None, factor: float
) -> Tensor:
    """The backward kernel."""
    (batch, heads, seq_len, width), m = x.shape, len(high)
    tiles = configuration(ROWS, "gradient", x, width=width)
    d_features, d_x = by_rows(d_features), x.new_empty(x.shape)
    d_log_scale = None if d_log_scale is None else d_log_scale.contiguous()
    launcher(features_gradient_kernel, x, batch * heads * -(-seq_len // tiles.tiles["BLOCK_T"]))(
        *(x, high, low, d_features, d_log_scale, d_x, factor, heads, seq_len),
        *(*x.stride()[:3], *d_features.stride()[:3], width, m, precision(x)),
        **tiles.options,
    )
    return d_x


@torch.library.custom_op("attention_zoo::exponential_features_backward", mutates_args=())
def features_backward(
    d_features: Tensor, d_log_scale: Tensor | None, x: Tensor, high: Tensor, low: Tensor | None, factor: float
) -> Tensor:
    """The gradient of x; that of a largest exponent goes to the first feature that has it."""
    return launch_backward(d_features, d_log_scale, x, high, low, factor)


@features_backward.register_fake
def _(d_features: Tensor, d_log_scale: Tensor | None, x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, high, low, ctx.factor, _, ctx.columns = inputs
    ctx.save_for_backward(x, high, low)
    ctx.set_materialize_grads(False)


def _pull(ctx: Any, d_features: Tensor | None, d_log_scale: Tensor | None) -> tuple[Tensor | None, ...]:
    x, high, low = ctx.saved_tensors
    if d_features is None:
        d_features = x.new_zeros(()).expand(*x.shape[:3], ctx.columns)
    return features_backward(d_features, d_log_scale, x, high, low, ctx.factor), *(None for _ in range(5))


features.register_autograd(_pull, setup_context=_setup)
