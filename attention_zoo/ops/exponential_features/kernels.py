"""Triton kernels for positive random features: rows are read once, no exponent is ever in memory.

`products` are `x W^T` with the factor of x left out: it multiplies them where they are exponents.
"""

import triton
import triton.language as tl

from attention_zoo.ops.kernels import first_of_rows, own_rows

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _weights(matrix, f, WIDTH: tl.constexpr, M: tl.constexpr, BLOCK_F: tl.constexpr):
    """Rows f of `(m, width)`, zeros behind the last."""
    features, d = f + tl.arange(0, BLOCK_F)[:, None], tl.arange(0, WIDTH)[None, :]
    return tl.load(matrix + features * WIDTH + d, features < M, 0.0)


@triton.jit
def _products(x, high, low, f, WIDTH: tl.constexpr, M: tl.constexpr, PRECISION: tl.constexpr, BLOCK_F: tl.constexpr):
    """Products of rows with features f and those behind it; they are `-inf` where there is no feature."""
    products = tl.dot(x, tl.trans(high), input_precision=PRECISION)
    if low is not None:
        products = tl.dot(x, tl.trans(_weights(low, f, WIDTH, M, BLOCK_F)), products)
    if M % BLOCK_F != 0:
        products = tl.where(f + tl.arange(0, BLOCK_F)[None, :] < M, products, float("-inf"))
    return products


@triton.jit
def features_kernel(
    x,  # Rows (batch, heads, n, width)
    high,  # (m, width), the projection in the dtype of x
    low,  # (m, width), what that leaves of it; None is nothing
    out,  # (batch * heads, n, columns)
    log_scale,  # (batch * heads, n)
    factor, eps, heads,
    WIDTH: tl.constexpr, M: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_F: tl.constexpr,
):  # fmt: skip
    """The features of a tile of rows and zeros up to `COLUMNS`, and the logarithm of what was divided by."""
    head, rows, own = own_rows(x, heads, WIDTH, BLOCK_T)
    visible = rows < x.rows
    largest = tl.full((BLOCK_T,), float("-inf"), tl.float32)
    for f in range(0, M, BLOCK_F):
        weights = _weights(high, f, WIDTH, M, BLOCK_F)
        largest = tl.maximum(largest, tl.max(_products(own, weights, low, f, WIDTH, M, PRECISION, BLOCK_F), 1))
    at = head.to(tl.int64) * x.rows + rows
    squares = own.to(tl.float32) * own.to(tl.float32)
    tl.store(log_scale + at, factor * (largest - factor / 2 * tl.sum(squares, 1)), visible)
    for f in range(0, COLUMNS, BLOCK_F):
        weights = _weights(high, f, WIDTH, M, BLOCK_F)
        products = _products(own, weights, low, f, WIDTH, M, PRECISION, BLOCK_F)
        features = (tl.exp2((products - largest[:, None]) * (factor * LOG2E)) + eps) * M**-0.5
        columns = f + tl.arange(0, BLOCK_F)[None, :]
        if M != COLUMNS:
            features = tl.where(columns < M, features, 0.0)
        place = out + at[:, None] * COLUMNS + columns
        tl.store(place, features.to(out.dtype.element_ty), visible[:, None] & (columns < COLUMNS))


@triton.jit
def features_gradient_kernel(
    x, high, low,
    d_features,  # Rows (batch, heads, n, columns)
    d_log_scale,  # (batch * heads, n); None is zeros
    d_x,  # (batch * heads, n, width)
    factor, heads,
    WIDTH: tl.constexpr, M: tl.constexpr, PRECISION: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of rows, summed relative to the largest exponent so far."""
    head, rows, own = own_rows(x, heads, WIDTH, BLOCK_T)
    d, visible = tl.arange(0, WIDTH)[None, :], (rows < x.rows)[:, None]
    upstream = first_of_rows(d_features, head, heads, rows)
    largest = tl.full((BLOCK_T,), float("-inf"), tl.float32)
    first = tl.zeros((BLOCK_T,), tl.int32)
    total = tl.zeros((BLOCK_T,), tl.float32)
    summed = tl.zeros((BLOCK_T, WIDTH), tl.float32)
    for f in range(0, M, BLOCK_F):
        weights = _weights(high, f, WIDTH, M, BLOCK_F)
        products = _products(own, weights, low, f, WIDTH, M, PRECISION, BLOCK_F)
        columns = f + tl.arange(0, BLOCK_F)[None, :]
        best = tl.max(products, 1)
        index = tl.min(tl.where(products < best[:, None], M, columns), 1)
        first = tl.where(best > largest, index, first)
        best = tl.maximum(largest, best)
        d_exponents = tl.load(upstream + columns, visible & (columns < M), 0.0).to(tl.float32)
        d_exponents *= tl.exp2((products - best[:, None]) * (factor * LOG2E))
        decay = tl.exp2((largest - best) * (factor * LOG2E))
        total = total * decay + tl.sum(d_exponents, 1)
        summed = tl.dot(d_exponents.to(own.dtype), weights, summed * decay[:, None], input_precision=PRECISION)
        largest = best
    # A row's largest feature is a constant: its gradient has added to both, of `high` alone, and cancels.
    d_largest, summed = -total * M**-0.5, summed * M**-0.5
    at, of_first = head.to(tl.int64) * x.rows + rows, first[:, None] * WIDTH + d
    if d_log_scale is not None:
        d_scale = tl.load(d_log_scale + at, rows < x.rows, 0.0)
        d_largest += d_scale
        summed -= (factor * d_scale)[:, None] * own.to(tl.float32)
        if low is not None:
            summed += d_scale[:, None] * tl.load(low + of_first).to(tl.float32)
    summed += d_largest[:, None] * tl.load(high + of_first).to(tl.float32)
    tl.store(d_x + at[:, None] * WIDTH + d, (factor * summed).to(d_x.dtype.element_ty), visible)
