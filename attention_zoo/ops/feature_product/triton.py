"""The normalised `feature_product` by Triton kernels: a few launches, and no tensor of size n x n or n x r^2.

Both passes are custom operators, opaque to `torch.compile` and to autograd. The backward pass computes the sums again,
except the small ones (`Residuals`).
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_zoo.ops.feature_product import launches
from attention_zoo.ops.feature_product.chunks import Chunks, IntraChunk, Scales, packed_products, running_maximum
from attention_zoo.ops.feature_product.reference import LocalInputs
from attention_zoo.ops.feature_product.tiles import default_block_size, padded
from attention_zoo.ops.operators import autocast, like, register_with_gradient

# Keys that one program sums if all queries see all keys.
SEGMENT = 2048


def normalised_product(
    left: Tensor,
    right: Tensor,
    value: Tensor,
    *,
    bias: float,
    causal: bool,
    block_size: int | None = None,
    degree: int = 1,
    local: LocalInputs | None = None,
    log_scale: Tensor | None = None,
) -> tuple[Tensor, str]:
    """`sum_j w_ij value_j / (bias + sum_j w_ij)`, as `normalised_feature_product`.

    float16 is computed in bfloat16: squared features need its range. `local` needs degree 2.

    Returns:
        The result, and its form: `triton_blocks`, or `triton_quadratic` where every weight was computed.
    """
    dtype, (query, key) = value.dtype, (local.query, local.key) if local else (None, None)
    tensors = [x if x is None else _ready(x) for x in (left, right, value, query, key)]
    block_size = block_size or default_block_size(left.shape[2], left.shape[3], degree)
    log_degree = int(math.log2(local.degree if local else degree))
    settings = bias, causal, min(block_size, left.shape[2]), degree, log_degree
    out, *_ = attend(*tensors, log_scale, *settings)
    is_quadratic = causal and block_size >= left.shape[2]
    return out.to(dtype), "triton_quadratic" if is_quadratic else "triton_blocks"


def _ready(x: Tensor) -> Tensor:
    """x in a dtype of the kernels, padded to as many columns as their tiles have."""
    (x,) = autocast(x)
    x = x.bfloat16() if x.dtype == torch.float16 else x
    missing = padded(x.shape[-1]) - x.shape[-1]
    return F.pad(x, (0, missing)) if missing else x


class Inputs(NamedTuple):
    """The arguments of the operator, in order."""

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
        """The chunks of queries, which read sums over keys."""
        seq_len = self.left.shape[2]
        return Chunks.of(seq_len, self.block_size) if self.causal else Chunks(seq_len, 1)

    @property
    def chunks_of_gradients(self) -> Chunks:
        """The chunks of keys, which read sums over queries in the backward pass."""
        return self.chunks.reversed if self.causal else Chunks(self.right.shape[2], 1)

    def chunks_of_sums(self, x: Tensor) -> Chunks:
        """The chunks of the rows x that are summed."""
        return self.chunks if self.causal else Chunks(SEGMENT, -(-x.shape[2] // SEGMENT))

    @property
    def reads_sums(self) -> bool:
        """Whether any row reads sums: not if one chunk is the whole sequence."""
        return not self.causal or self.chunks.count > 1

    @property
    def intra_chunk(self) -> IntraChunk | None:
        """The inputs of the weights inside chunks; None if it is not causal."""
        if not self.causal:
            return None
        query = self.left if self.local_query is None else self.local_query
        key = self.right if self.local_key is None else self.local_key
        return IntraChunk(query, key, self.value, self.log_degree)

    @property
    def scales(self) -> Scales | None:
        """What keeps the sums relative to the largest log scale so far, or of all keys if it is not causal."""
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


class Residuals(NamedTuple):
    """What the forward pass saves for the backward pass, in float32; it is small compared with the inputs.

    `totals` are the denominators, `(batch * heads, n)`. For squared features `norms` are the sums of `x_i x_j` that
    rows read, and `parts` the sums of parts of a sequence of keys; they are empty where there are none.
    """

    totals: Tensor
    norms: Tensor
    parts: Tensor


def forward(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output, and the `Residuals`."""
    left, right, value, chunks, scan = inputs.left, inputs.right, inputs.value, inputs.chunks, inputs.causal
    h, scales, total, norms, parts = value.shape[-1], inputs.scales, None, None, None
    if inputs.degree == 2:
        if inputs.reads_sums:
            cut = inputs.chunks_of_sums(right)
            right_t, norms = launches.prepared(right, cut, h, scan=scan)
            parts = launches.part_sums(right_t, value, cut) if scan else None
            total, _ = launches.square_states(right_t, value, cut, parts, scan=scan, packed=True, permuted=False)
            del right_t
        out, totals = launches.square_output(
            left, total, norms, chunks, h, intra_chunk=inputs.intra_chunk, bias=inputs.bias
        )
    else:
        if inputs.reads_sums:
            total, norms = _sums_of_keys(inputs, scales)
        out, totals = launches.output(
            *(left, total, norms, chunks, h),
            intra_chunk=inputs.intra_chunk,
            scales=scales,
            row_scales=scales and scales.query,
            bias=inputs.bias,
        )
        norms = None
    assert totals is not None
    norms, parts = (totals.new_empty(0) if x is None else x for x in (norms, parts))
    return out, totals, norms, parts


