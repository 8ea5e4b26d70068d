"""Steps of decoding by Triton kernels: one launch updates the state in place and reads it, in one pass over its memory.

The states are `FeatureSums` made on a GPU with `split`, except for `read_block`. A query, key or value is
`(batch, heads, 1, head_dim)`, and so is the result, in the dtype of the values. Nothing waits for the device. Only
`read_block` has an argument that changes from step to step, the length of the block: the other steps can be captured
in a CUDA graph.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor, nn

from attention_zoo.ops import launching
from attention_zoo.ops.decoding import kernels
from attention_zoo.ops.decoding.states import BlockState, FeatureSums
from attention_zoo.ops.decoding.tiles import ROWS, ROWS_OF_NARROW
from attention_zoo.ops.operators import register


def step_linear(state: FeatureSums, query: Tensor, key: Tensor, value: Tensor, *, eps: float) -> Tensor:
    """`FeatureSums.next` with the features `elu(x) + 1` (Katharopoulos et al. 2020, equation 7)."""
    state.length += 1
    return _featured_step(state.sums, value, query, key, eps, state.rows, 1, True)


def step_features(state: FeatureSums, both: Tensor, value: Tensor, *, bias: float) -> Tensor:
    """`FeatureSums.next` with features of the query and the key, `(batch, heads, 2, features)`."""
    state.length += 1
    query, key = both.unbind(2)
    return _featured_step(state.sums, value, query, key, bias, state.rows, state.degree, False)


def step_sketched(
    state: FeatureSums,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    matrices: Tensor,
    norm: nn.LayerNorm | None,
    scale: float,
    bias: float,
) -> Tensor:
    """`FeatureSums.next` with a sketch of degree 2 of the token after its layer norm, tensored with itself.

    PolySketchFormer (ICML version), Algorithm 1. `matrices` are G1 and G2, `(1 or heads, head_dim, 2, r)`; `scale` is
    the factor of the features, `sqrt(1 / r)` times the scale of the scores.
    """
    state.length += 1
    weight, shift, norm_eps = (None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
    return _sketched_step(state.sums, value, query, key, matrices, weight, shift, norm_eps, scale, bias, state.rows)


def step_exponential(
    state: FeatureSums, query: Tensor, key: Tensor, value: Tensor, *, projection: Tensor, scale: float, eps: float
) -> Tensor:
    """`FeatureSums.next` with the stabilised positive random features of performer, and their running maximum.

    Choromanski et al. 2021, section 2.3, for `exp(scale <q, k>)`. The projection is `(features, head_dim)`; eps is
    added to every feature, relative to the largest.
    """
    assert state.log_scale is not None
    state.length += 1
    return _exponential_step(state.sums, value, state.log_scale, query, key, projection, scale**0.5, eps, state.rows)


def read_block(state: BlockState, query: Tensor, features: Tensor, degree: int, bias: float) -> Tensor:
    """`BlockState.read` for one query and its features `(batch, heads, 1, r)`; the degree is a power of two."""
    return _block_read(state.sums.sums, query, features, state.block.keys, state.block.values, degree, bias)


# --- The launches -----------------------------------------------------------------------------------


def _launch(kernel: Any, programs: int, *arguments: Any, sizes: dict[str, Any], **dims: int) -> None:
    chosen = launching.configuration(ROWS, kernel.__name__, arguments[0], **dims)
    launching.launcher(kernel, arguments[0], programs)(*arguments, **sizes, **chosen.options)


def launch_featured_step(
    sums: Tensor, value: Tensor, query: Tensor, key: Tensor, bias: float, rows: int, degree: int, elu: bool
) -> Tensor:
    """A step with the features `(batch, heads, ..., features)`, or with `elu(x) + 1` of them."""
    value, query, key = map(launching.by_rows, (value, query, key))
    out, head_dim, size = _like(value), value.shape[-1], query.shape[-1]
    sizes = {"HEADS": value.shape[1], "HEAD_DIM": head_dim, "ROWS": rows, **_padded(SIZE=size)}
    sizes |= {"WIDTH": sums.shape[-1], "DEGREE": degree, "ELU": elu}
    arguments = sums, query, key, value, out, *_strides(query, key, value), bias
    programs = len(sums) * head_dim // rows
    _launch(kernels.featured_step, programs, *arguments, sizes=sizes, width=sums.shape[-1])
    return out


def launch_sketched_step(
    sums: Tensor,
    value: Tensor,
    query: Tensor,
    key: Tensor,
    matrices: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    norm_eps: float,
    scale: float,
    bias: float,
    rows: int,
) -> Tensor:
    """A step with `scale (x G1) o (x G2)`, x after a layer norm unless `norm_weight` is None."""
    value, query, key = map(launching.by_rows, (value, query, key))
    out, (groups, head_dim, _, size) = _like(value), matrices.shape
    sizes = {"HEADS": value.shape[1], "ROWS": rows, **_padded(HEAD_DIM=head_dim, SIZE=size)}
    sizes |= {"WIDTH": sums.shape[-1], "NORMED": norm_weight is not None, "SHARED": groups == 1}
    arguments = sums, query, key, value, out, matrices.contiguous(), norm_weight, norm_bias
    numbers = *_strides(query, key, value), norm_eps, scale, bias
    programs = len(sums) * head_dim // rows
    _launch(kernels.sketched_step, programs, *arguments, *numbers, sizes=sizes, width=sums.shape[-1])
    return out


def launch_exponential_step(
    sums: Tensor,
    value: Tensor,
    log_scale: Tensor,
    query: Tensor,
    key: Tensor,
    projection: Tensor,
    root: float,
    eps: float,
    rows: int,
) -> Tensor:
    """A step with Performer's features; `log_scale` is the largest log scale so far of each part."""
    value, query, key = map(launching.by_rows, (value, query, key))
    out, (size, head_dim) = _like(value), projection.shape
    sizes = {"HEADS": value.shape[1], "HEAD_DIM": head_dim, "ROWS": rows, **_padded(SIZE=size)}
    arguments = sums, log_scale, query, key, value, out, projection.contiguous()
    numbers = *_strides(query, key, value), root, eps, size**-0.5
    _launch(kernels.exponential_step, log_scale.numel(), *arguments, *numbers, sizes=sizes, width=size)
    return out


