"""Triton kernels for the output: each row reads the sums of the chunks before its own, and every key of its own chunk.

Squared features are computed in registers, 128 at a time, as the left operand of a dot product: `x_i x_j` for 8 indices
i and 16 indices j. They are never in memory.
"""

import triton
import triton.language as tl

from attention_zoo.ops.feature_product.state_kernels import SIZES, pair_of
from attention_zoo.ops.kernels import first_of_rows


@triton.jit
def rows_of_tile(seq_len, chunk_size, BLOCK_T: tl.constexpr):
    """The head and the chunk of a program's tile, the tile's first row, and the chunk's first row and its end."""
    tiles = tl.cdiv(seq_len, chunk_size) * tl.cdiv(chunk_size, BLOCK_T)
    head, index = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    per_chunk = tl.cdiv(chunk_size, BLOCK_T)
    chunk = index // per_chunk
    begin = chunk * chunk_size
    return head, chunk, begin + index % per_chunk * BLOCK_T, begin, tl.minimum(begin + chunk_size, seq_len)


@triton.jit
def rows_before(tile, first, end, BLOCK_T: tl.constexpr):
    """A tile with zeros for the rows of the next chunk: a weight of zero times infinity there would be NaN."""
    return tl.where((first + tl.arange(0, BLOCK_T) < end)[:, None], tile, 0.0)


@triton.jit
def power_and_slope(scores, LOG_DEGREE: tl.constexpr):
    """`s^p` and `p s^(p - 1)`, p = 2^LOG_DEGREE."""
    power, slope = scores, tl.full(scores.shape, 2**LOG_DEGREE, tl.float32)
    for _ in tl.static_range(LOG_DEGREE):
        slope = slope * power
        power = power * power
    return power, slope


@triton.jit
def reciprocal(denominator):
    """`1 / denominator`; 0 for zero and for subnormal numbers, whose inverse may be infinite."""
    return tl.where(tl.abs(denominator) < 2.0**-126, 0.0, 1 / denominator)


@triton.jit
def times_sums(x, sums, PRECISION: tl.constexpr):
    """`x @ sums` with sums in float32; for an x of 16 bits they are split into a high and a low part of 16 bits.

    What all keys have in common is large in the sums, but x may cancel it: the rest must not be rounding error.
    """
    high = sums.to(x.dtype)
    product = tl.dot(x, high, input_precision=PRECISION)
    if x.dtype != tl.float32:
        product = tl.dot(x, (sums - high.to(tl.float32)).to(x.dtype), product)
    return product


@triton.jit
def _intra_chunk_weights(
    scores, rows, columns, running, scales, head, seq_len, end,
    MASKED: tl.constexpr, LOG_DEGREE: tl.constexpr,
):  # fmt: skip
    """The weights of a tile: the power of its scores, times the scales of keys; later keys are masked."""
    weights, _ = power_and_slope(scores, LOG_DEGREE)
    if scales is not None:
        key = tl.load(scales + head.to(tl.int64) * seq_len + columns, columns < end, -1e30)
        # Exponents of later keys may be positive, and would overflow before they are masked.
        weights *= tl.exp(tl.minimum(key[None, :] - running[:, None], 0.0))
    if MASKED:
        weights = tl.where(columns[None, :] <= rows[:, None], weights, 0.0)
    return weights


@triton.jit
def scores_of(left, right, lefts, rights, batch, head, s, t, INNER: tl.constexpr, PRECISION: tl.constexpr):
    """`lefts[s:] @ rights[t:]^T`; `left` and `right` are tiles of both, perhaps with only some of their columns."""
    BLOCK_INNER: tl.constexpr = left.shape[1]
    if INNER == BLOCK_INNER:
        scores = tl.dot(left, tl.trans(right), input_precision=PRECISION)
    else:
        scores = tl.zeros((left.shape[0], right.shape[0]), tl.float32)
        for m in range(0, INNER, BLOCK_INNER):
            some = tl.reshape(lefts.load([batch, head, s, m]), left.shape)
            others = tl.reshape(rights.load([batch, head, t, m]), right.shape)
            scores = tl.dot(some, tl.trans(others), scores, input_precision=PRECISION)
    return scores


