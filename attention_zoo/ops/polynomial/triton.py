"""Exact polynomial attention by Triton kernels, with a backward pass, and without the n x n matrix."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from attention_zoo.ops import launching
from attention_zoo.ops.polynomial import kernels
from attention_zoo.ops.polynomial.tiles import ROWS

HEAD_DIMS = (32, 64, 128)
# No weight exceeds 2^15, for which float16 has room.
LARGEST_EXPONENT = 15
# The square root of the least normal float32: the square of a smaller norm is none.
LEAST_NORM = 2.0**-63
SCAN_BLOCK = 128
PREPARED_ROWS = 64


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
    """`sum_j w_ij v_j / (bias + sum_j w_ij)` with `w_ij = (scale <q_i, k_j>)^degree`; gradients flow to all three.
    """
    query, key, value = launching.autocast(query, key, value)
    if padding is not None:  # a key of zeros weighs nothing
        key = key.masked_fill(padding[:, None, :, None], 0)
    unit = units(query, key, degree, scale, bias, causal)
    query = (query * (scale / unit)[..., None]).to(query.dtype)
    out, _ = _forward(query, key, value, (bias ** (1 / degree) / unit) ** degree, degree, causal)
    return out


@torch.no_grad()
def units(query: Tensor, key: Tensor, degree: int, scale: float, bias: float, causal: bool) -> Tensor:
    largest, norm = (torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).clamp_min(LEAST_NORM) for x in (key, query))
    largest = running_maximum(largest) if causal else largest.amax(-1, keepdim=True)
    bound = norm * largest * (scale / 2 ** (LARGEST_EXPONENT // degree))
    bound = bound.clamp_min(max(bias ** (1 / degree), torch.finfo(torch.float32).tiny))
    return bound / torch.frexp(bound).mantissa


def running_maximum(x: Tensor) -> Tensor:
    blocks = F.pad(x, (0, -x.shape[-1] % SCAN_BLOCK)).unflatten(-1, (-1, SCAN_BLOCK))
    within = blocks.cummax(-1).values
    before = F.pad(within[..., -1].cummax(-1).values[..., :-1], (1, 0))
    return torch.maximum(within, before[..., None]).flatten(-2)[..., : x.shape[-1]]


def launch_forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, degree: int, causal: bool
) -> tuple[Tensor, Tensor]:
    chosen = launching.configuration(ROWS, "forward", query)
    m, n = chosen.tiles["BLOCK_M"], chosen.tiles["BLOCK_N"]
    batch, heads, queries, head_dim = query.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    denominator = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
    kernels.forward[(batch * heads * triton.cdiv(queries, m),)](
        tiles(query, m), tiles(key, n), tiles(value, n), tiles(out, m), bias.contiguous(), denominator,
        heads, queries, key.shape[2], degree, causal, head_dim, precision(query), **chosen.options,
    )
    return out, denominator


def launch_backward(d_out, query, key, value, out, denominator, degree, causal):
    batch, heads, queries, head_dim = query.shape
    keys = key.shape[2]
    d_summed = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    d_total = torch.empty_like(denominator)
    m = PREPARED_ROWS
    kernels.prepare[(batch * heads * triton.cdiv(queries, m),)](
        tiles(d_out, m), tiles(out, m), denominator, tiles(d_summed, m), d_total, heads, queries, head_dim, m)
    d_query, d_key, d_value = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (query, key, value))
    chosen = launching.configuration(ROWS, "backward_keys", query)
    m, n = chosen.tiles["BLOCK_M"], chosen.tiles["BLOCK_N"]
    kernels.backward_keys[(batch * heads * triton.cdiv(keys, n),)](
        tiles(query, m), tiles(key, n), tiles(value, n), tiles(d_summed, m), tiles(d_key, n), tiles(d_value, n), d_total,
        heads, queries, keys, degree, causal, head_dim, precision(query), **chosen.options)
    chosen = launching.configuration(ROWS, "backward_queries", query)
    m, n = chosen.tiles["BLOCK_M"], chosen.tiles["BLOCK_N"]
    kernels.backward_queries[(batch * heads * triton.cdiv(queries, m),)](
        tiles(query, m), tiles(key, n), tiles(value, n), tiles(d_summed, m), tiles(d_query, m), d_total,
        heads, queries, keys, degree, causal, head_dim, precision(query), **chosen.options)
    return d_query, d_key, d_value


def tiles(x: Tensor, rows: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(launching.by_tiles(x), [1, 1, rows, x.shape[-1]])


def precision(x: Tensor) -> str:
    return "tf32x3" if x.dtype == torch.float32 else "tf32"