def launch_block_read(
    sums: Tensor, query: Tensor, features: Tensor, keys: Tensor, values: Tensor, degree: int, bias: float
) -> Tensor:
    """The output of a query from the sums and a block; only the output is written."""
    out, head_dim, size = _like(query), query.shape[-1], features.shape[-1]
    rows = min(head_dim & -head_dim, ROWS_OF_NARROW)
    sizes = {"ROWS": rows, "WIDTH": sums.shape[-1], "SQUARINGS": degree.bit_length() - 1}
    sizes |= _padded(HEAD_DIM=head_dim, SIZE=size)
    arguments = sums, features.contiguous(), query.contiguous(), keys, values, out
    numbers = keys.stride(1), keys.stride(2), values.stride(1), keys.shape[2], bias
    programs = len(sums) * head_dim // rows
    _launch(kernels.block_read, programs, *arguments, *numbers, sizes=sizes, head_dim=head_dim)
    return out


def _strides(*tensors: Tensor) -> list[int]:
    """The strides of batch and heads, tensor by tensor."""
    return [stride for x in tensors for stride in x.stride()[:2]]


def _padded(**sizes: int) -> dict[str, int]:
    """The sizes, and the next powers of two, because the length of a vector in a kernel must be one."""
    return sizes | {f"PADDED_{name}": triton.next_power_of_2(size) for name, size in sizes.items()}


def _like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, device=x.device, dtype=x.dtype)


# --- The operators ----------------------------------------------------------------------------------


def _register(name: str, launch: Callable[..., Tensor], *, mutates: Sequence[str]) -> Callable[..., Tensor]:
    """An operator while compiling, else the launch itself: to look an operator up takes PyTorch longer than that."""
    operator = register(name, launch, lambda sums, token, *_: _like(token), mutates=mutates)

    def call(*arguments: Any) -> Tensor:
        return (operator if torch.compiler.is_compiling() else launch)(*arguments)

    return call


_featured_step = _register("featured_step", launch_featured_step, mutates=["sums"])
_sketched_step = _register("sketched_step", launch_sketched_step, mutates=["sums"])
_exponential_step = _register("exponential_step", launch_exponential_step, mutates=["sums", "log_scale"])
_block_read = _register("block_read", launch_block_read, mutates=[])
