"""Triton kernels for a step of decoding, each in one pass over the state.

A program owns ROWS dimensions of the values of one head, and its own copy of the normaliser. So no program waits for
another, no second kernel adds anything up, and a batch with few heads still has many programs. The next tile of the
state is loaded while one is updated, and the first tile while the features of the token are computed.
"""

import triton
import triton.language as tl


@triton.jit
def _of_head(x, stride_batch, stride_head, head, HEADS: tl.constexpr):
    """The pointer to the start of a head in `(batch, heads, 1, dim)`."""
    return x + (head // HEADS) * stride_batch + (head % HEADS) * stride_head


@triton.jit
def _vector(start, SIZE: tl.constexpr, PADDED: tl.constexpr):
    index = tl.arange(0, PADDED)
    return tl.load(start + index, mask=index < SIZE, other=0.0).to(tl.float32)


@triton.jit
def _tile(values, total, start, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """A tile of columns of the sums of some values, `(ROWS, BLOCK)`, and of the normaliser, `(BLOCK,)`."""
    columns = start + tl.arange(0, BLOCK)
    rows = tl.arange(0, ROWS)
    inside = columns < WIDTH
    tile = tl.load(values + rows[:, None] * WIDTH + columns[None, :], mask=inside[None, :], other=0.0)
    return tile, tl.load(total + columns, mask=inside, other=0.0)


@triton.jit
def _expanded(features, start, SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, DEGREE: tl.constexpr):
    """A tile of columns of `phi^{tensor degree}`; zeros beyond the last one."""
    columns = start + tl.arange(0, BLOCK)
    first = columns % SIZE
    expanded = tl.gather(features, first, 0)
    if DEGREE == 2:
        second = (first + columns // SIZE) % SIZE
        root = tl.where(columns < SIZE, 1.0, 1.4142135623730951)
        expanded = expanded * root * tl.gather(features, second, 0)
    return tl.where(columns < WIDTH, expanded, 0.0)


@triton.jit
def _divided(out, weight, bias):
    """The sums over the columns, divided by the denominator; zeros where that is zero."""
    denominator = bias + tl.sum(weight, 0)
    return tl.sum(out, 1) / tl.where(denominator == 0, 1.0, denominator)


@triton.jit
def _stepped(
    part, tile, normaliser, query, key, value, decay, bias,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, DEGREE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the key to a part of the state, whose first tile is loaded already, and read it with the query: `(ROWS,)`."""
    total = part + ROWS * WIDTH
    rows = tl.arange(0, ROWS)
    out = tl.zeros([ROWS, BLOCK], tl.float32)
    weight = tl.zeros([BLOCK], tl.float32)
    for start in range(0, WIDTH, BLOCK):
        next_tile, next_normaliser = _tile(part, total, start + BLOCK, WIDTH, ROWS, BLOCK)
        of_query = _expanded(query, start, SIZE, WIDTH, BLOCK, DEGREE)
        of_key = _expanded(key, start, SIZE, WIDTH, BLOCK, DEGREE)
        tile = tile * decay + value[:, None] * of_key[None, :]
        normaliser = normaliser * decay + of_key
        columns = start + tl.arange(0, BLOCK)
        inside = columns < WIDTH
        tl.debug_barrier()  # two threads may have loaded the same element: all must read it before one writes it
        tl.store(part + rows[:, None] * WIDTH + columns[None, :], tile, mask=inside[None, :])
        tl.store(total + columns, normaliser, mask=inside)
        out += tile * of_query[None, :]
        weight += normaliser * of_query
        tile, normaliser = next_tile, next_normaliser
    return _divided(out, weight, bias)


@triton.jit
def _write(out, head, first_row, stepped, HEAD_DIM: tl.constexpr, ROWS: tl.constexpr):
    index = head * HEAD_DIM + first_row + tl.arange(0, ROWS)
    tl.store(out + index, stepped.to(out.dtype.element_ty))


@triton.jit
def _begin(
    sums, value, value_batch, value_head,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The head, the first row, the part of the state, its first tile (sums and normaliser), its rows of the value."""
    program = tl.program_id(0).to(tl.int64)
    parts: tl.constexpr = HEAD_DIM // ROWS
    head, first_row, part = program // parts, (program % parts) * ROWS, sums + program * (ROWS + 1) * WIDTH
    tile, normaliser = _tile(part, part + ROWS * WIDTH, 0, WIDTH, ROWS, BLOCK)
    v = _vector(_of_head(value, value_batch, value_head, head, HEADS) + first_row, ROWS, ROWS)
    return head, first_row, part, tile, normaliser, v


@triton.jit
def featured_step(
    sums, query, key, value, out, query_batch, query_head, key_batch, key_head, value_batch, value_head, bias,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, SIZE: tl.constexpr, PADDED_SIZE: tl.constexpr, WIDTH: tl.constexpr,
    DEGREE: tl.constexpr, ELU: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A step with features x, or with `elu(x) + 1` if ELU."""
    head, first_row, part, tile, normaliser, v = _begin(
        sums, value, value_batch, value_head, HEADS, HEAD_DIM, WIDTH, ROWS, BLOCK
    )
    q = _vector(_of_head(query, query_batch, query_head, head, HEADS), SIZE, PADDED_SIZE)
    k = _vector(_of_head(key, key_batch, key_head, head, HEADS), SIZE, PADDED_SIZE)
    if ELU:
        q = tl.exp(tl.minimum(q, 0.0)) + tl.maximum(q, 0.0)
        k = tl.exp(tl.minimum(k, 0.0)) + tl.maximum(k, 0.0)
    stepped = _stepped(part, tile, normaliser, q, k, v, 1.0, bias, SIZE, WIDTH, DEGREE, ROWS, BLOCK)
    _write(out, head, first_row, stepped, HEAD_DIM, ROWS)


@triton.jit
def _normed(x, norm_weight, norm_bias, norm_eps, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """LayerNorm of `(PADDED,)`, zeros beyond SIZE."""
    index = tl.arange(0, PADDED)
    inside = index < SIZE
    centred = tl.where(inside, x - tl.sum(x, 0) / SIZE, 0.0)
    normed = centred / tl.sqrt(tl.sum(centred * centred, 0) / SIZE + norm_eps)
    weight = tl.load(norm_weight + index, mask=inside, other=0.0).to(tl.float32)
    return normed * weight + tl.load(norm_bias + index, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def sketched_step(
    sums, query, key, value, out, matrices, norm_weight, norm_bias, query_batch, query_head, key_batch, key_head,
    value_batch, value_head, norm_eps, scale, bias,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_HEAD_DIM: tl.constexpr, SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr, WIDTH: tl.constexpr, NORMED: tl.constexpr, SHARED: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A step with features `scale (x G1) o (x G2)` tensored with themselves, x after a layer norm if NORMED."""
    head, first_row, part, tile, normaliser, v = _begin(
        sums, value, value_batch, value_head, HEADS, HEAD_DIM, WIDTH, ROWS, BLOCK
    )
    q = _vector(_of_head(query, query_batch, query_head, head, HEADS), HEAD_DIM, PADDED_HEAD_DIM)
    k = _vector(_of_head(key, key_batch, key_head, head, HEADS), HEAD_DIM, PADDED_HEAD_DIM)
    index, column = tl.arange(0, PADDED_HEAD_DIM), tl.arange(0, PADDED_SIZE)
    inside = (index < HEAD_DIM)[:, None] & (column < SIZE)[None, :]
    if not SHARED:
        matrices += (head % HEADS) * HEAD_DIM * 2 * SIZE
    pointers = matrices + index[:, None] * (2 * SIZE) + column[None, :]
    first = tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(pointers + SIZE, mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        q = _normed(q, norm_weight, norm_bias, norm_eps, HEAD_DIM, PADDED_HEAD_DIM)
        k = _normed(k, norm_weight, norm_bias, norm_eps, HEAD_DIM, PADDED_HEAD_DIM)
    q = tl.sum(q[:, None] * first, 0) * tl.sum(q[:, None] * second, 0) * scale
    k = tl.sum(k[:, None] * first, 0) * tl.sum(k[:, None] * second, 0) * scale
    stepped = _stepped(part, tile, normaliser, q, k, v, 1.0, bias, SIZE, WIDTH, 2, ROWS, BLOCK)
    _write(out, head, first_row, stepped, HEAD_DIM, ROWS)


@triton.jit
def exponential_step(
    sums, log_scale, query, key, value, out, projection, query_batch, query_head, key_batch, key_head, value_batch,
    value_head, root, eps, factor,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, SIZE: tl.constexpr, PADDED_SIZE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """A step with `exp(w x root - |x root|^2 / 2)`, relative to its largest, plus eps; sums to the largest so far."""
    head, first_row, part, tile, normaliser, v = _begin(
        sums, value, value_batch, value_head, HEADS, HEAD_DIM, SIZE, ROWS, BLOCK
    )
    before = tl.load(log_scale + tl.program_id(0))
    column = tl.arange(0, PADDED_SIZE)
    inside = column < SIZE
    q = tl.zeros([PADDED_SIZE], tl.float32)
    k = tl.zeros([PADDED_SIZE], tl.float32)
    square = tl.zeros([BLOCK_DIM], tl.float32)
    of_query = _of_head(query, query_batch, query_head, head, HEADS)
    of_key = _of_head(key, key_batch, key_head, head, HEADS)
    for start in range(0, HEAD_DIM, BLOCK_DIM):
        index = start + tl.arange(0, BLOCK_DIM)
        known = index < HEAD_DIM
        pointers = projection + column[:, None] * HEAD_DIM + index[None, :]
        w = tl.load(pointers, mask=inside[:, None] & known[None, :], other=0.0).to(tl.float32)
        x = tl.load(of_query + index, mask=known, other=0.0).to(tl.float32) * root
        y = tl.load(of_key + index, mask=known, other=0.0).to(tl.float32) * root
        q += tl.sum(w * x[None, :], 1)
        k += tl.sum(w * y[None, :], 1)
        square += y * y
    q_largest = tl.max(tl.where(inside, q, -float("inf")), 0)
    k_largest = tl.max(tl.where(inside, k, -float("inf")), 0)
    scale = k_largest - tl.sum(square, 0) / 2
    largest = tl.maximum(before, scale)
    q = tl.exp(q - q_largest) + eps
    k = (tl.exp(k - k_largest) + eps) * (factor * tl.exp(scale - largest))
    stepped = _stepped(part, tile, normaliser, q, k, v, tl.exp(before - largest), 0.0, SIZE, SIZE, 1, ROWS, BLOCK)
    tl.store(log_scale + tl.program_id(0), largest)
    _write(out, head, first_row, stepped, HEAD_DIM, ROWS)


@triton.jit
def _keys_and_values(
    keys, values, start, length, key_row,
    HEAD_DIM: tl.constexpr, PADDED_HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Keys of a block, `(BLOCK_N, PADDED_HEAD_DIM)`, and their values, `(BLOCK_N, ROWS)`; zeros beyond its length."""
    tokens, index, rows = start + tl.arange(0, BLOCK_N), tl.arange(0, PADDED_HEAD_DIM), tl.arange(0, ROWS)
    inside = (tokens < length)[:, None]
    some = tl.load(
        keys + tokens[:, None] * key_row + index[None, :], mask=inside & (index < HEAD_DIM)[None, :], other=0.0
    )
    return some, tl.load(values + tokens[:, None] * HEAD_DIM + rows[None, :], mask=inside, other=0.0)


@triton.jit(do_not_specialize=["length"])
def block_read(
    sums, features, query, keys, values, out, key_head, key_row, value_head, length, bias,
    HEAD_DIM: tl.constexpr, PADDED_HEAD_DIM: tl.constexpr, SIZE: tl.constexpr, PADDED_SIZE: tl.constexpr,
    WIDTH: tl.constexpr, SQUARINGS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Weights of features before the block and `<query, key>^(2^SQUARINGS)` inside it, times the values, divided."""
    program = tl.program_id(0).to(tl.int64)
    parts: tl.constexpr = HEAD_DIM // ROWS
    head, first_row = program // parts, (program % parts) * ROWS
    keys += head * key_head
    values += head * value_head + first_row
    some_keys, some_values = _keys_and_values(
        keys, values, 0, length, key_row, HEAD_DIM, PADDED_HEAD_DIM, ROWS, BLOCK_N
    )
    state = sums + head * (HEAD_DIM + 1) * WIDTH
    phi = _vector(features + head * SIZE, SIZE, PADDED_SIZE)
    state, total = state + first_row * WIDTH, state + HEAD_DIM * WIDTH
    inter_chunk = tl.zeros([ROWS, BLOCK], tl.float32)
    weight = tl.zeros([BLOCK], tl.float32)
    tile, normaliser = _tile(state, total, 0, WIDTH, ROWS, BLOCK)
    for start in range(0, WIDTH, BLOCK):
        next_tile, next_normaliser = _tile(state, total, start + BLOCK, WIDTH, ROWS, BLOCK)
        of_query = _expanded(phi, start, SIZE, WIDTH, BLOCK, 2)
        inter_chunk += tile * of_query[None, :]
        weight += normaliser * of_query
        tile, normaliser = next_tile, next_normaliser
    inter_chunk, weight = tl.sum(inter_chunk, 1), tl.sum(weight, 0)
    q = _vector(query + head * HEAD_DIM, HEAD_DIM, PADDED_HEAD_DIM)
    intra_chunk = tl.zeros([BLOCK_N, ROWS], tl.float32)
    intra_chunk_weight = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, length, BLOCK_N):
        next_keys, next_values = _keys_and_values(
            keys, values, start + BLOCK_N, length, key_row, HEAD_DIM, PADDED_HEAD_DIM, ROWS, BLOCK_N
        )
        exact = tl.sum(some_keys.to(tl.float32) * q[None, :], 1)
        for _ in tl.static_range(SQUARINGS):
            exact *= exact
        intra_chunk += exact[:, None] * some_values.to(tl.float32)
        intra_chunk_weight += exact
        some_keys, some_values = next_keys, next_values
    denominator = bias + weight + tl.sum(intra_chunk_weight, 0)
    read = (inter_chunk + tl.sum(intra_chunk, 0)) / tl.where(denominator == 0, 1.0, denominator)
    _write(out, head, first_row, read, HEAD_DIM, ROWS)
