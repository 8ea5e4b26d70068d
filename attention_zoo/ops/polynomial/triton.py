"""Exact polynomial attention by Triton kernels: both passes without the n x n matrix."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from attention_zoo.ops import launching
from attention_zoo.ops.descriptors import by_tiles, descriptor
from attention_zoo.ops.launching import Strided
from attention_zoo.ops.operators import autocast, like, register_with_gradient
from attention_zoo.ops.polynomial import kernels
from attention_zoo.ops.polynomial.tiles import ROWS

# The largest exponent of 2 in a weight. Room is left above it, because weights and values are summed.
LARGEST_EXPONENT = {torch.float16: 15, torch.bfloat16: 60, torch.float32: 60}
# The weights of higher degrees span a wider range than float16 has.
LARGEST_IN_FLOAT16 = 4
# The first architecture whose hardware loads tiles (TMA).
FIRST_WITH_TILES = 90


class Norm(NamedTuple):
    """A layer norm over head_dim, with parameters `(h,)`."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float


class Forward(NamedTuple):
    """The output, and what else the backward pass reads.

    `denominator` (infinity instead of zero) and `unit`, by which a row's scores are divided, are float32
    `(batch, heads, queries)`. `query` is normed, scaled and divided by its unit; `key` is normed, zeros at padding.
    """

    out: Tensor
    denominator: Tensor
    query: Tensor
    key: Tensor
    unit: Tensor


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
    norm: torch.nn.LayerNorm | None = None,
) -> Tensor:
    """`sum_j w_ij v_j / (bias + sum_j w_ij)` with `w_ij = (scale <q_i, k_j>)^degree` over the keys that i sees.

    Kacham, Mirrokni, Zhong 2024 (PolySketchFormer), section 2.1, tiled as in Dao 2023 (FlashAttention-2): memory is
    linear in the lengths. A row whose denominator is zero becomes zeros. Gradients flow to query, key, value and the
    norm's parameters.

    The scores of each row are divided by a power of two, so that no weight exceeds 2^60 (float16: 2^15) and the bias
    does not exceed 1. A weight below 2^-186 times the largest possible one of its row becomes zero. float16 has the
    range for degrees 2 and 4; higher degrees are computed in float32.

    Args:
        query: `(batch, heads, queries, h)`, h one of 32, 64 and 128; float16, bfloat16 or float32; norms up to 1e18.
        key: `(batch, heads, keys, h)`; so is `value`.
        degree: p, even.
        scale: factor of the scores.
        bias: added to the sum of a row, at least 0.
        causal: query i sees keys j <= i only; needs as many keys as queries.
        padding: `(batch, keys)` bool, True at keys that are not seen.
        norm: of queries and keys, over h.
    """
    query, key, value = autocast(query, key, value)
    dtype = query.dtype
    if dtype == torch.float16 and degree > LARGEST_IN_FLOAT16:
        query, key, value = query.float(), key.float(), value.float()
    weight, offset, eps = (None, None, None) if norm is None else (norm.weight, norm.bias, norm.eps)
    out, *_ = attend(query, key, value, weight, offset, padding, eps, degree, scale, bias, causal)
    return out.to(dtype)


class Settings(NamedTuple):
    """The settings of `polynomial_attention`, in the order of the operator's arguments."""

    degree: int
    scale: float
    bias: float
    causal: bool


def launch_forward(
    query: Tensor, key: Tensor, value: Tensor, norm: Norm | None, padding: Tensor | None, settings: Settings
) -> Forward:
    """Three kernels: prepare the keys, prepare the queries, and attend for each tile of queries."""
    normed, sizes, largest = _prepare_keys(key, norm, padding)
    in_units, unit = _prepare_queries(query, norm, sizes, largest, settings)
    chosen = _configuration("forward", query)
    m, n = chosen.tiles.values()
    out, denominator = query.new_empty(query.shape), unit.new_empty(unit.shape)
    launching.launcher(kernels.forward, query, *_grid(query, m))(
        *(tiles(in_units, m), tiles(normed, n), tiles(value, n), unit, tiles(out, m), denominator),
        *(*_sizes(query, key), _root(settings)),
        **_constants(query, settings),
        **chosen.options,
    )
    return Forward(out, denominator, in_units, normed, unit)


