"""Functions of keys or queries, computed for some at a time: intermediate results are never in memory for all."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_zoo.ops.gradients import once_differentiable
from attention_zoo.ops.operators import current_autocast

Function = Callable[[Tensor, Tensor], tuple[Tensor, ...]]

Weights = Callable[..., tuple[Tensor, Tensor]]

KEYS_AT_ONCE = 4096
# Weights in memory together: on a CPU they stay in its cache, a GPU has more memory and wants larger products.
CPU_ENTRIES, GPU_ENTRIES = 2**20, 2**24
LEAST_ROWS = 64


def by_keys(
    function: Function, key: Tensor, query_features: Tensor, parameters: Sequence[Tensor] = ()
) -> tuple[Tensor, ...]:
    """`function(key, query_features)` for some keys at a time; the backward pass computes it again.

    Args:
        function: takes some keys, `(batch, heads, keys, h)`; its results have the keys in their last dimension, and
            each key is treated by itself.
        key: `(batch, heads, n, h)`.
        query_features: the second argument of every call.
        parameters: other tensors that the function depends on and that need gradients.
    """
    if key.shape[2] <= KEYS_AT_ONCE:
        return function(key, query_features)
    pieces = [_Recomputed.apply(function, piece, query_features, *parameters) for piece in key.split(KEYS_AT_ONCE, 2)]
    return tuple(torch.cat(results, -1) for results in zip(*pieces, strict=True))


def weighted_values_by_rows(
    weights: Weights,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool,
    padding: Tensor | None,
    parameters: Sequence[Tensor] = (),
) -> Tensor:
    """`W V / t` for weights W and denominators t, some rows at a time; the backward pass computes them again.

    Args:
        weights: `weights(query, key, visible, *parameters)` returns W, `(batch, heads, queries, keys)`, and t, `(batch,
            heads, queries, 1)`, for some queries and the keys up to the last that one of them sees. `visible` says
            which of the *last* keys they see, broadcastable; None is all.
        query: `(batch, heads, queries, h)`.
        key: `(batch, heads, keys, h)`; so is `value`.
        causal: query i sees keys j <= i only.
        padding: `(batch, keys)` bool, True at padding.
        parameters: other tensors that the weights depend on and that need gradients.
    """
    return _WeightedValues.apply(weights, causal, query, key, value, padding, *parameters)


def _row_chunks(
    query: Tensor, key: Tensor, causal: bool, padding: Tensor | None
) -> Iterator[tuple[slice, slice, Tensor | None]]:
    """Some rows, the keys up to the last that they see, and which of the last of these are visible."""
    keys, entries = key.shape[2], CPU_ENTRIES if query.device.type == "cpu" else GPU_ENTRIES
    size = max(1, entries // (query.shape[:2].numel() * keys))
    if causal:  # short chunks: few weights of later keys are computed
        size = min(size, max(LEAST_ROWS, keys // 16))
    for start in range(0, query.shape[2], size):
        rows = slice(start, min(start + size, query.shape[2]))
        width = rows.stop if causal else keys
        visible = None if padding is None else ~padding[:, None, None, :width]
        if causal:
            here = torch.ones(width - start, width - start, dtype=torch.bool, device=query.device).tril()
            visible = here if visible is None else visible & F.pad(here, (start, 0), value=True)
        yield rows, slice(width), visible


class _WeightedValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Weights, causal: bool, *tensors: Any) -> Tensor:
        query, key, value, padding, *parameters = tensors
        ctx.weights, ctx.causal, ctx.autocast = weights, causal, current_autocast(query.device)
        ctx.save_for_backward(*tensors)
        out = torch.empty_like(query)
        for rows, keys, visible in _row_chunks(query, key, causal, padding):
            w, total = weights(query[:, :, rows], key[:, :, keys], visible, *parameters)
            some = _divided(w.to(value.dtype) @ value[:, :, keys], total)
            if not rows.start:  # autocast decides the dtype of a product
                out = out.to(some.dtype)
            out[:, :, rows] = some
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(*ctx.autocast):
            return _WeightedValues._gradients(ctx, gradients[0])

    @staticmethod
    def _gradients(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, padding, *parameters = ctx.saved_tensors
        totals = [torch.zeros_like(x) for x in (query, key, value, *parameters)]
        for rows, keys, visible in _row_chunks(query, key, ctx.causal, padding):
            (w, total), pull_back = torch.func.vjp(
                lambda q, k, *p, visible=visible: ctx.weights(q, k, visible, *p),
                *(query[:, :, rows], key[:, :, keys], *parameters),
            )[:2]
            weights, values = w.to(value.dtype), value[:, :, keys]
            gradient = _divided(d_out[:, :, rows], total)
            of_weights = gradient @ values.mT
            of_total = -(of_weights * _divided(weights, total)).sum(-1, keepdim=True)
            of_query, of_key, *of_parameters = pull_back((of_weights.to(w.dtype), of_total.to(total.dtype)))
            totals[0][:, :, rows] = of_query
            totals[1][:, :, keys] += of_key
            totals[2][:, :, keys] += weights.mT @ gradient
            for whole, part in zip(totals[3:], of_parameters, strict=True):
                whole += part
        return None, None, *totals[:3], None, *totals[3:]


def _divided(x: Tensor, total: Tensor) -> Tensor:
    return x / total.to(x.dtype)


class _Recomputed(torch.autograd.Function):
    # Not torch.utils.checkpoint: its first call imports TorchDynamo, which takes a second.
    @staticmethod
    def forward(
        ctx: Any, function: Function, key: Tensor, query_features: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.function, ctx.parameters, ctx.autocast = function, parameters, current_autocast(key.device)
        ctx.save_for_backward(key, query_features)
        return function(key, query_features)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            with torch.autocast(*ctx.autocast):
                results = ctx.function(*leaves)
            of = [*leaves, *(p for p in ctx.parameters if p.requires_grad)]
            computed = iter(torch.autograd.grad(results, of, gradients, allow_unused=True))
        first = next(computed), next(computed)
        return None, *first, *(next(computed) if p.requires_grad else None for p in ctx.parameters)
