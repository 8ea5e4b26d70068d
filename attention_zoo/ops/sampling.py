"""Draws without replacement, from noise that is given, and rows put back where they were drawn."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def sample_without_replacement(probability: Tensor, noise: Tensor, count: int, allowed: Tensor) -> Tensor:
    """Draw `count` distinct indices of the last dimension, one after the other with `probability`.

    The Gumbel-top-k trick: the largest `log p + g`, g standard Gumbel, are such a draw (Kool et al. 2019,
    Stochastic Beams and Where to Find Them).

    Args:
        probability: `(..., n)`, not negative, any scale.
        noise: `(..., n)`, uniform in [0, 1).
        count: indices to draw; all n if there are fewer.
        allowed: `(..., n)` bool, broadcastable: the others come last, once the allowed ones are used up.

    Returns:
        Indices `(..., min(count, n))`.
    """
    tiny = torch.finfo(torch.float32).tiny
    gumbel = -(-noise.clamp_min(tiny).log()).log()
    keys = (probability.clamp_min(tiny).log() + gumbel).masked_fill(~allowed, -torch.inf)
    return keys.topk(min(count, keys.shape[-1])).indices


def place_rows(others: Tensor, positions: Tensor, drawn: Tensor, exact: Tensor) -> Tensor:
    """The rows at `positions` of a matrix that has the rows `exact` at the positions `drawn`, and `others` elsewhere.

    Args:
        others: `(batch, heads, rows, n)`, or broadcastable to it.
        positions: `(rows,)`.
        drawn: `(batch, heads, d)` distinct positions; heads may be 1.
        exact: `(batch, heads, d, n)`.
    """
    is_drawn, index = (positions[:, None] == drawn[:, :, None]).max(-1, keepdim=True)
    return torch.where(is_drawn, exact.take_along_dim(index, 2), others)
