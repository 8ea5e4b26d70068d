"""Attention with the weights `w_ij = <q_i, k_j>^p`, p even, one tile of them at a time.

`out_i = sum_j w_ij v_j / (bias_i + sum_j w_ij)`. A tensor `(batch, heads, rows, h)` comes as a descriptor of tiles
of rows. Rows beyond its end are loaded as zeros, whose weights and gradients are zeros, and are not stored: only the
diagonal needs a mask.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Of a degree.
BITS = tl.constexpr(16)
# The least normal float32.
LEAST = tl.constexpr(2.0**-126)
# Of float32: three products of 11 bits.
PRECISION = tl.constexpr("tf32x3")


@triton.jit
def power(x, DEGREE: tl.constexpr):
    """x^DEGREE by squaring, unrolled: from the bit below the highest on."""
    y = x
    for bit in tl.static_range(BITS - 1, -1, -1):
        if DEGREE >> (bit + 1) > 0:
            y = y * y
            if (DEGREE >> bit) % 2 == 1:
                y = y * x
    return y


@triton.jit
def load(x, batch, head, start, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """The tile `(ROWS, HEAD_DIM)` that begins at row `start`."""
    if isinstance(x, tl.tensor_descriptor):
        return x.load([batch, head, start, 0]).reshape(ROWS, HEAD_DIM)
    else:  # Triton would go on after an `if` that returns
        rows = start + tl.arange(0, ROWS)
        return tl.load(pointers(x, batch, head, start, ROWS, HEAD_DIM), mask=rows[:, None] < x.rows, other=0.0)


@triton.jit
def store(x, batch, head, start, tile, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Write such a tile."""
    if isinstance(x, tl.tensor_descriptor):
        x.store([batch, head, start, 0], tile.to(x.dtype).reshape(1, 1, ROWS, HEAD_DIM))
    else:
        rows = start + tl.arange(0, ROWS)
        tl.store(pointers(x, batch, head, start, ROWS, HEAD_DIM), tile, mask=rows[:, None] < x.rows)


