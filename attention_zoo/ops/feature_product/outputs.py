"""Launches of the kernels that read sums: the output and the gradients of features and values.

Tensors are `(batch, heads, n, ...)`; what belongs to a chunk is `(batch * heads, chunks, ...)`, to a row
`(batch * heads, n)`. Nothing here waits for the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_zoo.ops import launching
from attention_zoo.ops.feature_product.chunks import WIDEST, Chunks, IntraChunk, Scales
from attention_zoo.ops.feature_product.gradient_kernels import divide_kernel, gradient_kernel, square_gradient_kernel
from attention_zoo.ops.feature_product.intra_chunk_kernels import near_key_kernel, near_query_kernel
from attention_zoo.ops.feature_product.output_kernels import output_kernel, square_output_kernel
from attention_zoo.ops.feature_product.tiles import chosen
from attention_zoo.ops.launching import Rows, by_rows, descriptor, precision


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
    """What squares of x read of the sums: divided by `bias` and their weights, or added to `out`; the denominators."""
    batch, heads, seq_len, r = x.shape
    tiles = chosen("square_output", x, h=h, r=r, whole=int(intra_chunk is None and bias is not None))
    block_t, block_n = tiles.tiles["BLOCK_T"], tiles.tiles["BLOCK_N"]
    result = x.new_empty(batch, heads, seq_len, h) if out is None else out
    totals = None if bias is None else x.new_empty(batch * heads, seq_len, dtype=torch.float32)
    inner, log_degree = (intra_chunk.query.shape[-1], intra_chunk.log_degree) if intra_chunk else (r, 0)
    launching.launcher(square_output_kernel, x, batch * heads * chunks.tiles(seq_len, block_t))(
        *(Rows.of(x), None if sums is None else descriptor(sums.view(-1, h), (128, h)), norms),
        *(intra_chunk.descriptors(block_t, block_n, inner) if intra_chunk else (None, None, None)),
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
    """As `square_output`, of the features x themselves; with the scales of keys, and what multiplies what is read."""
    batch, heads, seq_len, m = x.shape
    tiles = chosen("output", x, h=h, m=m)
    block_t, block_n, block_m = (tiles.tiles[name] for name in ("BLOCK_T", "BLOCK_N", "BLOCK_M"))
    block_m, width = min(block_m, m), intra_chunk.width(tiles.tiles["BLOCK_INNER"]) if intra_chunk else 0
    result = x.new_empty(batch, heads, seq_len, h) if out is None else out
    totals = None if bias is None else x.new_empty(batch * heads, seq_len, dtype=torch.float32)
    launching.launcher(output_kernel, x, batch * heads * chunks.tiles(seq_len, block_t))(
        descriptor(x, (1, 1, block_t, block_m)),
        *(None if sums is None else descriptor(sums.view(-1, h), (block_m, h)), norms),
        *(intra_chunk.descriptors(block_t, block_n, width) if intra_chunk else (None, None, None)),
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
    launching.launcher(divide_kernel, out, batch * heads * -(-seq_len // tiles.tiles["BLOCK_T"]))(
        d_out, out, totals, grad, d_total, heads, seq_len, *d_out.stride()[:3], h, **tiles.options
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
    """`2 (x (x) y) S + 2 w x Z`, like x; added to `out` where that is given."""
    batch, heads, seq_len, r = x.shape
    h = y.shape[-1]
    tiles = chosen("square_gradient", x, h=h, r=r)
    block_t = tiles.tiles["BLOCK_T"]
    result = x.new_empty(x.shape) if out is None else out
    launching.launcher(square_gradient_kernel, x, batch * heads * chunks.tiles(seq_len, block_t))(
        *(Rows.of(x), descriptor(y, (1, 1, block_t, h)), weights),
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
    """`(y S^T + w z)` times the row's scale, `(batch, heads, n, m)`; added to `out` where that is given."""
    batch, heads, seq_len, h = y.shape
    m = sums.shape[-2]
    tiles = chosen("gradient", y, h=h, m=m)
    block_t, block_m = tiles.tiles["BLOCK_T"], min(tiles.tiles["BLOCK_M"], m)
    result = y.new_empty(batch, heads, seq_len, m) if out is None else out
    launching.launcher(gradient_kernel, y, batch * heads * chunks.tiles(seq_len, block_t), m // block_m)(
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
        """A program for each tile of rows, and for each of so many parts of their columns."""
        (batch, heads, seq_len, h), tiles = grad.shape, chosen(name, grad, h=grad.shape[-1], inner=inner)
        block_t, block_n = tiles.tiles["BLOCK_T"], tiles.tiles["BLOCK_N"]
        launching.launcher(kernel, grad, batch * heads * chunks.tiles(seq_len, tiles.tiles[block]), programs)(
            *(*intra_chunk.descriptors(block_t, block_n, width), descriptor(grad, (1, 1, block_t, h)), d_total),
            *(*((scales.running, scales.log) if scales else (None, None)), *outputs, heads, seq_len, chunks.size),
            *(h, inner, intra_chunk.log_degree, chunks.overlap(block_n), precision(grad)),
            **tiles.options,
            BLOCK_INNER=width,
        )

    launch(near_query_kernel, "near_query", "BLOCK_T", inner // width, d_query)
    if width == inner:
        launch(near_key_kernel, "near_key", "BLOCK_N", 1, d_key, d_value)
    else:  # a tile holds some features of a key, and its weight needs all of them
        launch(near_key_kernel, "near_key", "BLOCK_N", inner // width, d_key, None)
        launch(near_key_kernel, "near_key", "BLOCK_N", 1, None, d_value)
    return d_query, d_key, d_value
