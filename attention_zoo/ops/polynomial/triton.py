"""Exact polynomial attention by Triton kernels: both passes without the n x n matrix."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from attention_zoo.ops import launching
from attention_zoo.ops.autocast import autocast
from attention_zoo.ops.masking import zero_padding
from attention_zoo.ops.polynomial import kernels
from attention_zoo.ops.polynomial.tiles import HEAD_DIMS, ROWS
from attention_zoo.ops.polynomial.units import score_units

# Numbers of higher degrees are further apart than the largest and the least of float16.
LARGEST_IN_FLOAT16 = 4
# The first with hardware that loads tiles.
FIRST_WITH_TILES = 90


class Rows(NamedTuple):
    """A tensor `(batch, heads, rows, h)` by its first number, where tiles are loaded number by number."""

    data: Tensor
    batch_stride: int
    head_stride: int
    row_stride: int
    rows: int


def polynomial_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    degree: int,
    scale: float = 1.0,
    bias: float = 1.0,
    causal: bool = False,
    padding: Tensor | None = None,
) -> Tensor:
    """`sum_j w_ij v_j / (bias + sum_j w_ij)` with `w_ij = (scale <q_i, k_j>)^degree` over the keys that i sees.

    Kacham, Mirrokni, Zhong 2024 (PolySketchFormer), section 2.1, in the manner of Dao 2023 (FlashAttention-2): memory
    is linear in the lengths. A row whose denominator is zero gives zeros. Gradients flow to query, key and value.

    Weights are computed relative to `score_units`, so that none overflows; those less than 2^-186 times the largest
    possible one of their row vanish. float16 has room for degrees of 2 and 4; above them it is float32 inside.

    Args:
        query: `(batch, heads, queries, h)`, h one of 32, 64 and 128; float16, bfloat16 or float32.
        key: `(batch, heads, keys, h)`; so is `value`.
        degree: p, even.
        scale: factor of the scores.
        bias: added to the sum of a row, at least 0.
        causal: query i sees keys j <= i only; as many keys as queries.
        padding: `(batch, keys)` bool, True at keys that are not seen.

    Raises:
        ValueError: shapes, dtypes or the degree are not as above.
    """
    query, key, value = autocast(query, key, value)
    _check(query, key, value, degree, causal)
    dtype = query.dtype
    if dtype == torch.float16 and degree > LARGEST_IN_FLOAT16:
        query, key, value = query.float(), key.float(), value.float()
    key = zero_padding(key, padding)  # a key of zeros weighs nothing
    unit = score_units(query, key, degree=degree, scale=scale, bias=bias, causal=causal)
    in_units = (query * (scale / unit)[..., None]).to(query.dtype)
    out, _ = attend(in_units, key, value, (bias ** (1 / degree) / unit) ** degree, degree, causal)
    return out.to(dtype)


def _check(query: Tensor, key: Tensor, value: Tensor, degree: int, causal: bool) -> None:
    if (refusal := launching.refusal_of(query, HEAD_DIMS)) is not None:
        raise ValueError(refusal)
    if degree < 2 or degree % 2:
        raise ValueError(f"degree={degree}: must be even, so that weights are not negative")
    if key.shape != value.shape or query.shape[:2] != key.shape[:2] or query.shape[3] != key.shape[3]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
        raise ValueError(f"shapes={shapes}: must be (batch, heads, queries, h) and twice (batch, heads, keys, h)")
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(f"dtypes={query.dtype}, {key.dtype}, {value.dtype}: must be the same")
    if causal and query.shape[2] != key.shape[2]:
        raise ValueError(f"causal=True: {query.shape[2]} queries need as many keys, not {key.shape[2]}")


@torch.library.custom_op("attention_zoo::polynomial_attention", mutates_args=())
def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, degree: int, causal: bool) -> tuple[Tensor, Tensor]:
    """The output and its denominators, float32 `(batch, heads, queries)`, infinite where they are zero.

    Args:
        query: scaled; `<q_i, k_j>^degree` must be a number.
        bias: of each row, float32 `(batch, heads, queries)`; it gets no gradient.
    """
    return launch_forward(query, key, value, bias, degree, causal)


@attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, degree: int, causal: bool) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), bias.new_empty(bias.shape)


@torch.library.custom_op("attention_zoo::polynomial_attention_backward", mutates_args=())
def attend_backward(
    d_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    denominator: Tensor,
    degree: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value."""
    return launch_backward(d_out, query, key, value, out, denominator, degree, causal)


