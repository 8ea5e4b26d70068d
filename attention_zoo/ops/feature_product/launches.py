"""Launch the kernels that sum over keys or queries, and those that read the sums.

Tensors are `(batch, heads, n, ...)`; data of chunks is `(batch * heads, chunks, ...)`, data of rows
`(batch * heads, n)`. Nothing here waits for the device.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from attention_zoo.ops import launching
from attention_zoo.ops.descriptors import descriptor
from attention_zoo.ops.feature_product import gradient_kernels, output_kernels, state_kernels
from attention_zoo.ops.feature_product.chunks import (
    WIDEST,
    Chunks,
    IntraChunk,
    Scales,
    packed_products,
    programs_at_once,
    steps_of_a_part,
)
from attention_zoo.ops.feature_product.tiles import chosen
from attention_zoo.ops.launching import Configuration, Strided, precision


def transposed(x: Tensor, chunks: Chunks, h: int, *, scan: bool = True) -> Tensor:
    """x^T, `(batch * heads, r, chunks * rows)`: each chunk is padded with zeros to whole tiles of `square_states`."""
    return _by_chunks(x, chunks, _tiles(x, r=x.shape[-1], h=h, scan=scan), None, None, 0)


def prepared(
    x: Tensor, chunks: Chunks, h: int, *, scan: bool, reverse: bool = False, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`transposed`, and sums of `x_i x_j` times the row's weight, `(.., r, r)` in float32.

    The sums are over all rows before each chunk (`reverse`: after it); without `scan` over all rows, as one chunk.
    """
    (batch, heads, _, r), shift = x.shape, (-1 if reverse else 1) if scan else 0
    norms = x.new_empty(batch * heads, chunks.count, r, r, dtype=torch.float32)
    x_t = _by_chunks(x, chunks, _tiles(x, r=r, h=h, scan=scan), weights, norms, shift)
    if not scan:
        return x_t, norms.sum(1, keepdim=True)
    tiles = chosen("prefix", norms)
    launching.launcher(state_kernels.prefix_kernel, x, batch * heads * r * r // tiles.tiles["BLOCK"])(
        norms, chunks.count, r * r, reverse, **tiles.options
    )
    return x_t, norms