@triton.jit
def _add_intra_chunk(
    summed, total, queries, keys, values, running, scales, heads, head, seq_len, t, begin, end,
    H: tl.constexpr, INNER: tl.constexpr, BLOCK_INNER: tl.constexpr, LOG_DEGREE: tl.constexpr, RAGGED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add what rows from t on get from their own chunk, which begins at `begin`: every weight is computed."""
    batch, own, rows = head // heads, head % heads, t + tl.arange(0, BLOCK_T)
    query = tl.reshape(queries.load([batch, own, t, 0]), (BLOCK_T, BLOCK_INNER))
    for masked in tl.static_range(2):
        for s in range(t if masked else begin, tl.minimum(t + BLOCK_T, end) if masked else t, BLOCK_N):
            columns = s + tl.arange(0, BLOCK_N)
            key = tl.reshape(keys.load([batch, own, s, 0]), (BLOCK_N, BLOCK_INNER))
            scores = scores_of(query, key, queries, keys, batch, own, t, s, INNER, PRECISION)
            weights = _intra_chunk_weights(
                scores, rows, columns, running, scales, head, seq_len, end, masked, LOG_DEGREE
            )
            value = tl.reshape(values.load([batch, own, s, 0]), (BLOCK_N, H))
            if masked and RAGGED:
                value = rows_before(value, s, end, BLOCK_N)
            # Sums within a thread first: they need no shuffles.
            total += tl.sum(tl.reshape(weights, (BLOCK_T, BLOCK_N // 8, 8)), 1)
            summed = tl.dot(weights.to(value.dtype), value, summed, input_precision=PRECISION)
    return summed, total


@triton.jit
def _finish(
    out, totals, summed, total, bias, head, seq_len, rows, end,
    H: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Store rows of `out` `(batch * heads, n, h)`: divided by their denominator, or added to what is there."""
    at = head.to(tl.int64) * seq_len + rows
    place, visible = out + at[:, None] * H + tl.arange(0, H)[None, :], (rows < end)[:, None]
    if totals is not None:
        denominator = bias + tl.sum(total, 1)
        summed = summed * reciprocal(denominator)[:, None]
        tl.store(totals + at, denominator, rows < end)
    if ADD:
        summed += tl.load(place, visible, 0.0).to(tl.float32)
    tl.store(place, summed.to(out.dtype.element_ty), visible)


@triton.jit(do_not_specialize=SIZES)
def square_output_kernel(
    x,  # Strided (batch, heads, n, r)
    states,  # descriptor (batch * heads * chunks * width, h); None where there is one chunk
    norms,  # (batch * heads, chunks, r, r), float32
    queries,  # descriptor (batch, heads, n, inner)
    keys,  # the same, by BLOCK_N rows; None leaves out the weights inside chunks
    values,  # descriptor (batch, heads, n, h)
    out,  # (batch * heads, n, h)
    totals,  # (batch * heads, n), the denominators; None leaves the rows undivided
    bias, heads, chunk_size, chunks, first_reader, last_reader,
    R: tl.constexpr, H: tl.constexpr, INNER: tl.constexpr, LOG_DEGREE: tl.constexpr, ADD: tl.constexpr,
    RAGGED: tl.constexpr, PRECISION: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """`(x (x) x) S` of chunks from `first_reader` to `last_reader`, and with `keys` the weights inside each chunk."""
    BLOCKS: tl.constexpr = R // 16
    WIDTH: tl.constexpr = 128 * BLOCKS * (BLOCKS + 1)
    head, chunk, t, begin, end = rows_of_tile(x.rows, chunk_size, BLOCK_T)
    if t >= end:
        return
    rows = t + tl.arange(0, BLOCK_T)
    visible = (rows < end)[:, None]
    own = first_of_rows(x, head, heads, rows)
    at = head * chunks + tl.minimum(chunk, chunks - 1)
    reads_sums = (chunk >= first_reader) & (chunk <= last_reader)
    total = tl.zeros((BLOCK_T, 8), tl.float32)
    if keys is None:
        if not reads_sums:
            return
    summed = tl.zeros((BLOCK_T, H), tl.float32)
    if states is not None:
        for part in range(WIDTH // 128 if keys is None else tl.where(reads_sums, WIDTH // 128, 0)):
            i, j = pair_of(part // 2, BLOCKS)
            left = tl.load(own + (16 * i + 8 * (part % 2) + tl.arange(0, 8))[None, :], visible, 0.0)
            right = tl.load(own + (16 * j + tl.arange(0, 16))[None, :], visible, 0.0)
            products = tl.reshape(left[:, :, None] * right[:, None, :], (BLOCK_T, 128))
            state = states.load([at * WIDTH + 128 * part, 0])
            summed = tl.dot(products, state, summed, input_precision=PRECISION)
    if keys is not None:
        summed, total = _add_intra_chunk(
            *(summed, total, queries, keys, values, None, None, heads, head, x.rows, t, begin, end),
            *(H, INNER, INNER, LOG_DEGREE, RAGGED, PRECISION, BLOCK_T, BLOCK_N),
        )
    if totals is not None and states is not None:
        if reads_sums:
            r = tl.arange(0, R)
            whole = tl.load(own + r[None, :], visible, 0.0)
            norm = tl.load(norms + at.to(tl.int64) * R * R + r[:, None] * R + r[None, :])
            weights = times_sums(whole, norm, PRECISION) * whole.to(tl.float32)
            total += tl.sum(tl.reshape(weights, (BLOCK_T, R // 8, 8)), 1)
    _finish(out, totals, summed, total, bias, head, x.rows, rows, end, H, ADD)


@triton.jit(do_not_specialize=SIZES)
def output_kernel(
    x,  # descriptor (batch, heads, n, m), by BLOCK_T rows and BLOCK_M columns
    states,  # descriptor (batch * heads * chunks * m, h); None where there is one chunk
    norms,  # (batch * heads, chunks, m)
    queries,  # descriptor (batch, heads, n, m), by BLOCK_INNER columns
    keys,  # the same, by BLOCK_N rows; None leaves out the weights inside chunks
    values,  # descriptor (batch, heads, n, h)
    row_scales,  # (batch * heads, n), factors of what is read from the sums
    running,  # (batch * heads, n), the largest log scale so far
    scales,  # (batch * heads, n), log scales of the keys
    out,  # (batch * heads, n, h)
    totals,  # (batch * heads, n), the denominators; None leaves the rows undivided
    bias, heads, seq_len, chunk_size, chunks, first_reader, last_reader,
    M: tl.constexpr, H: tl.constexpr, ADD: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_INNER: tl.constexpr,
):  # fmt: skip
    """`x S` of chunks from `first_reader` to `last_reader`, and with `keys` the weights inside each chunk."""
    head, chunk, t, begin, end = rows_of_tile(seq_len, chunk_size, BLOCK_T)
    if t >= end:
        return
    rows = t + tl.arange(0, BLOCK_T)
    at = head * chunks + tl.minimum(chunk, chunks - 1)
    reads_sums = (chunk >= first_reader) & (chunk <= last_reader)
    total = tl.zeros((BLOCK_T, 8), tl.float32)
    if keys is None:
        if not reads_sums:
            return
    summed = tl.zeros((BLOCK_T, H), tl.float32)
    if states is not None:
        for m in range(0, M if keys is None else tl.where(reads_sums, M, 0), BLOCK_M):
            own = tl.reshape(x.load([head // heads, head % heads, t, m]), (BLOCK_T, BLOCK_M))
            summed = tl.dot(own, states.load([at * M + m, 0]), summed, input_precision=PRECISION)
            if totals is not None:
                norm = tl.load(norms + at.to(tl.int64) * M + m + tl.arange(0, BLOCK_M))
                total += tl.sum(tl.reshape(own.to(tl.float32) * norm[None, :], (BLOCK_T, BLOCK_M // 8, 8)), 1)
    of_head = head.to(tl.int64) * seq_len + rows
    if keys is not None:
        # Separate accumulators: to scale one between two loops of dot products makes each product wait for the last.
        intra, intra_total, highest = tl.zeros_like(summed), tl.zeros_like(total), tl.zeros((BLOCK_T,), tl.float32)
        if running is not None:
            highest = tl.load(running + of_head, rows < end, 0.0)
        intra, intra_total = _add_intra_chunk(
            *(intra, intra_total, queries, keys, values, highest, scales, heads, head, seq_len, t, begin, end),
            *(H, M, BLOCK_INNER, 0, RAGGED, PRECISION, BLOCK_T, BLOCK_N),
        )
    if row_scales is not None:
        factor = tl.load(row_scales + of_head, rows < end, 0.0)[:, None]
        summed, total = summed * factor, total * factor
    if keys is not None:
        summed, total = summed + intra, total + intra_total
    _finish(out, totals, summed, total, bias, head, seq_len, rows, end, H, ADD)
