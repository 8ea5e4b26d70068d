"""Masks, powers of weights, and normalisation that is safe for rows in which everything is masked."""

import torch
from torch import Tensor


def visible_keys(queries: int, keys: int, causal: bool, padding: Tensor | None, device: torch.device) -> Tensor:
    """`visible_rows` of all queries."""
    return visible_rows(torch.arange(queries, device=device), keys, causal, padding)


def visible_rows(positions: Tensor, keys: int, causal: bool, padding: Tensor | None) -> Tensor:
    """Which keys the queries at `positions` may see: bool, broadcastable to `(batch, heads, len(positions), keys)`.

    `padding` is `(batch, keys)` bool, True at padding.
    """
    key_positions = torch.arange(keys, device=positions.device)
    past = key_positions <= positions[:, None] if causal else torch.ones_like(key_positions[None], dtype=torch.bool)
    visible = past[None, None]
    if padding is not None:
        visible = visible & ~padding[:, None, None, :]
    return visible


def masked_softmax(scores: Tensor, visible: Tensor) -> Tensor:
    """Softmax over the last dimension of the visible entries; rows that see nothing become zeros.

    Computed in at least float32 and returned in the dtype of `scores`.
    """
    blind = ~visible.any(-1, keepdim=True)
    # A blind row keeps its scores until after the softmax: -inf everywhere would make NaN, also in gradients.
    scores = scores.masked_fill(~(visible | blind), -torch.inf)
    precision = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.softmax(-1, dtype=precision).to(scores.dtype)
    # On a CPU this check costs less than writing the weights again; on a GPU it would wait for the device.
    if blind.device.type == "cpu" and not torch.compiler.is_compiling() and not blind.any():
        return weights
    return weights.masked_fill(blind, 0)


def zero_padding(tensor: Tensor, padding: Tensor | None) -> Tensor:
    """`tensor` `(batch, heads, seq_len, ...)` with the padded positions set to zero."""
    return tensor if padding is None else tensor.masked_fill(padding[:, None, :, None], 0)


def zero_hidden_(weights: Tensor, visible: Tensor | None) -> Tensor:
    """`weights` with zeros, in place, where the last keys are not `visible`; the keys before those are all visible."""
    if visible is not None:
        weights[..., weights.shape[-1] - visible.shape[-1] :].masked_fill_(~visible, 0)
    return weights


def power_(x: Tensor, degree: int) -> Tensor:
    """`x^degree` in place, by squaring as long as the degree is even."""
    while degree % 2 == 0:
        x, degree = x.square_(), degree // 2
    return x if degree == 1 else x.pow_(degree)


def largest_magnitude(x: Tensor) -> Tensor:
    """The largest absolute value of each row, a constant for gradients."""
    # Twenty times as fast as aminmax on a CPU.
    return torch.maximum(x.detach().amax(-1, keepdim=True), -x.detach().amin(-1, keepdim=True))


def denominator(total: Tensor, bias: float | Tensor) -> Tensor:
    """`total + bias`, 1 where that is zero."""
    biased = total + bias
    return biased.masked_fill_(biased == 0, 1)


def normalise_by_sum(weights: Tensor, bias: float | Tensor) -> Tensor:
    """`weights / (bias + row sum)`; a row whose denominator is zero becomes zeros."""
    return weights / denominator(weights.sum(-1, keepdim=True), bias)