@attend_backward.register_fake
def _(d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, _, *ctx.settings = inputs
    ctx.save_for_backward(query, key, value, *output)


def _pull(ctx: Any, d_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *attend_backward(d_out, *ctx.saved_tensors, *ctx.settings), None, None, None


attend.register_autograd(_pull, setup_context=_save)


def launch_forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, degree: int, causal: bool
) -> tuple[Tensor, Tensor]:
    """`attend`."""
    chosen = _configuration("forward", query)
    m, n = chosen.tiles.values()
    out, denominator = _empty_like(query), torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
    launching.launcher(kernels.forward, query, *_grid(query, m))(
        tiles(query, m),
        tiles(key, n),
        tiles(value, n),
        bias.contiguous(),
        tiles(out, m),
        denominator,
        *_sizes(query, key),
        DEGREE=degree,
        CAUSAL=causal,
        HEAD_DIM=query.shape[3],
        **chosen.options,
    )
    return out, denominator


def launch_backward(
    d_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    denominator: Tensor,
    degree: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """`attend_backward`: a pass over the rows, one over tiles of keys, one over tiles of queries."""
    query, d_summed, d_total = _prepare(d_out, query, out, denominator, degree)
    given = {"DEGREE": degree, "CAUSAL": causal, "HEAD_DIM": query.shape[3]}
    d_query, d_key, d_value = _empty_like(query), _empty_like(key), _empty_like(value)

    chosen = _configuration("backward_keys", query)
    m, n = chosen.tiles.values()
    inputs = tiles(query, m), tiles(key, n), tiles(value, n), tiles(d_summed, m), d_total
    launching.launcher(kernels.backward_keys, query, *_grid(key, n))(
        *inputs, tiles(d_key, n), tiles(d_value, n), *_sizes(query, key), **given, **chosen.options
    )
    chosen = _configuration("backward_queries", query)
    m, n = chosen.tiles.values()
    inputs = tiles(query, m), tiles(key, n), tiles(value, n), tiles(d_summed, m), d_total
    launching.launcher(kernels.backward_queries, query, *_grid(query, m))(
        *inputs, denominator, tiles(d_query, m), *_sizes(query, key), **given, **chosen.options
    )
    return d_query, d_key, d_value


def _prepare(
    d_out: Tensor, query: Tensor, out: Tensor, denominator: Tensor, degree: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries in units of the denominators; there, the gradients of `sum_j w_ij v_j` and of the denominators."""
    chosen = _configuration("prepare", out)
    (m,) = chosen.tiles.values()
    in_units, d_summed, d_total = _empty_like(query), _empty_like(out), _empty_like(denominator)
    launching.launcher(kernels.prepare, out, *_grid(out, m))(
        *(tiles(x, m) for x in (d_out, query, out)),
        denominator,
        tiles(in_units, m),
        tiles(d_summed, m),
        d_total,
        *out.shape[1:3],
        DEGREE=degree,
        HEAD_DIM=out.shape[3],
        **chosen.options,
    )
    return in_units, d_summed, d_total


def tiles(x: Tensor, rows: int) -> TensorDescriptor | Rows:
    """A tensor `(batch, heads, rows, h)` as the kernels take it, in tiles of `rows`."""
    if loads_tiles(x):
        return launching.descriptor(x, (1, 1, rows, x.shape[3]))
    x = launching.by_tiles(x)
    return Rows(x, x.stride(0), x.stride(1), x.stride(2), x.shape[2])


def loads_tiles(x: Tensor) -> bool:
    """Whether hardware does; those of float32 pass through registers anyway, to be split."""
    return launching.architecture(x.device) >= FIRST_WITH_TILES and x.element_size() == 2


def _configuration(kernel: str, x: Tensor) -> launching.Configuration:
    return launching.configuration(ROWS, kernel, x, head_dim=x.shape[3])


def _grid(x: Tensor, rows: int) -> tuple[int]:
    return (x.shape[0] * x.shape[1] * triton.cdiv(x.shape[2], rows),)


def _sizes(query: Tensor, key: Tensor) -> tuple[int, int, int]:
    return query.shape[1], query.shape[2], key.shape[2]


def _empty_like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)
