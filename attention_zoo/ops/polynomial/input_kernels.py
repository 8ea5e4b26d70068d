"""Queries and keys of polynomial attention: layer norm, padding, scale and units, and the gradients of the layer norm.

Tensors come as in `kernels`, with strides: they are loaded number by number.
"""

import triton
import triton.language as tl

from attention_zoo.ops.kernels import affine, pull_back, standardised
from attention_zoo.ops.polynomial.kernels import load, store

# The square of a smaller norm is less than that.
LEAST_NORM = tl.constexpr(2.0**-63)
# The bits of a float32 that are its exponent, and one in them.
EXPONENT, ONE = tl.constexpr(0x7F800000), tl.constexpr(0x00800000)
# Tiles of keys whose largest norms are read together.
TILES_READ = tl.constexpr(256)


@triton.jit
def load_normed(x, norm, place, start, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """`load` behind the layer norm, where there is one."""
    x = load(x, place, start, ROWS, HEAD_DIM)
    if norm is not None:
        unit, _ = standardised(x.to(tl.float32), norm.eps, HEAD_DIM)
        x = affine(unit, norm.weight, norm.bias, HEAD_DIM).to(x.dtype)
    return x


@triton.jit
def norms(x):
    """Of rows."""
    x = x.to(tl.float32)
    return tl.maximum(tl.sqrt(tl.sum(x * x, 1)), LEAST_NORM)


@triton.jit
def prepare_keys(
    key, norm, padding, normed, sizes, largest, heads, keys, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr
):  # fmt: skip
    """A tile of rows of the keys behind the layer norm, zeros where they are hidden; their norms, and the largest.

    `padding` is bool `(batch, keys)` or None, `sizes` float32 `(batch * heads, keys)`, `largest` one of each tile.
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
    k = tl.where(is_seen[:, None], k, 0.0)  # a key of zeros weighs nothing
    store(normed, place, row, k)
    of_keys = norms(k)
    tl.store(sizes + tl.cast(item, tl.int64) * keys + rows, of_keys, mask=is_there)
    tl.store(largest + tl.program_id(0), tl.max(of_keys, 0))


@triton.jit
def largest_seen(sizes, largest, item, tile, keys, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr):
    """The largest norm of a key that each query of a tile sees; nothing of its future is in it."""
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
    """A tile of rows of the queries behind the layer norm, times the scale and in units, and these units.

    A unit is the power of two above what a score can be (Cauchy-Schwarz) times the `share`, and above `least`. `sizes`
    and `largest` are those of `prepare_keys` with tiles of as many rows, `unit` is float32 `(batch * heads, queries)`.
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
    # Of zeros `scale / unit` could make NaN.
    store(in_units, place, row, (q.to(tl.float32) * scale * (1 / of_rows)[:, None]).to(q.dtype))


@triton.jit
def pull_norm(x, norm, d_x, d_weight, d_bias, heads, rows, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr):
    """A tile of gradients behind the layer norm of x, in place those before it; this program's share of `pull_back`."""
    tiles = tl.cdiv(rows, BLOCK_M)
    item, row = tl.program_id(0) // tiles, tl.program_id(0) % tiles * BLOCK_M
    place = item // heads, item % heads
    unit, rate = standardised(load(x, place, row, BLOCK_M, HEAD_DIM).to(tl.float32), norm.eps, HEAD_DIM)
    d = load(d_x, place, row, BLOCK_M, HEAD_DIM)
    pulled = pull_back(d.to(tl.float32), unit, rate, norm.weight, d_weight, d_bias, HEAD_DIM)
    store(d_x, place, row, pulled.to(d.dtype))