@triton.jit
def pointers(x, batch, head, start, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """To the numbers of a tile."""
    first = (
        batch.to(tl.int64) * x.batch_stride
        + head.to(tl.int64) * x.head_stride
        + tl.cast(start, tl.int64) * x.row_stride
    )
    return x.data + first + tl.arange(0, ROWS)[:, None] * x.row_stride + tl.arange(0, HEAD_DIM)[None, :]


@triton.jit
def add_keys(
    acc,
    total,
    q,
    key,
    value,
    batch,
    head,
    row,
    first,
    last,
    DEGREE: tl.constexpr,
    DIAGONAL: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Add what the keys `first` to `last` give to the rows from `row` on."""
    for start in range(first, last, BLOCK_N):
        k = load(key, batch, head, start, BLOCK_N, HEAD_DIM)
        weights = power(tl.dot(q, k.T, input_precision=PRECISION), DEGREE)
        if DIAGONAL:
            past = (start + tl.arange(0, BLOCK_N))[None, :] <= (row + tl.arange(0, BLOCK_M))[:, None]
            weights = tl.where(past, weights, 0.0)
        v = load(value, batch, head, start, BLOCK_N, HEAD_DIM)
        # Every eighth column together, which one thread holds: threads are added once, at the end.
        total += tl.sum(weights.reshape(BLOCK_M, BLOCK_N // 8, 8), 1)
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, total


@triton.jit
def forward(
    query,
    key,
    value,
    out,
    bias,
    denominator,
    heads,
    queries,
    keys,
    DEGREE: tl.constexpr,
    CAUSAL: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """A tile of rows of the output, and of its denominators, infinite where they are zero, so that zeros come of it.

    `bias` and `denominator` are float32 `(batch * heads, queries)`.
    """
    tiles = tl.cdiv(queries, BLOCK_M)
    item, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    if CAUSAL:
        tile = tiles - 1 - tile  # what takes longest begins first
    batch, head, row = item // heads, item % heads, tile * BLOCK_M
    q = load(query, batch, head, row, BLOCK_M, HEAD_DIM)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    total = tl.zeros([BLOCK_M, 8], tl.float32)
    seen = row // BLOCK_N * BLOCK_N if CAUSAL else keys
    acc, total = add_keys(
        acc, total, q, key, value, batch, head, row, 0, seen, DEGREE, False, HEAD_DIM, BLOCK_M, BLOCK_N
    )
    if CAUSAL:
        last = tl.minimum(row + BLOCK_M, keys)
        acc, total = add_keys(
            acc, total, q, key, value, batch, head, row, seen, last, DEGREE, True, HEAD_DIM, BLOCK_M, BLOCK_N
        )
    rows = row + tl.arange(0, BLOCK_M)
    at = item.to(tl.int64) * queries + rows
    by = tl.sum(total, 1) + tl.load(bias + at, mask=rows < queries, other=0.0)
    by = tl.where(by < LEAST, float("inf"), by)
    tl.store(denominator + at, by, mask=rows < queries)
    store(out, batch, head, row, acc / by[:, None], BLOCK_M, HEAD_DIM)


@triton.jit
def unit_of(denominator, DEGREE: tl.constexpr):
    """The power of two in whose units scores give a denominator near 1; 1 where that is infinite."""
    exponent = tl.floor(tl.log2(denominator) / DEGREE + 0.5)
    return tl.where(denominator < float("inf"), tl.exp2(exponent), 1.0)


@triton.jit
def prepare(
    d_out,
    query,
    out,
    denominator,
    d_summed,
    d_total,
    in_units,
    heads,
    queries,
    DEGREE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """A tile of rows of the gradients of `sum_j w_ij v_j` and of the denominator, and of the queries, in other units.

    In those that the forward pass has to guess a row's weights may all be small, and its gradients large.
    """
    tiles = tl.cdiv(queries, BLOCK_M)
    item, row = tl.program_id(0) // tiles, tl.program_id(0) % tiles * BLOCK_M
    batch, head = item // heads, item % heads
    rows = row + tl.arange(0, BLOCK_M)
    at = item.to(tl.int64) * queries + rows
    by = tl.load(denominator + at, mask=rows < queries, other=1.0)
    unit = unit_of(by, DEGREE)
    q = load(query, batch, head, row, BLOCK_M, HEAD_DIM)
    store(in_units, batch, head, row, (q / unit[:, None]).to(q.dtype), BLOCK_M, HEAD_DIM)
    d = load(d_out, batch, head, row, BLOCK_M, HEAD_DIM)
    d = (d / (by / power(unit, DEGREE))[:, None]).to(d.dtype)
    store(d_summed, batch, head, row, d, BLOCK_M, HEAD_DIM)
    o = load(out, batch, head, row, BLOCK_M, HEAD_DIM)
    # Of the gradient as the other kernels will read it.
    tl.store(d_total + at, -tl.sum(d.to(tl.float32) * o.to(tl.float32), 1), mask=rows < queries)


@triton.jit
def add_queries(
    d_k,
    d_v,
    k,
    v,
    query,
    d_summed,
    d_total,
    batch,
    head,
    item,
    queries,
    column,
    first,
    last,
    DEGREE: tl.constexpr,
    DIAGONAL: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Add what the queries `first` to `last` give to the keys from `column` on."""
    for start in range(first, last, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        # First, because it does not come ahead of its time as tiles do.
        dz = tl.load(d_total + item * queries + rows, mask=rows < queries, other=0.0)
        q = load(query, batch, head, start, BLOCK_M, HEAD_DIM)
        scores = tl.dot(k, q.T, input_precision=PRECISION)
        if DIAGONAL:
            past = (column + tl.arange(0, BLOCK_N))[:, None] <= rows[None, :]
            scores = tl.where(past, scores, 0.0)
        slope = power(scores, DEGREE - 1)
        d = load(d_summed, batch, head, start, BLOCK_M, HEAD_DIM)
        d_v = tl.dot((slope * scores).to(d.dtype), d, d_v, input_precision=PRECISION)
        d_weights = tl.dot(v, d.T, input_precision=PRECISION) + dz[None, :]
        d_k = tl.dot((slope * d_weights).to(q.dtype), q, d_k, input_precision=PRECISION)
    return d_k, d_v


@triton.jit
def backward_keys(
    query,
    key,
    value,
    d_summed,
    d_total,
    d_key,
    d_value,
    heads,
    queries,
    keys,
    DEGREE: tl.constexpr,
    CAUSAL: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """A tile of rows of the gradients of keys and values, by queries in the units of `prepare`."""
    tiles = tl.cdiv(keys, BLOCK_N)
    item, column = tl.program_id(0) // tiles, tl.program_id(0) % tiles * BLOCK_N
    batch, head = item // heads, item % heads
    item = item.to(tl.int64)
    k = load(key, batch, head, column, BLOCK_N, HEAD_DIM)
    v = load(value, batch, head, column, BLOCK_N, HEAD_DIM)
    d_k = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    d_v = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    first = 0
    if CAUSAL:
        first = column // BLOCK_M * BLOCK_M
        last = tl.minimum(tl.cdiv(column + BLOCK_N, BLOCK_M) * BLOCK_M, queries)
        d_k, d_v = add_queries(
            d_k,
            d_v,
            k,
            v,
            query,
            d_summed,
            d_total,
            batch,
            head,
            item,
            queries,
            column,
            first,
            last,
            DEGREE,
            True,
            HEAD_DIM,
            BLOCK_M,
            BLOCK_N,
        )
        first = last
    d_k, d_v = add_queries(
        d_k,
        d_v,
        k,
        v,
        query,
        d_summed,
        d_total,
        batch,
        head,
        item,
        queries,
        column,
        first,
        queries,
        DEGREE,
        False,
        HEAD_DIM,
        BLOCK_M,
        BLOCK_N,
    )
    store(d_key, batch, head, column, DEGREE * d_k, BLOCK_N, HEAD_DIM)
    store(d_value, batch, head, column, d_v, BLOCK_N, HEAD_DIM)


@triton.jit
def pull_keys(
    d_q,
    q,
    d,
    dz,
    key,
    value,
    batch,
    head,
    row,
    first,
    last,
    DEGREE: tl.constexpr,
    DIAGONAL: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Add what the keys `first` to `last` give to the gradients of the queries from `row` on."""
    for start in range(first, last, BLOCK_N):
        k = load(key, batch, head, start, BLOCK_N, HEAD_DIM)
        scores = tl.dot(q, k.T, input_precision=PRECISION)
        if DIAGONAL:
            past = (start + tl.arange(0, BLOCK_N))[None, :] <= (row + tl.arange(0, BLOCK_M))[:, None]
            scores = tl.where(past, scores, 0.0)
        v = load(value, batch, head, start, BLOCK_N, HEAD_DIM)
        d_weights = tl.dot(d, v.T, input_precision=PRECISION) + dz[:, None]
        d_scores = power(scores, DEGREE - 1) * d_weights
        d_q = tl.dot(d_scores.to(k.dtype), k, d_q, input_precision=PRECISION)
    return d_q


@triton.jit
def backward_queries(
    query,
    key,
    value,
    d_summed,
    d_total,
    denominator,
    d_query,
    heads,
    queries,
    keys,
    DEGREE: tl.constexpr,
    CAUSAL: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """A tile of rows of the gradients of queries, given in the units of `prepare`, as they were before."""
    tiles = tl.cdiv(queries, BLOCK_M)
    item, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    if CAUSAL:
        tile = tiles - 1 - tile
    batch, head, row = item // heads, item % heads, tile * BLOCK_M
    rows = row + tl.arange(0, BLOCK_M)
    q = load(query, batch, head, row, BLOCK_M, HEAD_DIM)
    d = load(d_summed, batch, head, row, BLOCK_M, HEAD_DIM)
    at = item.to(tl.int64) * queries + rows
    dz = tl.load(d_total + at, mask=rows < queries, other=0.0)
    d_q = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    seen = row // BLOCK_N * BLOCK_N if CAUSAL else keys
    d_q = pull_keys(d_q, q, d, dz, key, value, batch, head, row, 0, seen, DEGREE, False, HEAD_DIM, BLOCK_M, BLOCK_N)
    if CAUSAL:
        last = tl.minimum(row + BLOCK_M, keys)
        d_q = pull_keys(
            d_q, q, d, dz, key, value, batch, head, row, seen, last, DEGREE, True, HEAD_DIM, BLOCK_M, BLOCK_N
        )
    unit = unit_of(tl.load(denominator + at, mask=rows < queries, other=1.0), DEGREE)
    store(d_query, batch, head, row, d_q * (DEGREE / unit)[:, None], BLOCK_M, HEAD_DIM)
