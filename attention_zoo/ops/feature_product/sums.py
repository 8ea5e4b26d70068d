"""Launches of the kernels that sum over keys, or over queries.

Tensors are `(batch, heads, n, ...)`; what belongs to a chunk is `(batch * heads, chunks, ...)`, to a row
`(batch * heads, n)`. Nothing here waits for the device.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from attention_zoo.ops import launching
from attention_zoo.ops.feature_product.chunks import Chunks, packed_products, programs_at_once, steps_of_a_part
from attention_zoo.ops.feature_product.state_kernels import (
    chunk_kernel,
    prefix_kernel,
    square_state_kernel,
    state_kernel,
)
from attention_zoo.ops.feature_product.tiles import chosen
from attention_zoo.ops.launching import Configuration, Rows, descriptor, precision


def transposed(x: Tensor, chunks: Chunks, h: int, *, scan: bool = True) -> Tensor:
    """`(batch * heads, r, chunks * rows)`: each chunk with zeros behind it up to a multiple of a tile of its sums."""
    return _by_chunks(x, chunks, _tiles(x, r=x.shape[-1], h=h, scan=scan), None, None, 0)


def prepared(
    x: Tensor, chunks: Chunks, h: int, *, scan: bool, reverse: bool = False, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`transposed`, and sums of `x_i x_j` times the row's weight, `(.., r, r)` in float32.

    Those of all rows before each chunk, or after it; without `scan` of all rows, as those of a single chunk.
    """
    (batch, heads, _, r), shift = x.shape, (-1 if reverse else 1) if scan else 0
    norms = x.new_empty(batch * heads, chunks.count, r, r, dtype=torch.float32)
    x_t = _by_chunks(x, chunks, _tiles(x, r=r, h=h, scan=scan), weights, norms, shift)
    if not scan:
        return x_t, norms.sum(1, keepdim=True)
    tiles = chosen("prefix", norms)
    launching.launcher(prefix_kernel, x, batch * heads * r * r // tiles.tiles["BLOCK"])(
        norms, chunks.count, r * r, reverse, **tiles.options
    )
    return x_t, norms


