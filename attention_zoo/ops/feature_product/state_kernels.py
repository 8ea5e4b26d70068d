"""Triton kernels for the sums over keys, `sum_j phi(x_j)^T v_j`: of all keys before a chunk, after it, or in it.

With `SCAN` a program computes some features of one head: it loops over the sequence, keeps the sum in registers and
stores it at each chunk, so that no other pass adds up prefixes. Without `SCAN` a program sums one chunk.

The r x r sums of denominators are small: one program per chunk computes them, and `prefix_kernel` adds them up. One
program that loops over the sequence would take longer than all the others.
"""

import triton
import triton.language as tl

from attention_zoo.ops.kernels import first_of_rows

# Arguments that are not specialised on: one compiled kernel serves any number of heads and chunks.
SIZES = ("heads", "chunks", "first_chunk", "chunk_rows", "steps", "groups", "first_reader", "last_reader")


@triton.jit
def pair_of(index, BLOCKS: tl.constexpr):
    """Row and column of block `index` in the upper triangle of `BLOCKS x BLOCKS` blocks, counted row by row."""
    index = tl.cast(index, tl.int32)
    row = index * 0
    for i in tl.static_range(1, BLOCKS):
        row += (index >= i * BLOCKS - i * (i - 1) // 2).to(tl.int32)
    return row, index - row * BLOCKS + row * (row - 1) // 2 + row


@triton.jit
def _rows_of_step(step, group, steps, seq_len, chunk_size, SCAN: tl.constexpr, REVERSE: tl.constexpr):
    """The chunk of this step, its first row and its end; the last step of a scan adds no rows."""
    chunk = group
    if SCAN:
        chunk = group * steps + (steps - 1 - step if REVERSE else step)
    begin = chunk * chunk_size
    end = tl.minimum(begin + chunk_size, seq_len)
    if SCAN:
        end = tl.where(step == steps - 1, begin, end)
    return chunk, begin, end


@triton.jit(do_not_specialize=SIZES)
def chunk_kernel(
    x,  # Strided (batch, heads, n, r)
    weights,  # (batch * heads, n), weights of the rows in `norms`; None is 1
    transposed,  # x^T, (batch * heads, r, chunks * chunk_rows), each chunk padded with zeros
    norms,  # (batch * heads, chunks, r, r), float32, or None
    heads, chunk_size, chunks, chunk_rows,
    R: tl.constexpr, SHIFT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Transpose a chunk, and store its sum of `x_i x_j` at the chunk `SHIFT` later; a chunk that gets none is zero."""
    # With fewer than 64 rows Triton emits mma instead of wgmma.
    WIDE: tl.constexpr = 64 if R < 64 else R
    head, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    begin = chunk * chunk_size
    end = tl.minimum(begin + chunk_size, x.rows)
    i, j = tl.arange(0, WIDE), tl.arange(0, R)
    columns = transposed + ((head.to(tl.int64) * R + i) * chunks + chunk)[None, :] * chunk_rows
    total = tl.zeros((WIDE, R), tl.float32)
    for t in range(0, chunk_rows, BLOCK_T):
        place = t + tl.arange(0, BLOCK_T)
        rows = begin + place
        visible = (rows < end)[:, None]
        own = first_of_rows(x, head, heads, rows)
        left = tl.load(own + i[None, :], visible & (i < R)[None, :], 0.0)
        tl.store(columns + place[:, None], left, (place < chunk_rows)[:, None] & (i < R)[None, :])
        if norms is not None:
            right = tl.load(own + j[None, :], visible, 0.0)
            if weights is not None:
                weight = tl.load(weights + head.to(tl.int64) * x.rows + rows, rows < end, 0.0)[:, None]
                right = (right * weight).to(left.dtype)
            total = tl.dot(tl.trans(left), right, total, input_precision=PRECISION)
    if norms is not None:
        at = chunk + SHIFT
        is_there = (at >= 0) & (at < chunks)
        at = (head * chunks + (at + chunks) % chunks).to(tl.int64)
        total = tl.where(is_there, total, 0.0)
        tl.store(norms + (at * R + i[:, None]) * R + j[None, :], total, (i < R)[:, None])


@triton.jit(do_not_specialize=SIZES)
def prefix_kernel(
    sums,  # (batch * heads, chunks, WIDTH), float32
    chunks,
    WIDTH: tl.constexpr, REVERSE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The cumulative sums over chunks, in place; from the last chunk on if `REVERSE`."""
    tiles: tl.constexpr = WIDTH // BLOCK
    head, columns = tl.program_id(0) // tiles, tl.program_id(0) % tiles * BLOCK + tl.arange(0, BLOCK)
    before = tl.zeros((BLOCK,), tl.float32)
    steps = tl.cdiv(chunks, BLOCK_C)
    for step in range(steps):
        chunk = (steps - 1 - step if REVERSE else step) * BLOCK_C + tl.arange(0, BLOCK_C)
        place = sums + (head * chunks + chunk)[:, None].to(tl.int64) * WIDTH + columns[None, :]
        own = tl.load(place, (chunk < chunks)[:, None], 0.0)
        tl.store(place, tl.cumsum(own, 0, reverse=REVERSE) + before[None, :], (chunk < chunks)[:, None])
        before += tl.sum(own, 0)


@triton.jit
def _store_squares(
    states, permuted, total, at, tile, first_i, first_j,
    R: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """Store a tile in `states` (rows (i, j), columns d), in `permuted` (rows (i, d), columns j; also i, j swapped)."""
    d = tl.arange(0, H)
    if states is not None:
        # Above the diagonal `x_i x_j` is stored once for two equal products, and counts twice.
        twice = tl.where(first_i // 16 == first_j // 16, 1.0, 2.0)
        rows = tile * BLOCK_I * 16 + tl.arange(0, BLOCK_I * 16)
        place = states + (at * WIDTH + rows[:, None]) * H + d[None, :]
        tl.store(place, (total * twice).to(states.dtype.element_ty))
    if permuted is not None:
        cube = tl.reshape(total, (BLOCK_I, 16, H))
        i, j = first_i + tl.arange(0, BLOCK_I), first_j + tl.arange(0, 16)
        rows = at * R * H
        place = permuted + rows * R + (i[:, None, None] * H + d[None, :, None]) * R + j[None, None, :]
        tl.store(place, tl.permute(cube, (0, 2, 1)).to(permuted.dtype.element_ty))
        if first_i // 16 != first_j // 16:
            mirrored = permuted + rows * R + (j[:, None, None] * H + d[None, :, None]) * R + i[None, None, :]
            tl.store(mirrored, tl.permute(cube, (1, 2, 0)).to(permuted.dtype.element_ty))


@triton.jit(do_not_specialize=SIZES)
def square_state_kernel(
    left,  # descriptor: x^T, (batch * heads, r, chunks * chunk_rows), each chunk padded with zeros
    right,  # the same, by 16 rows
    values,  # descriptor (batch, heads, n, h)
    parts,  # (batch * heads, groups - 1, width, h), sums of parts of a sequence, float32; None for one part
    states,  # (batch * heads, chunks, width, h), or None
    permuted,  # (batch * heads, chunks, r * h, r), or None
    heads, seq_len, chunk_size, chunks,
    first_chunk,  # the first one that is summed; 0 with SCAN
    chunk_rows, steps,
    R: tl.constexpr, H: tl.constexpr, SCAN: tl.constexpr, REVERSE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Sums of `x_i x_j v` for `BLOCK_I` indices i and 16 indices j, in 16 x 16 blocks on or above the diagonal."""
    PARTS: tl.constexpr = 16 // BLOCK_I
    BLOCKS: tl.constexpr = R // 16
    TILES: tl.constexpr = BLOCKS * (BLOCKS + 1) // 2 * PARTS
    ROWS: tl.constexpr = BLOCK_I * 16
    tile, head, group = tl.program_id(0) % TILES, tl.program_id(0) // TILES, tl.program_id(1)
    groups = tl.num_programs(1)
    block_i, block_j = pair_of(tile // PARTS, BLOCKS)
    first_i, first_j = block_i * 16 + tile % PARTS * BLOCK_I, block_j * 16
    total = tl.zeros((ROWS, H), tl.float32)
    if parts is not None:
        # `parts` is without the sum of the last part (in reverse: of the first), which no part reads.
        first = tl.cast(head, tl.int64) * (groups - 1)
        offsets = tl.arange(0, ROWS)[:, None] * H + tl.arange(0, H)[None, :]
        for part in range(group if REVERSE else 0, groups - 1 if REVERSE else group):
            total += tl.load(parts + ((first + part) * TILES + tile) * ROWS * H + offsets)
        total *= tl.where(block_i == block_j, 1.0, 0.5)
    for step in range(steps):
        chunk, begin, end = _rows_of_step(step, first_chunk + group, steps, seq_len, chunk_size, SCAN, REVERSE)
        at = (head * chunks + chunk if SCAN else head * groups + group).to(tl.int64)
        if SCAN:
            if chunk < chunks:
                _store_squares(*(states, permuted, total, at, tile, first_i, first_j, R, H, TILES * ROWS, BLOCK_I))
        shift = chunk * (chunk_rows - chunk_size)
        for t in range(begin, end, BLOCK_T):
            x = tl.reshape(left.load([head, first_i, t + shift]), (BLOCK_I, BLOCK_T))
            y = tl.reshape(right.load([head, first_j, t + shift]), (16, BLOCK_T))
            v = tl.reshape(values.load([head // heads, head % heads, t, 0]), (BLOCK_T, H))
            products = tl.reshape(x[:, None, :] * y[None, :, :], (ROWS, BLOCK_T))
            total = tl.dot(products, v, total, input_precision=PRECISION)
        if not SCAN:
            _store_squares(*(states, permuted, total, at, tile, first_i, first_j, R, H, TILES * ROWS, BLOCK_I))


@triton.jit
def _store_features(states, norms, total, norm, at, features, M: tl.constexpr, H: tl.constexpr):
    d, is_one = tl.arange(0, H), features < M
    place = states + (at * M + features[:, None]) * H + d[None, :]
    tl.store(place, total.to(states.dtype.element_ty), is_one[:, None])
    tl.store(norms + at * M + features, norm, is_one)


@triton.jit(do_not_specialize=SIZES)
def state_kernel(
    x,  # descriptor (batch, heads, n, m)
    values,  # descriptor (batch, heads, n, h)
    weights,  # (batch * heads, n), weights of the rows in `norms`; None is 1
    decays,  # (batch * heads, chunks), factors of the sums at each chunk, or None
    states,  # (batch * heads, chunks, m, h)
    norms,  # (batch * heads, chunks, m)
    heads, seq_len, chunk_size, chunks, steps, groups,
    M: tl.constexpr, H: tl.constexpr, SCAN: tl.constexpr, REVERSE: tl.constexpr, RAGGED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Sums of `x_f v`, and of `x_f` times the row's weight, for `BLOCK_M` features f."""
    TILES: tl.constexpr = (M + BLOCK_M - 1) // BLOCK_M
    # A grid of one dimension: there are many chunks, and the other dimensions of a grid end at 65,535.
    program = tl.program_id(0)
    tile, head, group = program % TILES, program // TILES // groups, program // TILES % groups
    features = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    total = tl.zeros((BLOCK_M, H), tl.float32)
    norm = tl.zeros((BLOCK_M,), tl.float32)
    for step in range(steps):
        chunk, begin, end = _rows_of_step(step, group, steps, seq_len, chunk_size, SCAN, REVERSE)
        at = (head * chunks + chunk).to(tl.int64)
        if SCAN:
            _store_features(states, norms, total, norm, at, features, M, H)
        if decays is not None:
            decay = tl.load(decays + at)
            total, norm = total * decay, norm * decay
        for t in range(begin, end, BLOCK_T):
            rows = t + tl.arange(0, BLOCK_T)
            own = tl.reshape(x.load([head // heads, head % heads, t, tile * BLOCK_M]), (BLOCK_T, BLOCK_M))
            v = tl.reshape(values.load([head // heads, head % heads, t, 0]), (BLOCK_T, H))
            if RAGGED:
                own = tl.where((rows < end)[:, None], own, 0.0)
            total = tl.dot(tl.trans(own), v, total, input_precision=PRECISION)
            weighted = own.to(tl.float32)
            if weights is not None:
                weighted *= tl.load(weights + head.to(tl.int64) * seq_len + rows, rows < end, 0.0)[:, None]
            norm += tl.sum(weighted, 0)
        if not SCAN:
            _store_features(states, norms, total, norm, at, features, M, H)
