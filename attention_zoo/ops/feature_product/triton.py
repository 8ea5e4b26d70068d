"""The normalised `feature_product` by Triton kernels: a few launches, and nothing of size n x n or n x r^2.

Both passes are custom operators, opaque to `torch.compile` and to autograd. The backward pass computes the sums again,
but for those of few numbers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_zoo.ops.autocast import autocast
from attention_zoo.ops.feature_product import launches
from attention_zoo.ops.feature_product.launches import WIDEST, Chunks, Near, Scales
from attention_zoo.ops.feature_product.reference import Local
from attention_zoo.ops.scans import running_maximum

# What features, values and exact queries may have of columns.
COLUMNS = (16, 32, 64, 128)
# Rows of a block: with fewer, the sums before each block are more numbers than what is summed.
SHORTEST = 16
# Keys that one program adds up where all queries see all keys.
SEGMENT = 2048
# Rows up to which every weight is computed: by the products of both forms, `n (r + h) / 2` and `2 r^2 h` of a head.
QUADRATIC = {16: 1024, 32: 2048, 64: 4096, 128: 8192}
BLOCKS = {16: 512, 32: 512, 64: 1024, 128: 1024}


def refusal_of(features: int, head_dim: int, block_size: int | None, degree: int) -> str | None:
    """Why the kernels do not take so many features and columns, or such blocks; None if they do."""
    if block_size is not None and block_size < SHORTEST:
        return f"the kernels take a block_size of at least {SHORTEST}, this is {block_size}"
    if head_dim not in COLUMNS:
        return f"the kernels take a head_dim of {', '.join(map(str, COLUMNS))}, the input has {head_dim}"
    if degree == 2 and features not in COLUMNS:
        return f"the kernels square {', '.join(map(str, COLUMNS))} features, these are {features}"
    return None


def default_block_size(seq_len: int, features: int, degree: int) -> int:
    """The rows of a chunk where only the speed depends on them: all of them where that is fewer products."""
    if degree == 1:
        return max(128, min(512, padded(features)))
    return seq_len if seq_len <= QUADRATIC[features] else BLOCKS[features]


def normalised_product(
    left: Tensor,
    right: Tensor,
    value: Tensor,
    *,
    bias: float,
    causal: bool,
    block_size: int | None = None,
    degree: int = 1,
    local: Local | None = None,
    log_scale: Tensor | None = None,
) -> tuple[Tensor, str]:
    """`sum_j w_ij value_j / (bias + sum_j w_ij)`, as `normalised_feature_product`.

    float16 is computed in bfloat16, whose range squares of features need. `local` comes with degree 2.

    Returns:
        The result, and its form: `triton_blocks`, or `triton_quadratic` where every weight was computed.
    """
    dtype, (query, key) = value.dtype, (local.query, local.key) if local else (None, None)
    given = [x if x is None else _ready(x) for x in (left, right, value, query, key)]
    block_size = block_size or default_block_size(left.shape[2], left.shape[3], degree)
    log_degree = int(math.log2(local.degree if local else degree))
    settings = bias, causal, min(block_size, left.shape[2]), degree, log_degree
    out, *_ = attend(*given, log_scale, *settings)
    is_quadratic = causal and block_size >= left.shape[2]
    return out.to(dtype), "triton_quadratic" if is_quadratic else "triton_blocks"


def padded(columns: int) -> int:
    """As many columns as the tiles have, of these and zeros."""
    unit = launches.PART if columns > WIDEST else max(16, 1 << (columns - 1).bit_length())
    return -(-columns // unit) * unit


def _ready(x: Tensor) -> Tensor:
    """In a dtype of the kernels, and as many columns as their tiles have."""
    (x,) = autocast(x)
    x = x.bfloat16() if x.dtype == torch.float16 else x
    missing = padded(x.shape[-1]) - x.shape[-1]
    return F.pad(x, (0, missing)) if missing else x


class _Inputs(NamedTuple):
    """What both passes are given."""

    left: Tensor
    right: Tensor
    value: Tensor
    local_query: Tensor | None
    local_key: Tensor | None
    log_scale: Tensor | None
    bias: float
    causal: bool
    block_size: int
    degree: int
    log_degree: int

    @property
    def chunks(self) -> Chunks:
        """Of the rows that read."""
        seq_len = self.left.shape[2]
        return Chunks.of(seq_len, self.block_size) if self.causal else Chunks(seq_len, 1)

    def summed(self, x: Tensor) -> Chunks:
        """Of the rows x that are summed."""
        return self.chunks if self.causal else Chunks(SEGMENT, -(-x.shape[2] // SEGMENT))

    @property
    def reads_sums(self) -> bool:
        """Whether any row reads sums: not where one chunk is the whole."""
        return not self.causal or self.chunks.count > 1

    @property
    def near(self) -> Near | None:
        """What the weights inside chunks are made of."""
        if not self.causal:
            return None
        query = self.left if self.local_query is None else self.local_query
        key = self.right if self.local_key is None else self.local_key
        return Near(query, key, self.value, self.log_degree)

    @property
    def scales(self) -> Scales | None:
        """Those that keep sums relative to the largest log scale so far, or of all."""
        if self.log_scale is None:
            return None
        log = self.log_scale.flatten(0, 1).contiguous()
        return _scales(log, self.chunks) if self.causal else Scales(log, (log - log.amax(-1, keepdim=True)).exp())


def _scales(log: Tensor, chunks: Chunks) -> Scales:
    running = running_maximum(log).contiguous()
    chunk = torch.arange(log.shape[1], device=log.device) // chunks.size
    last = (torch.arange(1, chunks.count + 1, device=log.device) * chunks.size).clamp(max=log.shape[1]) - 1
    after = running[:, last]
    before = torch.cat([running[:, :1], after[:, :-1]], 1)
    return Scales(
        log, (log - after[:, chunk]).exp(), running, (before[:, chunk] - running).exp(), (before - after).exp()
    )


def _weighted(x: Tensor, weights: Tensor | None) -> Tensor:
    """Rows of x `(batch, heads, n, ...)` times their weights `(batch * heads, n)`."""
    return x if weights is None else (x * weights.view(x.shape[:3])[..., None]).to(x.dtype)


class _Kept(NamedTuple):
    """What the forward pass leaves to the backward pass, in float32: numbers that are few beside the inputs.

    Denominators `(batch * heads, n)`, and of squares the sums of `x_i x_j` that rows read and those of parts of a
    sequence of keys, which are empty where there are none.
    """

    totals: Tensor
    norms: Tensor
    parts: Tensor


def _forward(given: _Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output, and what is `_Kept`."""
    left, right, value, chunks, scan = given.left, given.right, given.value, given.chunks, given.causal
    h, scales, sums, norms, parts = value.shape[-1], given.scales, None, None, None
    if given.degree == 2:
        if given.reads_sums:
            cut = given.summed(right)
            right_t, norms = launches.prepared(right, cut, h, scan=scan)
            parts = launches.part_sums(right_t, value, cut) if scan else None
            sums, _ = launches.square_states(right_t, value, cut, parts, scan=scan, packed=True, permuted=False)
            del right_t
        out, totals = launches.square_output(left, sums, norms, chunks, h, near=given.near, bias=given.bias)
    else:
        key_scale = scales and scales.key
        if given.reads_sums:
            sums, norms = _feature_sums(
                *(right, _weighted(value, key_scale), given.summed(right)),
                scan=scan,
                weights=key_scale,
                decay=scales and scales.decay,
            )
        out, totals = launches.output(
            *(left, sums, norms, chunks, h),
            near=given.near,
            scales=scales,
            row_scales=scales and scales.query,
            bias=given.bias,
        )
        norms = None
    assert totals is not None
    norms, parts = (totals.new_empty(0) if x is None else x for x in (norms, parts))
    return out, totals, norms, parts