def _by_chunks(
    x: Tensor, chunks: Chunks, of_states: Configuration, weights: Tensor | None, norms: Tensor | None, shift: int
) -> Tensor:
    """A program for each chunk, that writes its columns and, so many chunks further on, its norms."""
    batch, heads, _, r = x.shape
    block_t = of_states.tiles["BLOCK_T"]
    rows = -(-chunks.size // block_t) * block_t
    x_t = x.new_empty(batch * heads, r, chunks.count * rows)
    tiles = chosen("chunk", x, r=r)
    launching.launcher(chunk_kernel, x, batch * heads * chunks.count)(
        *(Rows.of(x), weights, x_t, norms, heads, chunks.size, chunks.count, rows, r, shift, precision(x)),
        **tiles.options,
    )
    return x_t


def square_states(
    x_t: Tensor,
    values: Tensor,
    chunks: Chunks,
    parts: Tensor | None = None,
    *,
    scan: bool,
    reverse: bool = False,
    packed: bool,
    permuted: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Sums of `x_i x_j v_d`: packed, `(.., width, h)`, and permuted, `(.., r * h, r)`; None for one not asked for.

    Args:
        x_t: `transposed` features.
        values: `(batch, heads, n, h)`.
        chunks: how both are cut.
        parts: their `part_sums`.
        scan: of all rows before each chunk, or after it (`reverse`); else of all rows, as those of a single chunk.
        reverse: whether those after it.
        packed: whether the packed sums are returned; so is `permuted`.
    """
    (rows, r, _), h = x_t.shape, values.shape[-1]
    dtype = x_t.dtype if scan else torch.float32
    sums = x_t.new_empty(rows, chunks.count, packed_products(r), h, dtype=dtype) if packed else None
    other = x_t.new_empty(rows, chunks.count, r * h, r, dtype=dtype) if permuted else None
    tiles = _tiles(x_t, r=r, h=h, scan=scan)
    launch = functools.partial(_launch_squares, tiles, x_t, values, parts, sums, other, chunks)
    if not scan:
        launch(chunks.count)
        return _total(sums, values.dtype), _total(other, values.dtype)
    segments = segments_of(x_t, chunks, rows=rows, r=r, h=h)
    launch(segments.count, steps=segments.size // chunks.size, reverse=reverse)
    return sums, other


def part_sums(x_t: Tensor, values: Tensor, chunks: Chunks, *, reverse: bool = False) -> Tensor | None:
    """Packed sums of the parts of a sequence in float32, except the part after which none begins; None of one part."""
    (rows, r, _), h = x_t.shape, values.shape[-1]
    segments = segments_of(x_t, chunks, rows=rows, r=r, h=h)
    if segments.count == 1:
        return None
    sums = x_t.new_empty(rows, segments.count - 1, packed_products(r), h, dtype=torch.float32)
    tiles = chosen("square_part", x_t, r=r, h=h)
    if chunks.size % tiles.tiles["BLOCK_T"]:  # a tile would reach into the next part
        tiles = _tiles(x_t, r=r, h=h, scan=True)
    _launch_squares(tiles, x_t, values, None, sums, None, segments, segments.count - 1, first=int(reverse))
    return sums


def segments_of(x: Tensor, chunks: Chunks, *, rows: int, r: int, h: int) -> Chunks:
    """Parts of sequences of tensors like x, of whole chunks; only one where chunks have rows of zeros behind them.

    `rows` are all heads of a batch.
    """
    tiles = _tiles(x, r=r, h=h, scan=True)
    programs, at_once = (
        rows * packed_products(r) // (16 * tiles.tiles["BLOCK_I"]),
        programs_at_once(x.device, tiles.num_warps),
    )
    is_whole = chunks.size % tiles.tiles["BLOCK_T"] == 0
    steps = steps_of_a_part(programs, chunks.count, at_once) if is_whole else chunks.count
    return Chunks(steps * chunks.size, -(-chunks.count // steps))


def _tiles(x: Tensor, *, r: int, h: int, scan: bool) -> Configuration:
    return chosen("square_state" if scan else "square_segment", x, r=r, h=h)


def _launch_squares(
    tiles: Configuration,
    x_t: Tensor,
    values: Tensor,
    parts: Tensor | None,
    sums: Tensor | None,
    other: Tensor | None,
    chunks: Chunks,
    groups: int,
    *,
    reverse: bool = False,
    steps: int | None = None,
    first: int = 0,
) -> None:
    """A program for each tile and group: of `steps` chunks that it walks along, or of one, from `first` on."""
    (heads, seq_len, h), (rows, r, columns) = values.shape[1:], x_t.shape
    block_i, block_t = tiles.tiles["BLOCK_I"], tiles.tiles["BLOCK_T"]
    chunk_rows = max(chunks.size, columns // chunks.count)
    launching.launcher(square_state_kernel, values, packed_products(r) // (16 * block_i) * rows, groups)(
        *(descriptor(x_t, (1, size, block_t)) for size in (block_i, 16)),
        *(descriptor(values, (1, 1, block_t, h)), parts, sums, other, heads, seq_len),
        *(chunks.size, chunks.count, first, chunk_rows, steps or 1),
        *(r, h, steps is not None, reverse, precision(values)),
        **tiles.options,
    )


def _total(sums: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The sum over all chunks, as that of a single one."""
    return None if sums is None else sums.sum(1, keepdim=True).to(dtype)


def states(
    x: Tensor,
    values: Tensor,
    chunks: Chunks,
    *,
    scan: bool,
    reverse: bool = False,
    weights: Tensor | None = None,
    decay: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sums of `x_f v_d`, `(.., m, h)`, and of `x_f` times the row's weight, `(.., m)` in float32.

    Of what is before each chunk, or after it (`reverse`); without `scan` of all rows, as those of a single chunk.
    """
    batch, heads, seq_len, m = x.shape
    h, rows = values.shape[-1], batch * heads
    tiles = chosen("state", x, h=h)
    block_t, block_m = tiles.tiles["BLOCK_T"], tiles.tiles["BLOCK_M"]
    sums = x.new_empty(rows, chunks.count, m, h, dtype=x.dtype if scan else torch.float32)
    norms = x.new_empty(rows, chunks.count, m, dtype=torch.float32)
    groups = 1 if scan else chunks.count
    launching.launcher(state_kernel, x, -(-m // block_m) * rows * groups)(
        *(descriptor(x, (1, 1, block_t, block_m)), descriptor(values, (1, 1, block_t, h)), weights, decay),
        *(sums, norms, heads, seq_len, chunks.size, chunks.count),
        *(chunks.count // groups, groups, m, h, scan, reverse, chunks.overlap(block_t), precision(x)),
        **tiles.options,
    )
    return (sums, norms) if scan else (sums.sum(1, keepdim=True).to(values.dtype), norms.sum(1, keepdim=True))
