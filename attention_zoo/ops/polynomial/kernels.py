"""Attention with the weights `w_ij = <q_i, k_j>^p`, p even, one tile of them at a time.

`out_i = sum_j w_ij v_j / (bias_i + sum_j w_ij)`. A tensor `(batch, heads, rows, h)` comes as a tile descriptor, or with
its strides. Rows beyond its end are read as zeros, so their weights and gradients are zeros, and are not written: only
the diagonal needs a mask. `place` is (batch item, head), `item` is their flat index.

The scores of a row are divided by its `unit`, a power of two, so that no weight overflows.
"""

import triton
import triton.language as tl

from attention_zoo.ops.kernels import affine, pull_back, standardised

# The most bits of a degree.
BITS = tl.constexpr(16)
# The smallest normal float32.
LEAST = tl.constexpr(2.0**-126)
# The square of a smaller norm is less than `LEAST`.
LEAST_NORM = tl.constexpr(2.0**-63)
# The exponent bits of a float32, and the lowest of them.
EXPONENT, ONE = tl.constexpr(0x7F800000), tl.constexpr(0x00800000)
# Tiles of keys whose largest norms are read together.
TILES_READ = tl.constexpr(256)
# float32 is multiplied as three products in TF32.
PRECISION = tl.constexpr("tf32x3")


@triton.jit
def power(x, DEGREE: tl.constexpr):
    """x^DEGREE by repeated squaring, unrolled, from the bit below the highest down."""
    y = x
    for bit in tl.static_range(BITS - 1, -1, -1):
        if DEGREE >> (bit + 1) > 0:
            y = y * y
            if (DEGREE >> bit) % 2 == 1:
                y = y * x
    return y


