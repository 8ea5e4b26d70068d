"""A function of keys from some of them at a time: what it computes in between is never there for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Function = Callable[[Tensor, Tensor], tuple[Tensor, ...]]

KEYS_AT_ONCE = 4096


def by_keys(
    function: Function, key: Tensor, query_features: Tensor, parameters: Sequence[Tensor] = ()
) -> tuple[Tensor, ...]:
    """`function(key, query_features)`, where every key counts for itself; gradients compute it again.

    Args:
        function: of some keys, `(batch, heads, keys, h)`; its results have the keys in their last dimension.
        key: `(batch, heads, n, h)`.
        query_features: what the keys meet, whole.
        parameters: what else the function depends on and gradients go to.
    """
    if key.shape[2] <= KEYS_AT_ONCE:
        return function(key, query_features)
    pieces = [_Recomputed.apply(function, piece, query_features, *parameters) for piece in key.split(KEYS_AT_ONCE, 2)]
    return tuple(torch.cat(results, -1) for results in zip(*pieces, strict=True))


class _Recomputed(torch.autograd.Function):
    # torch.utils.checkpoint would import TorchDynamo at its first call: a second.
    @staticmethod
    def forward(
        ctx: Any, function: Function, key: Tensor, query_features: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.function, ctx.parameters = function, parameters
        ctx.save_for_backward(key, query_features)
        return function(key, query_features)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            results = ctx.function(*leaves)
            of = [*leaves, *(p for p in ctx.parameters if p.requires_grad)]
            computed = iter(torch.autograd.grad(results, of, gradients, allow_unused=True))
        first = next(computed), next(computed)
        return None, *first, *(next(computed) if p.requires_grad else None for p in ctx.parameters)
