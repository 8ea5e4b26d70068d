"""The kernels as functions on tensors: their tiles, grids and outputs; nothing here waits for the device.

Tensors are `(batch, heads, n, ...)`; what belongs to a chunk is `(batch * heads, chunks, ...)`, to a row
`(batch * heads, n)`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention_zoo.ops.feature_product.gradient_kernels import divide_kernel, gradient_kernel, square_gradient_kernel
from attention_zoo.ops.feature_product.near_kernels import near_key_kernel, near_query_kernel
from attention_zoo.ops.feature_product.output_kernels import output_kernel, square_output_kernel
from attention_zoo.ops.feature_product.state_kernels import (
    chunk_kernel,
    prefix_kernel,
    square_state_kernel,
    state_kernel,
)
from attention_zoo.ops.feature_product.tiles import ROWS
from attention_zoo.ops.launching import Configuration, by_rows, configuration, descriptor, launcher, precision

chosen = functools.partial(configuration, ROWS)
# Warps that walk along sequences on a multiprocessor at once, and multiprocessors where there are none: an H100's.
WARPS, MULTIPROCESSORS = 8, 132
# Parts of a sequence that are tried.
MOST_PARTS = 12
# Features that a tile has whole, and in parts.
WIDEST, PART = 128, 64


@dataclass(frozen=True)
class Chunks:
    """How a sequence is cut, and which chunks read sums: those from `first` to `last`."""

    size: int
    count: int
    first: int = 0
    last: int = 0

    @classmethod
    def of(cls, seq_len: int, size: int) -> Chunks:
        """Chunks of a causal product: all but the first read what is before them."""
        count = -(-seq_len // size)
        return cls(size, count, 1, count - 1)

    @property
    def reversed(self) -> Chunks:
        """All but the last read what is after them."""
        return Chunks(self.size, self.count, 0, self.count - 2)

    def tiles(self, seq_len: int, block: int) -> int:
        """Tiles of so many rows, none of which is in two chunks."""
        return -(-seq_len // self.size) * -(-self.size // block)

    def overlap(self, block: int) -> bool:
        """Whether some tile of so many rows reaches into the next chunk."""
        return self.count > 1 and self.size % block != 0

    @property
    def arguments(self) -> tuple[int, int, int, int]:
        """As the kernels take them."""
        return self.size, self.count, self.first, self.last


class Scales(NamedTuple):
    """Log scales of keys, and factors that keep the sums relative to the largest so far; without a mask, of all.

    `key` is the factor of what a row adds, `query` that of what it reads, `decay` that of the sums at each chunk.
    """

    log: Tensor
    key: Tensor
    running: Tensor | None = None
    query: Tensor | None = None
    decay: Tensor | None = None


class Near(NamedTuple):
    """What the weights inside a chunk are made of: `<query, key>^(2^log_degree)`."""

    query: Tensor
    key: Tensor
    value: Tensor
    log_degree: int

    def width(self, widest: int) -> int:
        """Columns of queries and keys in a tile: all where they are a power of two that fits."""
        inner = self.query.shape[-1]
        return inner if inner <= widest and inner & (inner - 1) == 0 else PART

    def descriptors(self, block_t: int, block_n: int, width: int) -> tuple[Any, Any, Any]:
        """Of query, key and value."""
        rows = ((self.query, block_t, width), (self.key, block_n, width), (self.value, block_n, self.value.shape[-1]))
        return tuple(descriptor(x, (1, 1, block, columns)) for x, block, columns in rows)  # type: ignore[return-value]


@functools.cache
def slots(device: torch.device, num_warps: int) -> int:
    """How many programs of so many warps walk along sequences at once."""
    on_gpu = device.type == "cuda"
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else MULTIPROCESSORS
    return WARPS // num_warps * multiprocessors


def steps_of_a_part(programs: int, chunks: int, at_once: int) -> int:
    """The chunks of each part of a sequence, parts being walked along side by side: few programs leave a device idle.

    What a part begins with is summed before, by programs for all parts but one. Programs come in waves, each of which
    takes as long as a part is.
    """

    def time(steps: int) -> int:
        parts = -(-chunks // steps)
        return steps * sum(-(-programs * each // at_once) for each in (parts, parts - 1))

    most = max(1, min(MOST_PARTS, chunks // 2))
    return min((-(-chunks // parts) for parts in range(1, most + 1)), key=time)


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
    launcher(prefix_kernel, x, batch * heads * r * r // tiles.tiles["BLOCK"])(
        norms, chunks.count, r * r, reverse, **tiles.options
    )
    return x_t, norms


def _by_chunks(
    x: Tensor, chunks: Chunks, of_states: Configuration, weights: Tensor | None, norms: Tensor | None, shift: int
) -> Tensor:
    """A program for each chunk, that writes its columns and, so many chunks further on, its norms."""
    batch, heads, seq_len, r = x.shape
    block_t = of_states.tiles["BLOCK_T"]
    rows = -(-chunks.size // block_t) * block_t
    x_t = x.new_empty(batch * heads, r, chunks.count * rows)
    x, tiles = by_rows(x), chosen("chunk", x, r=r)
    launcher(chunk_kernel, x, batch * heads * chunks.count)(
        *(x, weights, x_t, norms, heads, seq_len, chunks.size, chunks.count, rows, *x.stride()[:3]),
        *(r, shift, precision(x)),
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
    """Sums of `x_i x_j v_d`: packed, `(.., width, h)`, and permuted, `(.., r * h, r)`; None what is not asked for.

    Args:
        x_t: `transposed` features.
        values: `(batch, heads, n, h)`.
        chunks: how both are cut.
        parts: their `part_sums`.
        scan: of all rows before each chunk, or after it (`reverse`); else of all rows, as those of a single chunk.
        reverse: as said.
        packed: whether these are asked for.
        permuted: likewise.
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
    """Packed sums of the parts of a sequence, float32, but for that with which nobody begins; None of a single part."""
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
    programs, at_once = rows * packed_products(r) // (16 * tiles.tiles["BLOCK_I"]), slots(x.device, tiles.num_warps)
    is_whole = chunks.size % tiles.tiles["BLOCK_T"] == 0
    steps = steps_of_a_part(programs, chunks.count, at_once) if is_whole else chunks.count
    return Chunks(steps * chunks.size, -(-chunks.count // steps))


def _tiles(x: Tensor, *, r: int, h: int, scan: bool) -> Configuration:
    return chosen("square_state" if scan else "square_segment", x, r=r, h=h)


def packed_products(r: int) -> int:
    """Products of r numbers, without the blocks of 16 x 16 below the diagonal."""
    return 256 * (r // 16 * (r // 16 + 1) // 2)


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
    launcher(square_state_kernel, values, packed_products(r) // (16 * block_i) * rows, groups)(
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

    Of what is before each chunk, in the dtype of x; without `scan` of each chunk itself, in float32.
    """
    batch, heads, seq_len, m = x.shape
    h, rows = values.shape[-1], batch * heads
    tiles = chosen("state", x, h=h)
    block_t, block_m = tiles.tiles["BLOCK_T"], tiles.tiles["BLOCK_M"]
    sums = x.new_empty(rows, chunks.count, m, h, dtype=x.dtype if scan else torch.float32)
    norms = x.new_empty(rows, chunks.count, m, dtype=torch.float32)
    groups = 1 if scan else chunks.count
    launcher(state_kernel, x, -(-m // block_m) * rows * groups)(
        *(descriptor(x, (1, 1, block_t, block_m)), descriptor(values, (1, 1, block_t, h)), weights, decay),
        *(sums, norms, heads, seq_len, chunks.size, chunks.count),
        *(chunks.count // groups, groups, m, h, scan, reverse, chunks.overlap(block_t), precision(x)),
        **tiles.options,
    )
    return sums, norms


def totals(sums: Tensor, norms: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The sums over all chunks, as those of a single one."""
    return sums.sum(1, keepdim=True).to(dtype), norms.sum(1, keepdim=True)


def square_output(
    x: Tensor,
    sums: Tensor | None,
    norms: Tensor | None,
    chunks: Chunks,
    h: int,
    *,
    near: Near | None = None,
    bias: float | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """What squares of x read of the sums: divided by `bias` and their weights, or added to `out`; the denominators."""
    batch, heads, seq_len, r = x.shape
    tiles = chosen("square_output", x, h=h, r=r, whole=int(near is None and bias is not None))
    block_t, block_n = tiles.tiles["BLOCK_T"], tiles.tiles["BLOCK_N"]
    x = by_rows(x)
    result = x.new_empty(batch, heads, seq_len, h) if out is None else out
    totals = None if bias is None else x.new_empty(batch * heads, seq_len, dtype=torch.float32)
    inner, log_degree = (near.query.shape[-1], near.log_degree) if near else (r, 0)
    launcher(square_output_kernel, x, batch * heads * chunks.tiles(seq_len, block_t))(
        *(x, None if sums is None else descriptor(sums.view(-1, h), (128, h)), norms),
        *(near.descriptors(block_t, block_n, inner) if near else (None, None, None)),
        *(result, totals, bias or 0.0, heads, seq_len, *chunks.arguments, *x.stride()[:3]),
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
    near: Near | None = None,
    scales: Scales | None = None,
    row_scales: Tensor | None = None,
    bias: float | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `square_output`, of the features x themselves; with the scales of keys, and what multiplies what is read."""
    batch, heads, seq_len, m = x.shape
    tiles = chosen("output", x, h=h, m=m)
    block_t, block_n, block_m = (tiles.tiles[name] for name in ("BLOCK_T", "BLOCK_N", "BLOCK_M"))
    block_m, width = min(block_m, m), near.width(tiles.tiles["BLOCK_INNER"]) if near else 0
    result = x.new_empty(batch, heads, seq_len, h) if out is None else out
    totals = None if bias is None else x.new_empty(batch * heads, seq_len, dtype=torch.float32)
    launcher(output_kernel, x, batch * heads * chunks.tiles(seq_len, block_t))(
        descriptor(x, (1, 1, block_t, block_m)),
        *(None if sums is None else descriptor(sums.view(-1, h), (block_m, h)), norms),
        *(near.descriptors(block_t, block_n, width) if near else (None, None, None)),
        *(row_scales, *((scales.running, scales.log) if scales else (None, None))),
        *(result, totals, bias or 0.0, heads, seq_len, *chunks.arguments),
        *(m, h, out is not None, chunks.overlap(block_n), precision(x)),
        **{**tiles.options, "BLOCK_M": block_m, "BLOCK_INNER": width},
    )
    return result, totals


def divide(d_out: Tensor, out: Tensor, totals: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the output over its denominator, like `out`, and that of the denominator, `(.., n)`."""
    batch, heads, seq_len, h = out.shape
    tiles = chosen("divide", out, h=h)
    d_out = by_rows(d_out)
    grad, d_total = torch.empty_like(out), torch.empty_like(totals)
    launcher(divide_kernel, out, batch * heads * -(-seq_len // tiles.tiles["BLOCK_T"]))(
        d_out, out, totals, grad, d_total, heads, seq_len, *d_out.stride()[:3], h, **tiles.options
    )
    return grad, d_total


def square_gradient(
    x: Tensor,
    y: Tensor,
    sums: Tensor | None,
    norms: Tensor | None,
    chunks: Chunks,
    *,
    weights: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`2 (x (x) y) S + 2 w x Z`, like x; added to `out` where that is given."""
    batch, heads, seq_len, r = x.shape
    h = y.shape[-1]
    tiles = chosen("square_gradient", x, h=h, r=r)
    block_t = tiles.tiles["BLOCK_T"]
    x = by_rows(x)
    result = x.new_empty(x.shape) if out is None else out
    launcher(square_gradient_kernel, x, batch * heads * chunks.tiles(seq_len, block_t))(
        *(x, descriptor(y, (1, 1, block_t, h)), weights),
        *(None if sums is None else descriptor(sums.view(-1, r), (128, r)), norms, result),
        *(heads, seq_len, *chunks.arguments, *x.stride()[:3], r, h, out is not None, precision(x)),
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
    """`(y S^T + w z)` times the row's scale, `(batch, heads, n, m)`; added to `out` where that is given."""
    batch, heads, seq_len, h = y.shape
    m = sums.shape[-2]
    tiles = chosen("gradient", y, h=h, m=m)
    block_t, block_m = tiles.tiles["BLOCK_T"], min(tiles.tiles["BLOCK_M"], m)
    result = y.new_empty(batch, heads, seq_len, m) if out is None else out
    launcher(gradient_kernel, y, batch * heads * chunks.tiles(seq_len, block_t), m // block_m)(
        *(descriptor(y, (1, 1, block_t, h)), weights, row_scales, descriptor(sums.view(-1, h), (block_m, h)), norms),
        *(result, heads, seq_len, *chunks.arguments, m, h, out is not None, precision(y)),
        **{**tiles.options, "BLOCK_M": block_m},
    )
    return result


def near_gradients(
    near: Near, grad: Tensor, d_total: Tensor, chunks: Chunks, scales: Scales | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values from the weights inside chunks."""
    d_query, d_key = (near.query.new_empty(near.query.shape) for _ in range(2))
    d_value = grad.new_empty(grad.shape)
    given = near, grad, d_total, chunks, scales
    _near_query(*given, d_query)
    if near.width(WIDEST) == near.query.shape[-1]:
        _near_key(*given, d_key, d_value)
    else:  # a tile holds some features of a key, and its weight needs all of them
        _near_key(*given, d_key, None)
        _near_key(*given, None, d_value)
    return d_query, d_key, d_value


def _near_query(
    near: Near, grad: Tensor, d_total: Tensor, chunks: Chunks, scales: Scales | None, d_query: Tensor
) -> None:
    batch, heads, seq_len, inner = near.query.shape
    h = grad.shape[-1]
    tiles = chosen("near_query", grad, h=h, inner=inner)
    block_t, block_n, width = tiles.tiles["BLOCK_T"], tiles.tiles["BLOCK_N"], near.width(WIDEST)
    launcher(near_query_kernel, grad, batch * heads * chunks.tiles(seq_len, block_t), inner // width)(
        *near.descriptors(block_t, block_n, width),
        *(descriptor(grad, (1, 1, block_t, h)), d_total, *((scales.running, scales.log) if scales else (None, None))),
        *(d_query, heads, seq_len, chunks.size, h, inner, near.log_degree, chunks.overlap(block_n)),
        precision(grad),
        **tiles.options,
        BLOCK_INNER=width,
    )


def _near_key(
    near: Near,
    grad: Tensor,
    d_total: Tensor,
    chunks: Chunks,
    scales: Scales | None,
    d_key: Tensor | None,
    d_value: Tensor | None,
) -> None:
    batch, heads, seq_len, inner = near.query.shape
    h = grad.shape[-1]
    tiles = chosen("near_key", grad, h=h, inner=inner)
    block_t, block_n, width = tiles.tiles["BLOCK_T"], tiles.tiles["BLOCK_N"], near.width(WIDEST)
    launcher(
        near_key_kernel, grad, batch * heads * chunks.tiles(seq_len, block_n), 1 if d_key is None else inner // width
    )(
        *near.descriptors(block_t, block_n, width),
        *(descriptor(grad, (1, 1, block_t, h)), d_total, *((scales.running, scales.log) if scales else (None, None))),
        *(d_key, d_value, heads, seq_len, chunks.size, h, inner, near.log_degree),
        *(chunks.overlap(block_n), precision(grad)),
        **tiles.options,
        BLOCK_INNER=width,
    )