def _by_chunks(
    x: Tensor, chunks: Chunks, of_states: Configuration, weights: Tensor | None, norms: Tensor | None, shift: int
) -> Tensor:
    """x^T, and in `norms` the sums of `x_i x_j`: one program per chunk, which stores its sum `shift` chunks later."""
    batch, heads, _, r = x.shape
    block_t = of_states.tiles["BLOCK_T"]
    rows = -(-chunks.size // block_t) * block_t
    x_t = x.new_empty(batch * heads, r, chunks.count * rows)
    tiles = chosen("chunk", x, r=r)
    launching.launcher(state_kernels.chunk_kernel, x, batch * heads * chunks.count)(
        *(Strided.of(x), weights, x_t, norms, heads, chunks.size, chunks.count, rows, r, shift, precision(x)),
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

    `x_t` are `transposed` features, `parts` their `part_sums`. With `scan` the sums are over all rows before each
    chunk (`reverse`: after it); else over all rows, as one chunk.
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
    """Packed sums of the parts of a sequence in float32, without the last (`reverse`: the first); None for one part."""
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
    """How to split the sequences of tensors like x into parts of whole chunks; one part where chunks are padded.

    `rows` is batch * heads.
    """
    tiles = _tiles(x, r=r, h=h, scan=True)
    programs = rows * packed_products(r) // (16 * tiles.tiles["BLOCK_I"])
    at_once = programs_at_once(x.device, tiles.num_warps)
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
    """One program per tile and group: it scans `steps` chunks, or without `steps` sums one, from chunk `first` on."""
    (heads, seq_len, h), (rows, r, columns) = values.shape[1:], x_t.shape
    block_i, block_t = tiles.tiles["BLOCK_I"], tiles.tiles["BLOCK_T"]
    chunk_rows = max(chunks.size, columns // chunks.count)
    launching.launcher(state_kernels.square_state_kernel, values, packed_products(r) // (16 * block_i) * rows, groups)(
        *(descriptor(x_t, (1, size, block_t)) for size in (block_i, 16)),
        *(descriptor(values, (1, 1, block_t, h)), parts, sums, other, heads, seq_len),
        *(chunks.size, chunks.count, first, chunk_rows, steps or 1),
        *(r, h, steps is not None, reverse, precision(values)),
        **tiles.options,
    )


def _total(sums: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The sum over all chunks, as one chunk."""
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

    The sums are over all rows before each chunk (`reverse`: after it); without `scan` over all rows, as one chunk.
    """
    batch, heads, seq_len, m = x.shape
    h, rows = values.shape[-1], batch * heads
    tiles = chosen("state", x, h=h)
    block_t, block_m = tiles.tiles["BLOCK_T"], tiles.tiles["BLOCK_M"]
    sums = x.new_empty(rows, chunks.count, m, h, dtype=x.dtype if scan else torch.float32)
    norms = x.new_empty(rows, chunks.count, m, dtype=torch.float32)
    groups = 1 if scan else chunks.count
    launching.launcher(state_kernels.state_kernel, x, -(-m // block_m) * rows * groups)(
        *(descriptor(x, (1, 1, block_t, block_m)), descriptor(values, (1, 1, block_t, h)), weights, decay),
        *(sums, norms, heads, seq_len, chunks.size, chunks.count),
        *(chunks.count // groups, groups, m, h, scan, reverse, chunks.overlap(block_t), precision(x)),
        **tiles.options,
    )
    return (sums, norms) if scan else (sums.sum(1, keepdim=True).to(values.dtype), norms.sum(1, keepdim=True))


def square_output(
    x: Tensor,
    sums: Tensor | None,
    norms: Tensor | None,
    chunks: Chunks,
    h: int,
    *,
    intra_chunk: IntraChunk | None = None,
    bias: float | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The output for squares of x: divided by `bias` + the weights' sum, or added to `out`; and the denominators."""
    batch, heads, seq_len, r = x.shape
    tiles = chosen("square_output", x, h=h, r=r, whole=int(intra_chunk is None and bias is not None))
    block_t, block_n = tiles.tiles["BLOCK_T"], tiles.tiles["BLOCK_N"]
    result = x.new_empty(batch, heads, seq_len, h) if out is None else out
    totals = None if bias is None else x.new_empty(batch * heads, seq_len, dtype=torch.float32)
    inner, log_degree = (intra_chunk.query.shape[-1], intra_chunk.log_degree) if intra_chunk else (r, 0)
    launching.launcher(output_kernels.square_output_kernel, x, batch * heads * chunks.tiles(seq_len, block_t))(
        *(Strided.of(x), None if sums is None else descriptor(sums.view(-1, h), (128, h)), norms),
        *_descriptors(intra_chunk, block_t, block_n, inner),
        *(result, totals, bias or 0.0, heads, *chunks.arguments),
        *(r, h, inner, log_degree, out is not None, chunks.overlap(block_n), precision(x)),
        **tiles.options,
    )
    return result, totals


def output(
    x: Tensor,
    sums: Tensor | None,
    norms: Tensor | None,
    chunks: Chunks,
    h: int,
    *,
    intra_chunk: IntraChunk | None = None,
    scales: Scales | None = None,
    row_scales: Tensor | None = None,
    bias: float | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `square_output` for features x that are not squared; `row_scales` multiply what is read from the sums."""
    batch, heads, seq_len, m = x.shape
    tiles = chosen("output", x, h=h, m=m)
    block_t, block_n, block_m = (tiles.tiles[name] for name in ("BLOCK_T", "BLOCK_N", "BLOCK_M"))
    block_m, width = min(block_m, m), intra_chunk.width(tiles.tiles["BLOCK_INNER"]) if intra_chunk else 0
    result = x.new_empty(batch, heads, seq_len, h) if out is None else out
    totals = None if bias is None else x.new_empty(batch * heads, seq_len, dtype=torch.float32)
    launching.launcher(output_kernels.output_kernel, x, batch * heads * chunks.tiles(seq_len, block_t))(
        descriptor(x, (1, 1, block_t, block_m)),
        *(None if sums is None else descriptor(sums.view(-1, h), (block_m, h)), norms),
        *_descriptors(intra_chunk, block_t, block_n, width),
        *(row_scales, *((scales.running, scales.log) if scales else (None, None))),
        *(result, totals, bias or 0.0, heads, seq_len, *chunks.arguments),
        *(m, h, out is not None, chunks.overlap(block_n), precision(x)),
        **{**tiles.options, "BLOCK_M": block_m, "BLOCK_INNER": width},
    )
    return result, totals


def divide(d_out: Tensor, out: Tensor, totals: Tensor) -> tuple[Tensor, Tensor]:
    """The output's gradient divided by the denominator, like `out`, and the denominator's gradient, `(.., n)`."""
    batch, heads, seq_len, h = out.shape
    tiles = chosen("divide", out, h=h)
    grad, d_total = torch.empty_like(out), torch.empty_like(totals)
    launching.launcher(gradient_kernels.divide_kernel, out, batch * heads * -(-seq_len // tiles.tiles["BLOCK_T"]))(
        Strided.of(d_out), out, totals, grad, d_total, heads, h, **tiles.options
    )
    return grad, d_total


def square_gradient(
    x: Tensor,
    y: Tensor,
    sums: Tensor,
    norms: Tensor,
    chunks: Chunks,
    *,
    weights: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`2 (x (x) y) S + 2 w x Z`, like x; added to `out` if that is given."""
    batch, heads, seq_len, r = x.shape
    h = y.shape[-1]
    tiles = chosen("square_gradient", x, h=h, r=r)
    block_t = tiles.tiles["BLOCK_T"]
    result = x.new_empty(x.shape) if out is None else out
    launching.launcher(gradient_kernels.square_gradient_kernel, x, batch * heads * chunks.tiles(seq_len, block_t))(
        *(Strided.of(x), descriptor(y, (1, 1, block_t, h)), weights),
        *(descriptor(sums.view(-1, r), (128, r)), norms, result),
        *(heads, *chunks.arguments, r, h, out is not None, precision(x)),
        **tiles.options,
    )
    return result


def gradient(
    y: Tensor,
    sums: Tensor,
    norms: Tensor,
    chunks: Chunks,
    *,
    weights: Tensor | None = None,
    row_scales: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`(y S^T + w z)` times the row's scale, `(batch, heads, n, m)`; added to `out` if that is given."""
    batch, heads, seq_len, h = y.shape
    m = sums.shape[-2]
    tiles = chosen("gradient", y, h=h, m=m)
    block_t, block_m = tiles.tiles["BLOCK_T"], min(tiles.tiles["BLOCK_M"], m)
    result = y.new_empty(batch, heads, seq_len, m) if out is None else out
    launching.launcher(
        gradient_kernels.gradient_kernel, y, batch * heads * chunks.tiles(seq_len, block_t), m // block_m
    )(
        *(descriptor(y, (1, 1, block_t, h)), weights, row_scales, descriptor(sums.view(-1, h), (block_m, h)), norms),
        *(result, heads, seq_len, *chunks.arguments, m, h, out is not None, precision(y)),
        **{**tiles.options, "BLOCK_M": block_m},
    )
    return result


def intra_chunk_gradients(
    intra_chunk: IntraChunk, grad: Tensor, d_total: Tensor, chunks: Chunks, scales: Scales | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values from the weights inside chunks."""
    d_query, d_key = (intra_chunk.query.new_empty(intra_chunk.query.shape) for _ in range(2))
    d_value = grad.new_empty(grad.shape)
    inner, width = intra_chunk.query.shape[-1], intra_chunk.width(WIDEST)

    def launch(kernel: Any, name: str, block: str, programs: int, *outputs: Tensor | None) -> None:
        """One program per tile of rows, and per part of their columns, which are `programs` parts."""
        (batch, heads, seq_len, h), tiles = grad.shape, chosen(name, grad, h=grad.shape[-1], inner=inner)
        block_t, block_n = tiles.tiles["BLOCK_T"], tiles.tiles["BLOCK_N"]
        launching.launcher(kernel, grad, batch * heads * chunks.tiles(seq_len, tiles.tiles[block]), programs)(
            *(*_descriptors(intra_chunk, block_t, block_n, width), descriptor(grad, (1, 1, block_t, h)), d_total),
            *(*((scales.running, scales.log) if scales else (None, None)), *outputs, heads, seq_len, chunks.size),
            *(h, inner, intra_chunk.log_degree, chunks.overlap(block_n), precision(grad)),
            **tiles.options,
            BLOCK_INNER=width,
        )

    launch(gradient_kernels.intra_chunk_query_kernel, "intra_chunk_query", "BLOCK_T", inner // width, d_query)
    if width == inner:
        launch(gradient_kernels.intra_chunk_key_kernel, "intra_chunk_key", "BLOCK_N", 1, d_key, d_value)
    else:  # a tile has some columns of a key, and its weight needs all of them
        launch(gradient_kernels.intra_chunk_key_kernel, "intra_chunk_key", "BLOCK_N", inner // width, d_key, None)
        launch(gradient_kernels.intra_chunk_key_kernel, "intra_chunk_key", "BLOCK_N", 1, None, d_value)
    return d_query, d_key, d_value


def _descriptors(intra_chunk: IntraChunk | None, block_t: int, block_n: int, width: int) -> tuple[Any, Any, Any]:
    """The descriptors of query, key and value."""
    if intra_chunk is None:
        return None, None, None
    query, key, value, _ = intra_chunk
    return (
        descriptor(query, (1, 1, block_t, width)),
        descriptor(key, (1, 1, block_n, width)),
        descriptor(value, (1, 1, block_n, value.shape[-1])),
    )