def _root(settings: Settings) -> float:
    """The degree-th root of the bias."""
    return settings.bias ** (1 / settings.degree)


def _constants(x: Tensor, settings: Settings) -> dict[str, int]:
    return {"DEGREE": settings.degree, "CAUSAL": settings.causal, "HEAD_DIM": x.shape[3]}


def _prepare_keys(key: Tensor, norm: Norm | None, padding: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The keys after the layer norm, zeros at padding; the norms of their rows, and the largest norm of each tile."""
    batch, heads, keys, head_dim = key.shape
    chosen = _configuration("prepare_inputs", key)
    (m,) = chosen.tiles.values()
    if padding is not None:
        padding = padding.expand(batch, keys).contiguous()
    normed, sizes = key.new_empty(key.shape), torch.empty(key.shape[:3], dtype=torch.float32, device=key.device)
    largest = torch.empty(_grid(key, m), dtype=torch.float32, device=key.device)
    launching.launcher(kernels.prepare_keys, key, *_grid(key, m))(
        *(Strided.of(key), norm, padding, Strided.of(normed), sizes, largest, heads, keys),
        HEAD_DIM=head_dim,
        **chosen.options,
    )
    return normed, sizes, largest


def _prepare_queries(
    query: Tensor, norm: Norm | None, sizes: Tensor, largest: Tensor, settings: Settings
) -> tuple[Tensor, Tensor]:
    """The queries normed, scaled and divided by their units, and the units, from the norms of `_prepare_keys`."""
    chosen = _configuration("prepare_inputs", query)
    (m,) = chosen.tiles.values()
    in_units, unit = query.new_empty(query.shape), query.new_empty(query.shape[:3], dtype=torch.float32)
    share = settings.scale / 2 ** (LARGEST_EXPONENT[query.dtype] // settings.degree)
    launching.launcher(kernels.prepare_queries, query, *_grid(query, m))(
        *(Strided.of(query), norm, sizes, largest, Strided.of(in_units), unit, *query.shape[1:3], sizes.shape[2]),
        *(settings.scale, share, max(_root(settings), torch.finfo(torch.float32).tiny)),
        CAUSAL=settings.causal,
        HEAD_DIM=query.shape[3],
        **chosen.options,
    )
    return in_units, unit


def launch_backward(
    d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, norm: Norm | None, passed: Forward, settings: Settings
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query, key, value and the layer norm's parameters, empty where there are none.

    Four kernels: prepare the gradients, gradients of tiles of keys, of tiles of queries, then the norm of both. `query`
    and `key` are the inputs of the norm; without a norm they are not read.
    """
    out, denominator, in_units, normed, unit = passed
    in_units, d_summed, d_total = _prepare_gradients(d_out, in_units, out, denominator, settings.degree)
    constants = _constants(out, settings)
    d_query, d_key, d_value = out.new_empty(out.shape), value.new_empty(value.shape), value.new_empty(value.shape)

    chosen = _configuration("backward_keys", out)
    m, n = chosen.tiles.values()
    inputs = tiles(in_units, m), tiles(normed, n), tiles(value, n), tiles(d_summed, m), d_total
    launching.launcher(kernels.backward_keys, out, *_grid(value, n))(
        *inputs, tiles(d_key, n), tiles(d_value, n), *_sizes(out, value), **constants, **chosen.options
    )
    chosen = _configuration("backward_queries", out)
    m, n = chosen.tiles.values()
    inputs = tiles(in_units, m), tiles(normed, n), tiles(value, n), tiles(d_summed, m), d_total
    launching.launcher(kernels.backward_queries, out, *_grid(out, m))(
        *(*inputs, denominator, unit, tiles(d_query, m), *_sizes(out, value), settings.scale),
        **constants,
        **chosen.options,
    )
    if norm is None:
        return d_query, d_key, d_value, out.new_empty(0), out.new_empty(0)
    return d_query, d_key, d_value, *_pull_norm(norm, (query, d_query), (key, d_key))


def _pull_norm(norm: Norm, *pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Backpropagate through the layer norm, in place; each pair is an input of the norm and a gradient of its output.

    Returns the gradients of weight and bias, empty where there are none.
    """
    x, _ = pairs[0]
    chosen = _configuration("pull_norm", x)
    (m,) = chosen.tiles.values()
    programs = [_grid(x, m)[0] for x, _ in pairs]
    sums = torch.empty(2, sum(programs), x.shape[3], dtype=torch.float32, device=x.device)
    for (x, d_x), own in zip(pairs, sums.split(programs, 1), strict=True):
        launching.launcher(kernels.pull_norm, x, own.shape[1])(
            *(Strided.of(x), norm, Strided.of(d_x), *own, *x.shape[1:3]), HEAD_DIM=x.shape[3], **chosen.options
        )
    d_weight, d_bias = (
        x.new_empty(0) if parameter is None else of_programs.sum(0).to(parameter.dtype)
        for parameter, of_programs in zip((norm.weight, norm.bias), sums, strict=True)
    )
    return d_weight, d_bias


def _prepare_gradients(
    d_out: Tensor, query: Tensor, out: Tensor, denominator: Tensor, degree: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries in units of the denominators, and the gradients of `sum_j w_ij v_j` and of the denominators in these."""
    chosen = _configuration("prepare_gradients", out)
    (m,) = chosen.tiles.values()
    in_units, d_summed, d_total = like(query, out, denominator)
    launching.launcher(kernels.prepare_gradients, out, *_grid(out, m))(
        *(*(tiles(x, m) for x in (d_out, query, out)), denominator, tiles(in_units, m), tiles(d_summed, m)),
        *(d_total, *out.shape[1:3]),
        DEGREE=degree,
        HEAD_DIM=out.shape[3],
        **chosen.options,
    )
    return in_units, d_summed, d_total


def tiles(x: Tensor, size: int) -> TensorDescriptor | Strided:
    """A tensor `(batch, heads, rows, h)` as the kernels take it, in tiles of `size` rows."""
    if loads_tiles(x):
        return descriptor(x, (1, 1, size, x.shape[3]))
    return Strided.of(by_tiles(x))


def loads_tiles(x: Tensor) -> bool:
    """Whether the hardware loads tiles of x; float32 must go through registers anyway, to be split for TF32."""
    return launching.architecture(x.device) >= FIRST_WITH_TILES and x.element_size() == 2


def _configuration(kernel: str, x: Tensor) -> launching.Configuration:
    return launching.configuration(ROWS, kernel, x, head_dim=x.shape[3])


def _grid(x: Tensor, rows: int) -> tuple[int]:
    return (x.shape[0] * x.shape[1] * triton.cdiv(x.shape[2], rows),)


def _sizes(query: Tensor, key: Tensor) -> tuple[int, int, int]:
    return query.shape[1], query.shape[2], key.shape[2]


def _forward(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> Forward:
    weight, offset, padding, eps, *settings = others
    return launch_forward(query, key, value, _norm(weight, offset, eps), padding, Settings(*settings))


def _backward(d_out: Tensor, *saved: Any) -> tuple[Tensor, ...]:
    query, key, value, weight, offset, _, *results = saved[:-5]
    eps, *settings = saved[-5:]
    norm = _norm(weight, offset, eps)
    return launch_backward(d_out, query, key, value, norm, Forward(*results), Settings(*settings))


def _norm(weight: Tensor | None, offset: Tensor | None, eps: float | None) -> Norm | None:
    return None if eps is None else Norm(weight, offset, eps)


def _empty(query: Tensor, key: Tensor, *_: Any) -> Forward:
    denominator, unit = (query.new_empty(query.shape[:3], dtype=torch.float32) for _ in range(2))
    out, in_units, normed = like(query, query, key)
    return Forward(out, denominator, in_units, normed, unit)


def _saved(inputs: tuple[Any, ...], results: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """What the backward pass needs: without a layer norm not the queries and keys, whose memory may be freed."""
    has_norm = inputs[6] is not None
    return *(inputs[:2] if has_norm else results[2:4]), *inputs[2:6], *results


attend, attend_backward = register_with_gradient(
    *("polynomial_attention", _forward, _backward, _empty),
    tensors="Tensor query, Tensor key, Tensor value, Tensor? weight, Tensor? offset, Tensor? padding",
    settings="float? eps, SymInt degree, float scale, float bias, bool causal",
    gradients=5,
    outputs=5,
    saves_outputs=True,
    saved=_saved,
)
