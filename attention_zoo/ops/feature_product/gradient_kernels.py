"""Triton kernels for the gradients of features and values.

`y` is the gradient of the output, divided by the denominator; `w` is the gradient of the denominator. The gradient of
a query's features is `d x = S y + w z` (for squared features twice that, with `S` contracted with x): it reads the sums
over keys with gradients instead of features. Keys read sums over later queries in the same way. Inside a chunk every
weight is computed.
"""

import triton
import triton.language as tl

from attention_zoo.ops.feature_product.output_kernels import (
    power_and_slope,
    reciprocal,
    rows_before,
    rows_of_tile,
    scores_of,
    times_sums,
)
from attention_zoo.ops.feature_product.state_kernels import SIZES
from attention_zoo.ops.kernels import first_of_rows, own_rows


@triton.jit(do_not_specialize=SIZES)
def divide_kernel(
    d_out,  # Strided (batch, heads, n, h)
    out,  # (batch * heads, n, h)
    totals,  # (batch * heads, n)
    grad,  # (batch * heads, n, h)
    d_total,  # (batch * heads, n)
    heads, H: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """The gradient divided by the denominator, and the denominator's gradient; both are 0 where `reciprocal` is 0."""
    head, rows, upstream = own_rows(d_out, heads, H, BLOCK_T)
    d, visible = tl.arange(0, H)[None, :], (rows < d_out.rows)[:, None]
    at = head.to(tl.int64) * d_out.rows + rows
    total = tl.load(totals + at, rows < d_out.rows, 0.0)
    factor = reciprocal(total)[:, None]
    divided = upstream.to(tl.float32) * factor
    result = tl.load(out + at[:, None] * H + d, visible, 0.0).to(tl.float32)
    tl.store(grad + at[:, None] * H + d, divided.to(grad.dtype.element_ty), visible)
    tl.store(d_total + at, -tl.sum(divided * result, 1), rows < d_out.rows)


@triton.jit
def _from_norms(own, norms, row_weights, at, head, rows, seq_len, end, R: tl.constexpr, PRECISION: tl.constexpr):
    """`w x Z` for the rows that `own` points to."""
    r = tl.arange(0, R)
    whole = tl.load(own + r[None, :], (rows < end)[:, None], 0.0)
    norm = tl.load(norms + at.to(tl.int64) * R * R + r[:, None] * R + r[None, :])
    summed = times_sums(whole, norm, PRECISION)
    if row_weights is not None:
        summed *= tl.load(row_weights + head.to(tl.int64) * seq_len + rows, rows < end, 0.0)[:, None]
    return summed


@triton.jit(do_not_specialize=SIZES)
def square_gradient_kernel(
    x,  # Strided (batch, heads, n, r)
    y,  # descriptor (batch, heads, n, h)
    row_weights,  # (batch * heads, n), or None
    states,  # descriptor (batch * heads * chunks * r * h, r)
    norms,  # (batch * heads, chunks, r, r), float32
    out,  # (batch * heads, n, r)
    heads, chunk_size, chunks, first_reader, last_reader,
    R: tl.constexpr, H: tl.constexpr, ADD: tl.constexpr, PRECISION: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """`2 (x (x) y) S + 2 w x Z`: the features `x_i y_d` are computed in registers, 128 at a time."""
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
    # float32: add before the loop (after it, registers spill). 16 bits: after it (before it, dot products serialise).
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


@triton.jit
def _store_rows(out, tile, rows, first, visible, WIDTH: tl.constexpr):
    """Store columns from `first` on of rows of `out`."""
    columns = first + tl.arange(0, tile.shape[1])
    tl.store(out + rows * WIDTH + columns[None, :], tile.to(out.dtype.element_ty), visible)


@triton.jit(do_not_specialize=SIZES)
def intra_chunk_query_kernel(
    queries,  # descriptor (batch, heads, n, inner), by BLOCK_T rows and BLOCK_INNER columns
    keys,  # the same, by BLOCK_N rows
    values,  # descriptor (batch, heads, n, h), by BLOCK_N rows
    grads,  # descriptor (batch, heads, n, h), by BLOCK_T rows
    d_totals,  # (batch * heads, n)
    running,  # (batch * heads, n), the largest log scale so far, or None
    scales,  # (batch * heads, n), log scales of the keys, or None
    out,  # (batch * heads, n, inner)
    heads, seq_len, chunk_size,
    H: tl.constexpr, INNER: tl.constexpr, LOG_DEGREE: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_INNER: tl.constexpr,
):  # fmt: skip
    """The gradient of `BLOCK_T` queries from the keys of their chunk."""
    head, _, t, begin, end = rows_of_tile(seq_len, chunk_size, BLOCK_T)
    if t >= end:
        return
    batch, own, m = head // heads, head % heads, tl.program_id(1) * BLOCK_INNER
    rows = t + tl.arange(0, BLOCK_T)
    of_head = head.to(tl.int64) * seq_len
    query = tl.reshape(queries.load([batch, own, t, m]), (BLOCK_T, BLOCK_INNER))
    grad = tl.reshape(grads.load([batch, own, t, 0]), (BLOCK_T, H))
    d_total = tl.load(d_totals + of_head + rows, rows < end, 0.0)[:, None]
    highest = d_total
    if scales is not None:
        highest = tl.load(running + of_head + rows, rows < end, 0.0)[:, None]
    summed = tl.zeros((BLOCK_T, BLOCK_INNER), tl.float32)
    for masked in tl.static_range(2):
        for s in range(t if masked else begin, tl.minimum(t + BLOCK_T, end) if masked else t, BLOCK_N):
            columns = s + tl.arange(0, BLOCK_N)
            key = tl.reshape(keys.load([batch, own, s, m]), (BLOCK_N, BLOCK_INNER))
            value = tl.reshape(values.load([batch, own, s, 0]), (BLOCK_N, H))
            if masked and RAGGED:
                key = rows_before(key, s, end, BLOCK_N)
            d_weights = tl.dot(grad, tl.trans(value), input_precision=PRECISION) + d_total
            if LOG_DEGREE > 0:
                scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
                _power, slope = power_and_slope(scores, LOG_DEGREE)
                d_weights *= slope
            if scales is not None:
                scale = tl.load(scales + of_head + columns, columns < end, -1e30)[None, :]
                d_weights *= tl.exp(tl.minimum(scale - highest, 0.0))
            if masked:
                d_weights = tl.where(columns[None, :] <= rows[:, None], d_weights, 0.0)
            summed = tl.dot(d_weights.to(key.dtype), key, summed, input_precision=PRECISION)
    _store_rows(out, summed, of_head + rows[:, None], m, (rows < end)[:, None], INNER)


@triton.jit(do_not_specialize=SIZES)
def intra_chunk_key_kernel(
    queries, keys, values, grads, d_totals, running, scales,  # as in `intra_chunk_query_kernel`
    d_keys,  # (batch * heads, n, inner), or None
    d_values,  # (batch * heads, n, h), or None
    heads, seq_len, chunk_size,
    H: tl.constexpr, INNER: tl.constexpr, LOG_DEGREE: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_INNER: tl.constexpr,
):  # fmt: skip
    """The gradients of `BLOCK_N` keys and values from the queries of their chunk; weights are transposed."""
    head, _, s, _, end = rows_of_tile(seq_len, chunk_size, BLOCK_N)
    if s >= end:
        return
    batch, own, m = head // heads, head % heads, tl.program_id(1) * BLOCK_INNER
    columns = s + tl.arange(0, BLOCK_N)
    of_head = head.to(tl.int64) * seq_len
    key = tl.reshape(keys.load([batch, own, s, m]), (BLOCK_N, BLOCK_INNER))
    value = tl.reshape(values.load([batch, own, s, 0]), (BLOCK_N, H))
    scale = tl.zeros((BLOCK_N, 1), tl.float32)
    if scales is not None:
        scale = tl.load(scales + of_head + columns, columns < end, -1e30)[:, None]
    d_key = tl.zeros((BLOCK_N, BLOCK_INNER), tl.float32)
    d_value = tl.zeros((BLOCK_N, H), tl.float32)
    for masked in tl.static_range(2):
        for t in range(s if masked else s + BLOCK_N, tl.minimum(s + BLOCK_N, end) if masked else end, BLOCK_T):
            rows = t + tl.arange(0, BLOCK_T)
            d_total = tl.load(d_totals + of_head + rows, rows < end, 0.0)[None, :]
            query = tl.reshape(queries.load([batch, own, t, m]), (BLOCK_T, BLOCK_INNER))
            grad = tl.reshape(grads.load([batch, own, t, 0]), (BLOCK_T, H))
            power = tl.full((BLOCK_N, BLOCK_T), 1.0, tl.float32)
            slope = power
            if d_values is not None or LOG_DEGREE > 0:
                scores = scores_of(key, query, keys, queries, batch, own, s, t, INNER, PRECISION)
                power, slope = power_and_slope(scores, LOG_DEGREE)
            if scales is not None:
                highest = tl.load(running + of_head + rows, rows < end, 0.0)[None, :]
                relative = tl.exp(tl.minimum(scale - highest, 0.0))
                power, slope = power * relative, slope * relative
            if masked or RAGGED:
                visible = (columns[:, None] <= rows[None, :]) & (rows < end)[None, :]
                power, slope = tl.where(visible, power, 0.0), tl.where(visible, slope, 0.0)
            if d_values is not None:
                d_value = tl.dot(power.to(grad.dtype), grad, d_value, input_precision=PRECISION)
            if d_keys is not None:
                d_weights = tl.dot(value, tl.trans(grad), input_precision=PRECISION) + d_total
                d_key = tl.dot((d_weights * slope).to(query.dtype), query, d_key, input_precision=PRECISION)
    visible = (columns < end)[:, None]
    place = of_head + columns[:, None]
    if d_keys is not None:
        _store_rows(d_keys, d_key, place, m, visible, INNER)
    if d_values is not None:
        _store_rows(d_values, d_value, place, 0, visible, H)
