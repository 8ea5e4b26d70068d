"""A function of keys from some of them at a time: what it computes in between is never there for all."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

Function = Callable[[Tensor], tuple[Tensor, ...]]

KEYS_AT_ONCE = 4096


def by_keys(function: Function, key: Tensor) -> tuple[Tensor, ...]:
    """`function(key)`, where every key counts for itself; gradients compute it again.

    Args:
        function: of `(batch, heads, keys, h)`; its results have the keys in their last dimension.
        key: `(batch, heads, n, h)`.
    """
    if key.shape[2] <= KEYS_AT_ONCE:
        return function(key)
    apply = _again_for_gradients(function) if torch.is_grad_enabled() else function
    pieces = [apply(piece) for piece in key.split(KEYS_AT_ONCE, 2)]
    return tuple(torch.cat(results, -1) for results in zip(*pieces, strict=True))


def _again_for_gradients(function: Function) -> Function:
    # The first call imports TorchDynamo: a second, which those without gradients need not wait.
    from torch.utils.checkpoint import checkpoint

    return functools.partial(checkpoint, function, use_reentrant=False, preserve_rng_state=False)
