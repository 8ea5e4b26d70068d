"""Triton kernels for the gradients of features and values.

With `y` the gradient of the output over its denominator and `w` that of the denominator, a query's features get
`d x = S y + w z` (twice that of `S` contracted with x, where features are squares): what was summed over keys, read
with gradients instead of features. Keys get the same of sums over queries after them.
"""

import triton
import triton.language as tl

from attention_zoo.ops.feature_product.output_kernels import reciprocal, rows_of_tile, times_sums
from attention_zoo.ops.feature_product.state_kernels import SIZES
from attention_zoo.ops.kernels import first_of_rows, rows_at


@triton.jit(do_not_specialize=SIZES)
def divide_kernel(
    d_out,  # (batch, heads, n, h), of any strides but the last
    out,  # (batch * heads, n, h)
    totals,  # (batch * heads, n)
    grad,  # (batch * heads, n, h)
    d_total,  # (batch * heads, n)
    heads, seq_len, stride_batch, stride_head, stride_row,
    H: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """The gradient over the denominator, and that of the denominator; both 0 where that has no reciprocal."""
    tiles = tl.cdiv(seq_len, BLOCK_T)
    head, rows = tl.program_id(0) // tiles, tl.program_id(0) % tiles * BLOCK_T + tl.arange(0, BLOCK_T)
    d, visible = tl.arange(0, H)[None, :], (rows < seq_len)[:, None]
    upstream = rows_at(d_out, head, heads, rows, stride_batch, stride_head, stride_row)
    at = head.to(tl.int64) * seq_len + rows
    total = tl.load(totals + at, rows < seq_len, 0.0)
    factor = reciprocal(total)[:, None]
    divided = tl.load(upstream + d, visible, 0.0).to(tl.float32) * factor
    result = tl.load(out + at[:, None] * H + d, visible, 0.0).to(tl.float32)
    tl.store(grad + at[:, None] * H + d, divided.to(grad.dtype.element_ty), visible)
    tl.store(d_total + at, -tl.sum(divided * result, 1), rows < seq_len)


@triton.jit
def _from_norms(own, norms, row_weights, at, head, rows, seq_len, end, R: tl.constexpr, PRECISION: tl.constexpr):
    """`w x Z` of the rows that `own` points to."""
    r = tl.arange(0, R)
    whole = tl.load(own + r[None, :], (rows < end)[:, None], 0.0)
    norm = tl.load(norms + at.to(tl.int64) * R * R + r[:, None] * R + r[None, :])
    summed = times_sums(whole, norm, PRECISION)
    if row_weights is not None:
        summed *= tl.load(row_weights + head.to(tl.int64) * seq_len + rows, rows < end, 0.0)[:, None]
    return summed


@triton.jit(do_not_specialize=SIZES)
def square_gradient_kernel(
    x,  # Rows (batch, heads, n, r)
    y,  # descriptor (batch, heads, n, h)
    row_weights,  # (batch * heads, n), or None
    states,  # descriptor (batch * heads * chunks * r * h, r)
    norms,  # (batch * heads, chunks, r, r), float32
    out,  # (batch * heads, n, r)
    heads, chunk_size, chunks, first_reader, last_reader,
    R: tl.constexpr, H: tl.constexpr, ADD: tl.constexpr, PRECISION: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """`2 (x (x) y) S + 2 w x Z`: the features `x_i y_d` are made in registers, 128 at a time."""
    COLUMNS: tl.constexpr = 128 // H
    head, chunk, t, _, end = rows_of_tile(x.rows, chunk_size, BLOCK_T)
    reads_sums = (chunk >= first_reader) & (chunk <= last_reader)
    if t >= end:
        return
    if ADD:
        if not reads_sums:
            return
    rows, r = t + tl.arange(0, BLOCK_T), tl.arange(0, R)
    visible = (rows < end)[:, None]
    own = first_of_rows(x, head, heads, rows)
    at = head * chunks + tl.minimum(chunk, chunks - 1)
    summed = tl.zeros((BLOCK_T, R), tl.float32)
    # Before the loop this would make products of 16 bits wait for each other, behind it those of 32 spill.
    if PRECISION == "tf32x3" and reads_sums:
        summed = _from_norms(own, norms, row_weights, at, head, rows, x.rows, end, R, PRECISION)
    right = tl.reshape(y.load([head // heads, head % heads, t, 0]), (BLOCK_T, H))
    for i in range(0, tl.where(reads_sums, R, 0), COLUMNS):
        left = tl.load(own + (i + tl.arange(0, COLUMNS))[None, :], visible, 0.0)
        products = tl.reshape(left[:, :, None] * right[:, None, :], (BLOCK_T, 128))
        state = states.load([(at * R + i) * H, 0])
        summed = tl.dot(products, state, summed, input_precision=PRECISION)
    if PRECISION != "tf32x3" and reads_sums:
        summed += _from_norms(own, norms, row_weights, at, head, rows, x.rows, end, R, PRECISION)
    place = out + (head.to(tl.int64) * x.rows + rows[:, None]) * R + r[None, :]
    summed = 2 * summed
    if ADD:
        summed += tl.load(place, visible, 0.0).to(tl.float32)
    tl.store(place, summed.to(out.dtype.element_ty), visible)


@triton.jit(do_not_specialize=SIZES)
def gradient_kernel(
    y,  # descriptor (batch, heads, n, h)
    row_weights,  # (batch * heads, n), or None
    row_scales,  # (batch * heads, n), or None
    states,  # descriptor (batch * heads * chunks * m, h)
    norms,  # (batch * heads, chunks, m)
    out,  # (batch * heads, n, m)
    heads, seq_len, chunk_size, chunks, first_reader, last_reader,
    M: tl.constexpr, H: tl.constexpr, ADD: tl.constexpr, PRECISION: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_M: tl.constexpr,
):  # fmt: skip
    """`(y S^T + w z)` times the row's scale, for `BLOCK_M` features."""
    head, chunk, t, _, end = rows_of_tile(seq_len, chunk_size, BLOCK_T)
    reads_sums = (chunk >= first_reader) & (chunk <= last_reader)
    if t >= end:
        return
    if ADD:
        if not reads_sums:
            return
    rows, m = t + tl.arange(0, BLOCK_T), tl.program_id(1) * BLOCK_M
    features = m + tl.arange(0, BLOCK_M)
    visible = (rows < end)[:, None]
    of_head = head.to(tl.int64) * seq_len + rows
    at = head * chunks + tl.minimum(chunk, chunks - 1)
    summed = tl.zeros((BLOCK_T, BLOCK_M), tl.float32)
    if reads_sums:
        grad = tl.reshape(y.load([head // heads, head % heads, t, 0]), (BLOCK_T, H))
        state = states.load([at * M + m, 0])
        summed = tl.dot(grad, tl.trans(state), input_precision=PRECISION)
        norm = tl.load(norms + at.to(tl.int64) * M + features)[None, :]
        if row_weights is not None:
            norm = norm * tl.load(row_weights + of_head, rows < end, 0.0)[:, None]
        summed += norm
        if row_scales is not None:
            summed *= tl.load(row_scales + of_head, rows < end, 0.0)[:, None]
    place = out + of_head[:, None] * M + features[None, :]
    if ADD:
        summed += tl.load(place, visible, 0.0).to(tl.float32)
    tl.store(place, summed.to(out.dtype.element_ty), visible)
