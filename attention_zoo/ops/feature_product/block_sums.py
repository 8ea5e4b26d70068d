"""Sums over blocks of queries or keys: what other blocks read instead of seeing each of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attention_zoo.ops.feature_product.blocks import Block, Inputs, Settings
from attention_zoo.ops.feature_product.feature_maps import add_product, at_least_float32


class Scales(NamedTuple):
    """The scales of a block's rows, relative to the sums before (`query`) and after it (`key`, `decay`).

    They are there in degree 1 only, so that what is beside the features can be scaled, which has fewer columns.
    """

    query: Tensor  # (heads, rows, 1)
    key: Tensor  # (heads, rows, 1)
    decay: Tensor  # (heads, 1, 1)
    largest: Tensor  # (heads, 1), of all rows so far
    intra_block: Tensor | None  # (heads, rows, rows), of each key for each query


class Sums:
    """Of some rows: the sum of their features by what is beside them, and that of the denominators' features.

    Args:
        settings: say what makes features, and how many rows a block has.
        x: vectors that features are made of, `(heads, rows, r)`.
        inputs: whose sequence is summed over.
        total: a sum that is there already, with its `norm`; None is of nothing.
        norm: that of the denominators.
    """

    def __init__(
        self, settings: Settings, x: Tensor, inputs: Inputs, total: Tensor | None = None, norm: Tensor | None = None
    ) -> None:
        self.maps, value = settings.maps(x), inputs.value
        sizes = len(value), self.maps.width, value.shape[2]
        self.total = value.new_zeros(sizes, dtype=at_least_float32(value)) if total is None else total
        self.norm = self.maps.new_norm(x) if norm is None else norm
        longest = max(inputs.query.shape[1], inputs.key.shape[1])
        self._buffer = self.maps.new_buffer(x, min(settings.block_size, longest))

    def add(self, x: Tensor, beside: Tensor, *, doubled: bool, weights: Tensor | None = None) -> None:
        """Add rows; `weights` `(heads, rows, 1)` are those in the denominators."""
        add_product(self.total, self.maps.expand(x, self._buffer, doubled=doubled), beside)
        self.maps.add_norm(self.norm, x, None if weights is None else weights.to(x.dtype))

    def advance(self, x: Tensor, beside: Tensor, scales: Scales | None) -> None:
        """Add a block of keys."""
        if scales is not None:
            self.decay(scales.decay)
        scale = scales and scales.key
        self.add(x, scaled(beside, scale), doubled=True, weights=scale)

    def decay(self, factor: Tensor) -> None:
        """Let what was added count less."""
        self.total.mul_(factor)
        self.norm.mul_(factor)

    def read(self, x: Tensor, *, doubled: bool) -> Tensor:
        """`(heads, rows, h)`."""
        return self.maps.expand(x, self._buffer, doubled=doubled).mT @ self.total.to(x.dtype)

    def read_norm(self, x: Tensor) -> Tensor:
        """`(heads, rows, 1)`."""
        return self.maps.read_norm(self.norm, x)

    def pull(self, out: Tensor, x: Tensor, grad: Tensor, *, doubled: bool, weights: Tensor | None) -> None:
        """Write the gradient of x from `sum_i <grad_i, read_i> + weights_i read_norm_i`."""
        self.maps.pull_back(out, x, self.total.to(x.dtype), grad, doubled=doubled)
        self.maps.pull_norm(out, self.norm, x, weights)


def next_scales(log_scale: Tensor | None, before: Scales | None) -> Scales | None:
    """Those of the next block of keys, from their log scales `(heads, rows)`; None where there are none."""
    if log_scale is None:
        return None
    largest = log_scale[:, :1] if before is None else before.largest
    running = torch.maximum(log_scale.cummax(-1).values, largest)
    after = running[:, -1:]
    # The exponents of the future are positive and would overflow before the triangle hides them.
    intra_block = (log_scale[:, None] - running[..., None]).clamp_(max=0).exp_()
    query, key = (largest - running).exp()[..., None], (log_scale - after).exp()[..., None]
    return Scales(query, key, (largest - after).exp()[..., None], after, intra_block)


def scales_inside_block(log_scale: Tensor | None, causal: bool) -> Tensor | None:
    """Of each key for each query where all are in one block, broadcastable to `(heads, queries, keys)`."""
    if causal or log_scale is None:
        scales = next_scales(log_scale, None)
        return scales and scales.intra_block
    return (log_scale - log_scale.amax(-1, keepdim=True)).exp()[:, None]


def scaled(x: Tensor, scale: Tensor | None) -> Tensor:
    """`x * scale` in the dtype of x."""
    return x if scale is None else x * scale.to(x.dtype)


def visible(weights: Tensor, intra_block: Tensor | None, causal: bool) -> Tensor:
    """Weights of a block, scaled and without those of the future, in place."""
    weights = weights if intra_block is None else weights.mul_(intra_block.to(weights.dtype))
    return weights.tril_() if causal else weights


def denominator(total: Tensor, bias: float) -> Tensor:
    """`total + bias`, 1 where that is zero."""
    biased = total + bias
    return biased.masked_fill_(biased == 0, 1)


def relative(log_scale: Tensor | None, largest: Tensor | None) -> Tensor | None:
    """The scale of each row `(heads, rows, 1)` relative to the largest, `(heads, 1)`."""
    return None if log_scale is None or largest is None else (log_scale - largest).exp_()[..., None]


def weight_factors(settings: Settings, inputs: Inputs, left: Block, right: Block) -> tuple[Tensor, Tensor, int]:
    """Whose products, to which degree, are the weights inside a block: the features', or exact ones."""
    if inputs.local_query is None or inputs.local_key is None:
        return left.features, right.features, settings.degree
    return inputs.local_query[:, left.rows], inputs.local_key[:, right.rows], settings.local_degree
