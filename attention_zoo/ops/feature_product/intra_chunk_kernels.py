"""Triton kernels for the gradients inside a chunk, where every weight is computed."""

import triton
import triton.language as tl

from attention_zoo.ops.feature_product.output_kernels import rows_before, rows_of_tile
from attention_zoo.ops.feature_product.state_kernels import SIZES


@triton.jit
def _power_and_slope(scores, LOG_DEGREE: tl.constexpr):
    """`s^p` and `p s^(p - 1)`, p = 2^LOG_DEGREE."""
    power, slope = scores, tl.full(scores.shape, 2**LOG_DEGREE, tl.float32)
    for _ in tl.static_range(LOG_DEGREE):
        slope = slope * power
        power = power * power
    return power, slope


@triton.jit
def _slope(scores, LOG_DEGREE: tl.constexpr):
    _, slope = _power_and_slope(scores, LOG_DEGREE)
    return slope


@triton.jit(do_not_specialize=SIZES)
def near_query_kernel(
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
                d_weights *= _slope(scores, LOG_DEGREE)
            if scales is not None:
                scale = tl.load(scales + of_head + columns, columns < end, -1e30)[None, :]
                d_weights *= tl.exp(tl.minimum(scale - highest, 0.0))
            if masked:
                d_weights = tl.where(columns[None, :] <= rows[:, None], d_weights, 0.0)
            summed = tl.dot(d_weights.to(key.dtype), key, summed, input_precision=PRECISION)
    columns = m + tl.arange(0, BLOCK_INNER)
    place = out + (of_head + rows[:, None]) * INNER + columns[None, :]
    tl.store(place, summed.to(out.dtype.element_ty), (rows < end)[:, None])


@triton.jit(do_not_specialize=SIZES)
def near_key_kernel(
    queries,  # descriptor (batch, heads, n, inner), by BLOCK_T rows and BLOCK_INNER columns
    keys,  # the same, by BLOCK_N rows
    values,  # descriptor (batch, heads, n, h), by BLOCK_N rows
    grads,  # descriptor (batch, heads, n, h), by BLOCK_T rows
    d_totals,  # (batch * heads, n)
    running,  # (batch * heads, n), the largest log scale so far, or None
    scales,  # (batch * heads, n), log scales of the keys, or None
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
                if INNER == BLOCK_INNER:
                    scores = tl.dot(key, tl.trans(query), input_precision=PRECISION)
                else:
                    scores = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
                    for other in range(0, INNER, BLOCK_INNER):
                        some = tl.reshape(keys.load([batch, own, s, other]), (BLOCK_N, BLOCK_INNER))
                        of_queries = tl.reshape(queries.load([batch, own, t, other]), (BLOCK_T, BLOCK_INNER))
                        scores = tl.dot(some, tl.trans(of_queries), scores, input_precision=PRECISION)
                power, slope = _power_and_slope(scores, LOG_DEGREE)
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
        inner = m + tl.arange(0, BLOCK_INNER)
        tl.store(d_keys + place * INNER + inner[None, :], d_key.to(d_keys.dtype.element_ty), visible)
    if d_values is not None:
        d = tl.arange(0, H)
        tl.store(d_values + place * H + d[None, :], d_value.to(d_values.dtype.element_ty), visible)