@triton.jit
def pointers(x, place, start, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Pointers to the elements of a tile."""
    batch, head = place
    first = tl.cast(batch, tl.int64) * x.batch_stride + tl.cast(head, tl.int64) * x.head_stride
    first += tl.cast(start, tl.int64) * x.row_stride
    return x.data + first + tl.arange(0, ROWS)[:, None] * x.row_stride + tl.arange(0, HEAD_DIM)[None, :]


@triton.jit
def load(x, place, start, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """The tile `(ROWS, HEAD_DIM)` that begins at row `start`."""
    if isinstance(x, tl.tensor_descriptor):
        return x.load([place[0], place[1], start, 0]).reshape(ROWS, HEAD_DIM)
    else:  # needed: Triton compiles what follows an `if` even if that returns
        is_there = start + tl.arange(0, ROWS) < x.rows
        return tl.load(pointers(x, place, start, ROWS, HEAD_DIM), mask=is_there[:, None], other=0.0)


@triton.jit
def store(x, place, start, tile):
    """Store the tile `(ROWS, HEAD_DIM)` that begins at row `start`."""
    ROWS: tl.constexpr = tile.shape[0]
    HEAD_DIM: tl.constexpr = tile.shape[1]
    if isinstance(x, tl.tensor_descriptor):
        x.store([place[0], place[1], start, 0], tile.to(x.dtype).reshape(1, 1, ROWS, HEAD_DIM))
    else:
        is_there = start + tl.arange(0, ROWS) < x.rows
        tl.store(pointers(x, place, start, ROWS, HEAD_DIM), tile, mask=is_there[:, None])


@triton.jit
def add_keys(
    sums, q, key, value, place, row, first, last, DEGREE: tl.constexpr, DIAGONAL: tl.constexpr, N: tl.constexpr
):
    """Add what the keys `first` to `last`, N at a time, contribute to the rows from `row` on."""
    M: tl.constexpr = q.shape[0]
    HEAD_DIM: tl.constexpr = q.shape[1]
    summed, total = sums
    for start in range(first, last, N):
        k = load(key, place, start, N, HEAD_DIM)
        weights = power(tl.dot(q, k.T, input_precision=PRECISION), DEGREE)
        if DIAGONAL:
            is_past = (start + tl.arange(0, N))[None, :] <= (row + tl.arange(0, M))[:, None]
            weights = tl.where(is_past, weights, 0.0)
        # Sums of every eighth column stay within a thread: sums over threads are needed once, at the end.
        total += tl.sum(weights.reshape(M, N // 8, 8), 1)
        v = load(value, place, start, N, HEAD_DIM)
        summed = tl.dot(weights.to(v.dtype), v, summed, input_precision=PRECISION)
    return summed, total


@triton.jit
def forward(
    query, key, value, unit, out, denominator, heads, queries, keys, root,
    DEGREE: tl.constexpr, CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A tile of rows of the output and of the denominators; a denominator below `LEAST` is stored as infinity.

    So its row is zero. The bias is `root^DEGREE`; `unit` and `denominator` are float32 `(batch * heads, queries)`.
    """
    tiles = tl.cdiv(queries, BLOCK_M)
    item, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    if CAUSAL:
        tile = tiles - 1 - tile  # the tiles that take longest start first
    place, row = (item // heads, item % heads), tile * BLOCK_M
    q = load(query, place, row, BLOCK_M, HEAD_DIM)
    sums = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32), tl.zeros([BLOCK_M, 8], tl.float32)
    seen = row // BLOCK_N * BLOCK_N if CAUSAL else keys
    sums = add_keys(sums, q, key, value, place, row, 0, seen, DEGREE, False, BLOCK_N)
    if CAUSAL:
        last = tl.minimum(row + BLOCK_M, keys)
        sums = add_keys(sums, q, key, value, place, row, seen, last, DEGREE, True, BLOCK_N)
    summed, total = sums
    rows = row + tl.arange(0, BLOCK_M)
    at = tl.cast(item, tl.int64) * queries + rows
    bias = power(root / tl.load(unit + at, mask=rows < queries, other=1.0), DEGREE)
    by = tl.sum(total, 1) + bias
    by = tl.where(by < LEAST, float("inf"), by)
    tl.store(denominator + at, by, mask=rows < queries)
    store(out, place, row, summed / by[:, None])


@triton.jit
def unit_of(denominator, DEGREE: tl.constexpr):
    """The power of two by which to divide scores so that the denominator is near 1; 1 where that is infinite."""
    exponent = tl.floor(tl.log2(denominator) / DEGREE + 0.5)
    return tl.where(denominator < float("inf"), tl.exp2(exponent), 1.0)


@triton.jit
def prepare_gradients(
    d_out, query, out, denominator, in_units, d_summed, d_total, heads, queries,
    DEGREE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """A tile of rows: queries in units of the denominators, gradients of `sum_j w_ij v_j` and of the denominators.

    The forward pass has to guess its units: in those, all weights of a row may be small, and its gradients large.
    """
    tiles = tl.cdiv(queries, BLOCK_M)
    item, row = tl.program_id(0) // tiles, tl.program_id(0) % tiles * BLOCK_M
    place = item // heads, item % heads
    rows = row + tl.arange(0, BLOCK_M)
    at = tl.cast(item, tl.int64) * queries + rows
    by = tl.load(denominator + at, mask=rows < queries, other=1.0)
    unit = unit_of(by, DEGREE)
    q = load(query, place, row, BLOCK_M, HEAD_DIM)
    store(in_units, place, row, (q / unit[:, None]).to(q.dtype))
    d = load(d_out, place, row, BLOCK_M, HEAD_DIM)
    d = (d / (by / power(unit, DEGREE))[:, None]).to(d.dtype)
    store(d_summed, place, row, d)
    o = load(out, place, row, BLOCK_M, HEAD_DIM)
    # From the rounded gradient, because the other kernels will read that one.
    tl.store(d_total + at, -tl.sum(d.to(tl.float32) * o.to(tl.float32), 1), mask=rows < queries)


@triton.jit
def add_queries(
    sums, k, v, query, d_summed, d_total, place, queries, column, first, last,
    DEGREE: tl.constexpr, DIAGONAL: tl.constexpr, M: tl.constexpr
):  # fmt: skip
    """Add what the queries `first` to `last`, M at a time, contribute to the gradients of keys from `column` on."""
    N: tl.constexpr = k.shape[0]
    HEAD_DIM: tl.constexpr = k.shape[1]
    d_k, d_v = sums
    for start in range(first, last, M):
        rows = start + tl.arange(0, M)
        # First, because this load is not prefetched as tiles are.
        dz = tl.load(d_total + rows, mask=rows < queries, other=0.0)
        q = load(query, place, start, M, HEAD_DIM)
        scores = tl.dot(k, q.T, input_precision=PRECISION)
        if DIAGONAL:
            is_past = (column + tl.arange(0, N))[:, None] <= rows[None, :]
            scores = tl.where(is_past, scores, 0.0)
        slope = power(scores, DEGREE - 1)
        d = load(d_summed, place, start, M, HEAD_DIM)
        d_v = tl.dot((slope * scores).to(d.dtype), d, d_v, input_precision=PRECISION)
        d_weights = tl.dot(v, d.T, input_precision=PRECISION) + dz[None, :]
        d_k = tl.dot((slope * d_weights).to(q.dtype), q, d_k, input_precision=PRECISION)
    return d_k, d_v


@triton.jit
def backward_keys(
    query, key, value, d_summed, d_total, d_key, d_value, heads, queries, keys,
    DEGREE: tl.constexpr, CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A tile of rows of the gradients of keys and values, from queries in the units of `prepare_gradients`."""
    tiles = tl.cdiv(keys, BLOCK_N)
    item, column = tl.program_id(0) // tiles, tl.program_id(0) % tiles * BLOCK_N
    place = item // heads, item % heads
    d_total += tl.cast(item, tl.int64) * queries
    k = load(key, place, column, BLOCK_N, HEAD_DIM)
    v = load(value, place, column, BLOCK_N, HEAD_DIM)
    sums = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32), tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    seen_by_all = 0
    if CAUSAL:
        first = column // BLOCK_M * BLOCK_M
        seen_by_all = tl.minimum(tl.cdiv(column + BLOCK_N, BLOCK_M) * BLOCK_M, queries)
        sums = add_queries(
            sums, k, v, query, d_summed, d_total, place, queries, column, first, seen_by_all, DEGREE, True, BLOCK_M
        )
    d_k, d_v = add_queries(
        sums, k, v, query, d_summed, d_total, place, queries, column, seen_by_all, queries, DEGREE, False, BLOCK_M
    )
    store(d_key, place, column, DEGREE * d_k)
    store(d_value, place, column, d_v)


@triton.jit
def pull_keys(
    d_q, q, d, dz, key, value, place, row, first, last, DEGREE: tl.constexpr, DIAGONAL: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """Add what the keys `first` to `last`, N at a time, contribute to the gradients of queries from `row` on."""
    M: tl.constexpr = q.shape[0]
    HEAD_DIM: tl.constexpr = q.shape[1]
    for start in range(first, last, N):
        k = load(key, place, start, N, HEAD_DIM)
        scores = tl.dot(q, k.T, input_precision=PRECISION)
        if DIAGONAL:
            is_past = (start + tl.arange(0, N))[None, :] <= (row + tl.arange(0, M))[:, None]
            scores = tl.where(is_past, scores, 0.0)
        v = load(value, place, start, N, HEAD_DIM)
        d_weights = tl.dot(d, v.T, input_precision=PRECISION) + dz[:, None]
        d_scores = power(scores, DEGREE - 1) * d_weights
        d_q = tl.dot(d_scores.to(k.dtype), k, d_q, input_precision=PRECISION)
    return d_q


@triton.jit
def backward_queries(
    query, key, value, d_summed, d_total, denominator, unit, d_query, heads, queries, keys, scale,
    DEGREE: tl.constexpr, CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A tile of rows of the gradients of queries; `query` has the units of `prepare_gradients`, the result has none."""
    tiles = tl.cdiv(queries, BLOCK_M)
    item, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    if CAUSAL:
        tile = tiles - 1 - tile
    place, row = (item // heads, item % heads), tile * BLOCK_M
    rows = row + tl.arange(0, BLOCK_M)
    at = tl.cast(item, tl.int64) * queries + rows
    q = load(query, place, row, BLOCK_M, HEAD_DIM)
    d = load(d_summed, place, row, BLOCK_M, HEAD_DIM)
    dz = tl.load(d_total + at, mask=rows < queries, other=0.0)
    d_q = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    seen = row // BLOCK_N * BLOCK_N if CAUSAL else keys
    d_q = pull_keys(d_q, q, d, dz, key, value, place, row, 0, seen, DEGREE, False, BLOCK_N)
    if CAUSAL:
        last = tl.minimum(row + BLOCK_M, keys)
        d_q = pull_keys(d_q, q, d, dz, key, value, place, row, seen, last, DEGREE, True, BLOCK_N)
    own = unit_of(tl.load(denominator + at, mask=rows < queries, other=1.0), DEGREE)
    d_q *= (DEGREE * scale / own)[:, None]
    d_q *= (1 / tl.load(unit + at, mask=rows < queries, other=1.0))[:, None]
    store(d_query, place, row, d_q)


# --- Queries and keys: layer norm, padding, scale and units ------------------------------------------


@triton.jit
def load_normed(x, norm, place, start, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """`load`, and the layer norm if there is one."""
    x = load(x, place, start, ROWS, HEAD_DIM)
    if norm is not None:
        unit, _ = standardised(x.to(tl.float32), norm.eps, HEAD_DIM)
        x = affine(unit, norm.weight, norm.bias, HEAD_DIM).to(x.dtype)
    return x


@triton.jit
def norms(x):
    """The norms of the rows of x, at least `LEAST_NORM`."""
    x = x.to(tl.float32)
    return tl.maximum(tl.sqrt(tl.sum(x * x, 1)), LEAST_NORM)


@triton.jit
def prepare_keys(
    key, norm, padding, normed, sizes, largest, heads, keys, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr
):  # fmt: skip
    """A tile of rows of the keys after the layer norm, zeros at padding; their norms (`sizes`), and the largest norm.

    `padding` is bool `(batch, keys)` or None, `sizes` float32 `(batch * heads, keys)`, `largest` one number per tile.
    """
    tiles = tl.cdiv(keys, BLOCK_M)
    item, row = tl.program_id(0) // tiles, tl.program_id(0) % tiles * BLOCK_M
    place = item // heads, item % heads
    rows = row + tl.arange(0, BLOCK_M)
    is_there = rows < keys
    is_seen = is_there
    if padding is not None:
        of_batch = padding + tl.cast(place[0], tl.int64) * keys
        is_seen &= tl.load(of_batch + rows, mask=is_there, other=1) == 0
    k = load_normed(key, norm, place, row, BLOCK_M, HEAD_DIM)
    k = tl.where(is_seen[:, None], k, 0.0)  # a key of zeros has weight zero
    store(normed, place, row, k)
    of_keys = norms(k)
    tl.store(sizes + tl.cast(item, tl.int64) * keys + rows, of_keys, mask=is_there)
    tl.store(largest + tl.program_id(0), tl.max(of_keys, 0))


@triton.jit
def largest_seen(sizes, largest, item, tile, keys, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr):
    """The largest norm of the keys that each query of a tile sees; later keys have no effect if `CAUSAL`."""
    tiles = tl.cdiv(keys, BLOCK_M)
    before = tile if CAUSAL else tiles
    largest += tl.cast(item, tl.int64) * tiles
    most = tl.full([TILES_READ], LEAST_NORM, tl.float32)
    for start in range(0, before, TILES_READ):
        at = start + tl.arange(0, TILES_READ)
        most = tl.maximum(most, tl.load(largest + at, mask=at < before, other=0.0))
    of_rows = tl.full([BLOCK_M], LEAST_NORM, tl.float32)
    if CAUSAL:
        own = tl.arange(0, BLOCK_M)
        rows = tile * BLOCK_M + own
        of_keys = tl.load(sizes + tl.cast(item, tl.int64) * keys + rows, mask=rows < keys, other=0.0)
        of_rows = tl.max(tl.where(own[None, :] <= own[:, None], of_keys[None, :], 0.0), 1)
    return tl.maximum(of_rows, tl.max(most, 0))


@triton.jit
def prepare_queries(
    query, norm, sizes, largest, in_units, unit, heads, queries, keys, scale, share, least,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """A tile of rows of the queries after the layer norm, times the scale, divided by their units; and the units.

    A unit is the power of two above the largest possible score (Cauchy-Schwarz) times `share`, and above `least`.
    `sizes` and `largest` are from `prepare_keys` with the same `BLOCK_M`; `unit` is float32 `(batch * heads, queries)`.
    """
    tiles = tl.cdiv(queries, BLOCK_M)
    item, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    place, row = (item // heads, item % heads), tile * BLOCK_M
    q = load_normed(query, norm, place, row, BLOCK_M, HEAD_DIM)
    bound = norms(q) * largest_seen(sizes, largest, item, tile, keys, CAUSAL, BLOCK_M) * share
    bits = tl.maximum(bound, least).to(tl.int32, bitcast=True)
    of_rows = ((bits + ONE) & EXPONENT).to(tl.float32, bitcast=True)
    rows = row + tl.arange(0, BLOCK_M)
    tl.store(unit + tl.cast(item, tl.int64) * queries + rows, of_rows, mask=rows < queries)
    # Not times `scale / unit`, which may be infinite: zeros would become NaN.
    store(in_units, place, row, (q.to(tl.float32) * scale * (1 / of_rows)[:, None]).to(q.dtype))


@triton.jit
def pull_norm(x, norm, d_x, d_weight, d_bias, heads, rows, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr):
    """Backpropagate a tile of `d_x` through the layer norm of x, in place; `d_weight`, `d_bias` as in `pull_back`."""
    tiles = tl.cdiv(rows, BLOCK_M)
    item, row = tl.program_id(0) // tiles, tl.program_id(0) % tiles * BLOCK_M
    place = item // heads, item % heads
    unit, rate = standardised(load(x, place, row, BLOCK_M, HEAD_DIM).to(tl.float32), norm.eps, HEAD_DIM)
    d = load(d_x, place, row, BLOCK_M, HEAD_DIM)
    pulled = pull_back(d.to(tl.float32), unit, rate, norm.weight, d_weight, d_bias, HEAD_DIM)
    store(d_x, place, row, pulled.to(d.dtype))