def _empty_kept(given: _Inputs) -> _Kept:
    """Of the sizes that `_forward` returns."""
    (batch, heads, seq_len, r), h, right = given.left.shape, given.value.shape[-1], given.right
    rows, norms, parts = batch * heads, [0], [0]
    if given.degree == 2 and given.reads_sums:
        chunks = given.summed(right)
        norms = [rows, chunks.count if given.causal else 1, r, r]
        segments = launches.segments_of(right, chunks, rows=rows, r=r, h=h).count if given.causal else 1
        if segments > 1:
            parts = [rows, segments - 1, launches.packed_products(r), h]
    return _Kept(*(right.new_empty(size, dtype=torch.float32) for size in ([rows, seq_len], norms, parts)))


def _feature_sums(x: Tensor, values: Tensor, chunks: Chunks, *, scan: bool, **options: Any) -> tuple[Tensor, Tensor]:
    """The sums that rows read, and their norms."""
    sums, norms = launches.states(x, values, chunks, scan=scan, **options)
    sums, norms = (sums, norms) if scan else launches.totals(sums, norms, values.dtype)
    assert norms is not None
    return sums, norms


def _backward(given: _Inputs, out: Tensor, kept: _Kept, d_out: Tensor) -> tuple[Tensor, ...]:
    """The gradients of left, right, value, local query, local key and log scale; empty where there is none."""
    grad, d_total = launches.divide(d_out, out, kept.totals)
    scales, (d_scale, *of_local) = given.scales, [given.left.new_empty(0) for _ in range(3)]
    gradients: tuple[Tensor | None, Tensor | None, Tensor | None] = None, None, None
    if given.near is not None:
        gradients = launches.near_gradients(given.near, grad, d_total, given.chunks, scales)
    d_value = gradients[2]
    if given.local_query is not None:
        of_local, gradients = [*gradients[:2]], (None, None, d_value)  # type: ignore[list-item]
    if given.degree == 2:
        d_left, d_right, d_value = _pull_squares(given, kept, grad, d_total, *gradients)
    else:
        d_left, d_right, d_value = _pull_features(given, grad, d_total, scales, *gradients)
    if given.log_scale is not None:
        d_scale = (d_right * given.right).sum(-1, dtype=given.log_scale.dtype)
    return d_left, d_right, d_value, *of_local, d_scale


