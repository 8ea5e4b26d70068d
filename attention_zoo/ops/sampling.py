"""Sampling without replacement from given noise, and gathering and assigning the sampled rows."""

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
        allowed: `(..., n)` bool, broadcastable: other indices are drawn only after all allowed ones.

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


def take_rows(x: Tensor, indices: Tensor) -> Tensor:
    """The rows of `x` `(batch, heads, n, h)` at `indices`, `(batch, heads or 1, d)`: `(batch, heads, d, h)`.

    Whole rows are copied: four to eight times as fast as element by element.
    """
    return x.flatten(0, 2).index_select(0, _flat(x, indices)).view(*x.shape[:2], -1, x.shape[3])


def assign_rows(x: Tensor, indices: Tensor, rows: Tensor) -> Tensor:
    """`x` `(batch, heads, n, h)` with its rows at distinct `indices`, as in `take_rows`, set to `rows`."""
    return x.flatten(0, 2).index_copy(0, _flat(x, indices), rows.flatten(0, 2)).view_as(x)


def _flat(x: Tensor, indices: Tensor) -> Tensor:
    batch, heads, n, _ = x.shape
    first = torch.arange(0, batch * heads * n, n, device=x.device).view(batch, heads, 1)
    return (first + indices).flatten()
