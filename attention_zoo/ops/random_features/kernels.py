"""Triton kernels for positive random features and for one level of a random sketch; each input is read once.

The exponents of positive features are never in memory. `products` are `x W^T` without the factor of x, which multiplies
them when they become exponents.
"""

import triton
import triton.language as tl

from attention_zoo.ops.kernels import affine, first_of_rows, own_rows, pull_back, standardised

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _weights(matrix, f, WIDTH: tl.constexpr, M: tl.constexpr, BLOCK_F: tl.constexpr):
    """Rows of the matrix `(m, width)` from f on, zeros after the last one."""
    features, d = f + tl.arange(0, BLOCK_F)[:, None], tl.arange(0, WIDTH)[None, :]
    return tl.load(matrix + features * WIDTH + d, features < M, 0.0)


@triton.jit
def _products(x, high, low, f, WIDTH: tl.constexpr, M: tl.constexpr, PRECISION: tl.constexpr, BLOCK_F: tl.constexpr):
    """Products of rows with the features from f on; `-inf` where there is no feature."""
    products = tl.dot(x, tl.trans(high), input_precision=PRECISION)
    if low is not None:
        products = tl.dot(x, tl.trans(_weights(low, f, WIDTH, M, BLOCK_F)), products)
    if M % BLOCK_F != 0:
        products = tl.where(f + tl.arange(0, BLOCK_F)[None, :] < M, products, float("-inf"))
    return products


@triton.jit
def features_kernel(
    x,  # Strided (batch, heads, n, width)
    high,  # (m, width), the projection in the dtype of x
    low,  # (m, width), the rounding error of `high`; None is zero
    out,  # (batch * heads, n, columns)
    log_scale,  # (batch * heads, n)
    factor, eps, heads,
    WIDTH: tl.constexpr, M: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_F: tl.constexpr,
):  # fmt: skip
    """The features of a tile of rows, padded with zeros to `COLUMNS`, and their log scales."""
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
    d_features,  # Strided (batch, heads, n, columns)
    d_log_scale,  # (batch * heads, n); None is zeros
    d_x,  # (batch * heads, n, width)
    factor, heads,
    WIDTH: tl.constexpr, M: tl.constexpr, PRECISION: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of rows; sums are relative to the largest exponent so far."""
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
    # A row's largest feature is constant. Its gradient was added to both sums, through `high` alone, and cancels here.
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


@triton.jit
def _inputs(x, y, weight, bias, eps, heads, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr):
    """A program's head and rows, its tiles of both inputs, and `standardised` of the first before its layer norm."""
    head, rows, first = own_rows(x, heads, WIDTH, BLOCK_T)
    unit, rate = first, first  # not used without a norm; Triton 3.6 cannot return None
    if weight is not None:
        unit, rate = standardised(first.to(tl.float32), eps, WIDTH)
        first = affine(unit, weight, bias, WIDTH).to(first.dtype)
    second = first
    if y is not None:
        _, _, second = own_rows(y, heads, WIDTH, BLOCK_T)
    return head, rows, first, second, unit, rate


@triton.jit
def sketch_kernel(
    x,  # Strided (batch, heads, n, width)
    y,  # the same; None is x
    weight,  # (width,), of the layer norm; None is without a norm
    bias,
    matrices,  # (groups, width, 2, r)
    out,  # (batch * heads, n, r)
    factor, eps, heads, stride_group,
    WIDTH: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """`factor (x G1) o (y G2)` of a tile of rows."""
    head, rows, first, second, _, _ = _inputs(x, y, weight, bias, eps, heads, WIDTH, BLOCK_T)
    d, r, visible = tl.arange(0, WIDTH), tl.arange(0, R), (rows < x.rows)[:, None]
    matrix = matrices + head % heads * stride_group + d[:, None] * 2 * R + r[None, :]
    # One matrix after the other: both at once, as in the gradient, take 2 KiB more shared memory.
    left = tl.dot(first, tl.load(matrix), input_precision=PRECISION)
    right = tl.dot(second, tl.load(matrix + R), input_precision=PRECISION)
    place = out + (head.to(tl.int64) * x.rows + rows[:, None]) * R + r[None, :]
    tl.store(place, (left * right * factor).to(out.dtype.element_ty), visible)


@triton.jit
def sketch_gradient_kernel(
    x, y, weight, bias, matrices,
    grad,  # Strided (batch, heads, n, r)
    d_x,  # (batch * heads, n, width)
    d_y,  # the same, or None
    d_weight,  # (programs, width), or None
    d_bias,
    factor, eps, heads, stride_group,
    WIDTH: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of rows, and its contribution to the gradients of the layer norm's parameters."""
    head, rows, first, second, unit, rate = _inputs(x, y, weight, bias, eps, heads, WIDTH, BLOCK_T)
    d, r, visible = tl.arange(0, WIDTH), tl.arange(0, R), (rows < x.rows)[:, None]
    matrix = matrices + head % heads * stride_group + d[:, None] * 2 * R + r[None, :]
    left_matrix, right_matrix = tl.load(matrix), tl.load(matrix + R)
    left = tl.dot(first, left_matrix, input_precision=PRECISION)
    right = tl.dot(second, right_matrix, input_precision=PRECISION)
    upstream = tl.load(first_of_rows(grad, head, heads, rows) + r[None, :], visible, 0.0).to(tl.float32) * factor
    of_left, of_right = (upstream * right).to(first.dtype), (upstream * left).to(first.dtype)
    d_first = tl.dot(of_left, tl.trans(left_matrix), input_precision=PRECISION)
    of_head = (head.to(tl.int64) * x.rows + rows[:, None]) * WIDTH + d[None, :]
    if y is not None:
        d_second = tl.dot(of_right, tl.trans(right_matrix), input_precision=PRECISION)
        tl.store(d_y + of_head, d_second.to(d_y.dtype.element_ty), visible)
    else:
        d_first = tl.dot(of_right, tl.trans(right_matrix), d_first, input_precision=PRECISION)
    if weight is not None:
        d_first = pull_back(d_first, unit, rate, weight, d_weight, d_bias, WIDTH)
    tl.store(d_x + of_head, d_first.to(d_x.dtype.element_ty), visible)