def empty_residuals(inputs: Inputs) -> Residuals:
    """Residuals of the sizes that `forward` returns, not filled."""
    (batch, heads, seq_len, r), h, right = inputs.left.shape, inputs.value.shape[-1], inputs.right
    rows, norms, parts = batch * heads, [0], [0]
    if inputs.degree == 2 and inputs.reads_sums:
        chunks = inputs.chunks_of_sums(right)
        norms = [rows, chunks.count if inputs.causal else 1, r, r]
        segments = launches.segments_of(right, chunks, rows=rows, r=r, h=h).count if inputs.causal else 1
        if segments > 1:
            parts = [rows, segments - 1, packed_products(r), h]
    return Residuals(*(right.new_empty(size, dtype=torch.float32) for size in ([rows, seq_len], norms, parts)))


def _sums_of_keys(inputs: Inputs, scales: Scales | None) -> tuple[Tensor, Tensor]:
    """The sums that queries read, and their norms."""
    weights, decay = (scales.key, scales.decay) if scales else (None, None)
    keys, values, chunks = inputs.right, _weighted(inputs.value, weights), inputs.chunks_of_sums(inputs.right)
    return launches.states(keys, values, chunks, scan=inputs.causal, weights=weights, decay=decay)


def backward(
    d_out: Tensor, inputs: Inputs, out: Tensor, residuals: Residuals
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of left, right, value, local query, local key and log scale; empty where there is none."""
    (grad, d_total), scales = launches.divide(d_out, out, residuals.totals), inputs.scales
    d_local_query, d_local_key, d_scale = like(inputs.left, None, None, None)[1:]
    d_left, d_right, d_value = None, None, None
    if inputs.intra_chunk is not None:
        d_query, d_key, d_value = launches.intra_chunk_gradients(
            inputs.intra_chunk, grad, d_total, inputs.chunks, scales
        )
        if inputs.local_query is None:
            d_left, d_right = d_query, d_key
        else:
            d_local_query, d_local_key = d_query, d_key
    if inputs.reads_sums:
        kept = residuals if inputs.degree == 2 else scales
        pull = _pull_squares if inputs.degree == 2 else _pull_features
        d_left, d_right, d_value = pull(inputs, kept, grad, d_total, d_left, d_right, d_value)  # type: ignore[arg-type]
    d_left, d_right = (
        x.new_zeros(x.shape) if d is None else d for x, d in ((inputs.left, d_left), (inputs.right, d_right))
    )
    assert d_value is not None
    if inputs.log_scale is not None:
        d_scale = (d_right * inputs.right).sum(-1, dtype=inputs.log_scale.dtype)
    return d_left, d_right, d_value, d_local_query, d_local_key, d_scale


def _pull_squares(
    inputs: Inputs, residuals: Residuals, grad: Tensor, d_total: Tensor, *so_far: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of left, right and value that come through the sums, added to those so far."""
    left, right, value, scan = inputs.left, inputs.right, inputs.value, inputs.causal
    h, cut, parts = value.shape[-1], inputs.chunks_of_sums(right), residuals.parts if residuals.parts.numel() else None
    right_t = launches.transposed(right, cut, h, scan=scan)
    _, permuted = launches.square_states(right_t, value, cut, parts, scan=scan, packed=False, permuted=True)
    assert permuted is not None
    d_left = launches.square_gradient(
        left, grad, permuted, residuals.norms, inputs.chunks, weights=d_total, out=so_far[0]
    )
    del permuted, right_t
    cut, chunks = inputs.chunks_of_sums(left), inputs.chunks_of_gradients
    left_t, norms = launches.prepared(left, cut, h, scan=scan, reverse=True, weights=d_total)
    parts = launches.part_sums(left_t, grad, cut, reverse=True) if scan else None
    packed, permuted = launches.square_states(
        left_t, grad, cut, parts, scan=scan, reverse=True, packed=True, permuted=True
    )
    assert permuted is not None
    del left_t, parts
    d_right = launches.square_gradient(right, value, permuted, norms, chunks, out=so_far[1])
    d_value, _ = launches.square_output(right, packed, None, chunks, h, out=so_far[2])
    return d_left, d_right, d_value


def _pull_features(
    inputs: Inputs, scales: Scales | None, grad: Tensor, d_total: Tensor, *so_far: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of left, right and value that come through the sums, added to those so far."""
    left, right, value = inputs.left, inputs.right, inputs.value
    of_query, of_key, decay = (scales.query, scales.key, scales.decay) if scales else (None, None, None)
    total, norms = _sums_of_keys(inputs, scales)
    d_left = launches.gradient(grad, total, norms, inputs.chunks, weights=d_total, row_scales=of_query, out=so_far[0])
    weights = d_total if of_query is None else d_total * of_query
    queries, cut, chunks = _weighted(grad, of_query), inputs.chunks_of_sums(left), inputs.chunks_of_gradients
    total, norms = launches.states(left, queries, cut, scan=inputs.causal, reverse=True, weights=weights, decay=decay)
    d_right = launches.gradient(value, total, norms, chunks, row_scales=of_key, out=so_far[1])
    d_value, _ = launches.output(right, total, None, chunks, value.shape[-1], row_scales=of_key, out=so_far[2])
    return d_left, d_right, d_value


def _empty(*arguments: Any) -> tuple[Tensor, ...]:
    inputs = Inputs(*arguments)
    return inputs.value.new_empty(*inputs.left.shape[:3], inputs.value.shape[-1]), *empty_residuals(inputs)


def _backward(d_out: Tensor, *saved: Any) -> tuple[Tensor, ...]:
    tensors, out, residuals, settings = saved[:6], saved[6], saved[7:10], saved[10:]
    return backward(d_out, Inputs(*tensors, *settings), out, Residuals(*residuals))


attend, attend_backward = register_with_gradient(
    "feature_product",
    lambda *arguments: forward(Inputs(*arguments)),
    *(_backward, _empty),
    tensors="Tensor left, Tensor right, Tensor value, Tensor? local_query, Tensor? local_key, Tensor? log_scale",
    settings="float bias, bool causal, SymInt block_size, SymInt degree, SymInt log_degree",
    gradients=6,
    outputs=4,
    saves_outputs=True,
)