def _pull_squares(
    given: _Inputs,
    kept: _Kept,
    grad: Tensor,
    d_total: Tensor,
    d_left: Tensor | None,
    d_right: Tensor | None,
    d_value: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    left, right, value, chunks, scan = given.left, given.right, given.value, given.chunks, given.causal
    if not given.reads_sums:
        return *(x.new_zeros(x.shape) if d is None else d for x, d in ((left, d_left), (right, d_right))), d_value  # type: ignore[return-value]
    h, cut, parts = value.shape[-1], given.summed(right), kept.parts if kept.parts.numel() else None
    right_t = launches.transposed(right, cut, h, scan=scan)
    _, sums = launches.square_states(right_t, value, cut, parts, scan=scan, packed=False, permuted=True)
    d_left = launches.square_gradient(left, grad, sums, kept.norms, chunks, weights=d_total, out=d_left)
    del sums, right_t
    cut, chunks = given.summed(left), chunks.reversed if scan else Chunks(right.shape[2], 1)
    left_t, norms = launches.prepared(left, cut, h, scan=scan, reverse=True, weights=d_total)
    parts = launches.part_sums(left_t, grad, cut, reverse=True) if scan else None
    packed, sums = launches.square_states(left_t, grad, cut, parts, scan=scan, reverse=True, packed=True, permuted=True)
    del left_t, parts
    d_right = launches.square_gradient(right, value, sums, norms, chunks, out=d_right)
    d_value, _ = launches.square_output(right, packed, None, chunks, h, out=d_value)
    return d_left, d_right, d_value


def _pull_features(
    given: _Inputs,
    grad: Tensor,
    d_total: Tensor,
    scales: Scales | None,
    d_left: Tensor | None,
    d_right: Tensor | None,
    d_value: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    if not given.reads_sums:
        return d_left, d_right, d_value  # type: ignore[return-value]
    left, right, value, chunks, scan = given.left, given.right, given.value, given.chunks, given.causal
    of_query, of_key, decay = (scales.query, scales.key, scales.decay) if scales else (None, None, None)
    given_keys = right, _weighted(value, of_key), given.summed(right)
    sums, norms = _feature_sums(*given_keys, scan=scan, weights=of_key, decay=decay)
    d_left = launches.gradient(grad, sums, norms, chunks, weights=d_total, row_scales=of_query, out=d_left)
    chunks = chunks.reversed if scan else Chunks(right.shape[2], 1)
    weights = d_total if of_query is None else d_total * of_query
    given_queries = left, _weighted(grad, of_query), given.summed(left)
    sums, norms = _feature_sums(*given_queries, scan=scan, reverse=True, weights=weights, decay=decay)
    d_right = launches.gradient(value, sums, norms, chunks, row_scales=of_key, out=d_right)
    d_value, _ = launches.output(right, sums, None, chunks, value.shape[-1], row_scales=of_key, out=d_value)
    return d_left, d_right, d_value


@torch.library.custom_op("attention_zoo::feature_product", mutates_args=())
def attend(
    left: Tensor,
    right: Tensor,
    value: Tensor,
    local_query: Tensor | None,
    local_key: Tensor | None,
    log_scale: Tensor | None,
    bias: float,
    causal: bool,
    block_size: int,
    degree: int,
    log_degree: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output, and what is `_Kept`: its denominators `(batch * heads, n)` in float32 first."""
    return _forward(
        _Inputs(*(left, right, value, local_query, local_key, log_scale, bias, causal, block_size, degree, log_degree))
    )


@attend.register_fake
def _(*inputs: Any) -> tuple[Tensor, ...]:
    given = _Inputs(*inputs)
    return given.value.new_empty(*given.left.shape[:3], given.value.shape[-1]), *_empty_kept(given)


@torch.library.custom_op("attention_zoo::feature_product_backward", mutates_args=())
def attend_backward(
    left: Tensor,
    right: Tensor,
    value: Tensor,
    local_query: Tensor | None,
    local_key: Tensor | None,
    log_scale: Tensor | None,
    bias: float,
    causal: bool,
    block_size: int,
    degree: int,
    log_degree: int,
    out: Tensor,
    totals: Tensor,
    norms: Tensor,
    parts: Tensor,
    d_out: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the first six arguments; empty for those that are None."""
    given = _Inputs(
        *(left, right, value, local_query, local_key, log_scale, bias, causal, block_size, degree, log_degree)
    )
    return _backward(given, out, _Kept(totals, norms, parts), d_out)  # type: ignore[return-value]


@attend_backward.register_fake
def _(
    left: Tensor, right: Tensor, value: Tensor, query: Tensor | None, key: Tensor | None, log: Tensor | None, *_: Any
) -> tuple[Tensor, ...]:
    given = (left, right, value, query, key, log)
    return tuple(left.new_empty(0) if x is None else x.new_empty(x.shape) for x in given)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:6], *output)
    ctx.settings = inputs[6:]
    ctx.mark_non_differentiable(*output[1:])


def _pull(ctx: Any, d_out: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    inputs, outputs = saved[:6], saved[6:]
    gradients = attend_backward(*inputs, *ctx.settings, *outputs, d_out)
    given = (None if x is None else d for x, d in zip(inputs, gradients, strict=True))
    return *given, *(None for _ in ctx.settings)


attend.register_autograd(_pull, setup_context=_setup)
