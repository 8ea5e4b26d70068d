"""The gradients of `block_product`: features are computed again, block by block, and pulled back where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attention_zoo.ops.feature_product.blocks import (
    Block,
    Chunk,
    Inputs,
    Settings,
    Sums,
    relative,
    scales_inside_block,
    weight_factors,
)
from attention_zoo.ops.feature_product.reference import Scales, next_scales, scaled, visible
from attention_zoo.ops.masking import power_


class _BlockResiduals(NamedTuple):
    """What is computed with the queries of a causal block and read with its keys."""

    scales: Scales | None
    to_keys: Tensor  # from the weights inside the block to the keys' features


class Gradients:
    """Of the inputs, filled block by block from those of the sums of values and of the denominators.

    Args:
        settings: those of the forward pass.
        inputs: likewise.
        grad: of the sums of values, `(heads, queries, h)`.
        d_total: of the denominators, `(heads, queries, 1)`.
    """

    def __init__(self, settings: Settings, inputs: Inputs, grad: Tensor, d_total: Tensor) -> None:
        self.settings, self.inputs, self.grad, self.d_total = settings, inputs, grad, d_total
        self.query, self.key, self.value = (torch.empty_like(x) for x in inputs[:3])
        self.local_query, self.local_key = (None if x is None else torch.empty_like(x) for x in inputs[3:5])
        self.parameters = [torch.zeros_like(p) if p.requires_grad else None for p in inputs.parameters]

    @property
    def all(self) -> tuple[Tensor | None, ...]:
        """In the order of the inputs."""
        return self.query, self.key, self.value, self.local_query, self.local_key, None, *self.parameters

    def of_quadratic(self) -> None:
        """Every weight is computed; there is one block."""
        rows_of = [slice(0, x.shape[1]) for x in self.inputs[:2]]
        queries = Chunk(self.settings, self.inputs, rows_of[0], keys=False, with_pull=True)
        keys = Chunk(self.settings, self.inputs, rows_of[1], keys=True, with_pull=True)
        (left,), (right,) = queries.blocks(), keys.blocks()
        to_left, to_right = self._intra_block(left, right, scales_inside_block(right.log_scale, self.settings.causal))
        left.grad[:], right.grad[:] = to_left, to_right
        self._pull(queries, self.query)
        self._pull(keys, self.key)

    def of_full(self, residuals: Sequence[Tensor | None]) -> None:
        """Every query sees every key: `residuals` are the sums and norms of the keys, their largest log scale."""
        of_queries = self._of_full_queries(*residuals[:2])
        for rows in self.settings.chunks(self.inputs.key):
            chunk = Chunk(self.settings, self.inputs, rows, keys=True, with_pull=True)
            for block in chunk.blocks():
                scale = relative(block.log_scale, residuals[2])
                self.value[:, block.rows] = self._from_queries(of_queries, block, scale)
            self._pull(chunk, self.key)

    def of_causal(self) -> None:
        """Queries see the keys up to their own."""
        residuals, of_queries = self._of_causal_queries(), None
        for rows in reversed(self.settings.chunks(self.inputs.key)):
            queries = Chunk(self.settings, self.inputs, rows, keys=False)
            chunk = Chunk(self.settings, self.inputs, rows, keys=True, with_pull=True)
            for left, right in zip(reversed(queries.blocks()), reversed(chunk.blocks()), strict=True):
                of_queries = self._causal_keys(left, right, residuals.pop(), of_queries)
            self._pull(chunk, self.key)

    def _of_full_queries(self, total: Tensor | None, norm: Tensor | None) -> Sums | None:
        of_keys, of_queries = None, None
        for rows in self.settings.chunks(self.inputs.query):
            chunk = Chunk(self.settings, self.inputs, rows, keys=False, with_pull=True)
            for block in chunk.blocks():
                if of_keys is None or of_queries is None:
                    of_keys = Sums(self.settings, block.features, self.inputs, total, norm)
                    of_queries = Sums(self.settings, block.features, self.inputs)
                self._from_keys(of_keys, block, None)
                grad, weights = self._upstream(block, None)
                of_queries.add(block.features, grad, doubled=False, weights=weights)
            self._pull(chunk, self.query)
        return of_queries

    def _of_causal_queries(self) -> list[_BlockResiduals]:
        sums, scales = None, None
        residuals: list[_BlockResiduals] = []
        for rows in self.settings.chunks(self.inputs.query):
            chunk = Chunk(self.settings, self.inputs, rows, keys=False, with_pull=True)
            keys = Chunk(self.settings, self.inputs, rows, keys=True)
            for left, right in zip(chunk.blocks(), keys.blocks(), strict=True):
                scales = next_scales(right.log_scale, scales)
                to_left, to_right = self._intra_block(left, right, scales and scales.intra_block)
                residuals.append(_BlockResiduals(scales and scales._replace(intra_block=None), to_right))
                if sums is None:
                    sums = Sums(self.settings, right.features, self.inputs)
                    left.grad.copy_(to_left)
                else:
                    self._from_keys(sums, left, scales and scales.query)
                    left.grad.add_(to_left)
                if left.rows.stop < self.inputs.query.shape[1]:
                    sums.advance(right.features, self.inputs.value[:, left.rows], scales)
            self._pull(chunk, self.query)
        return residuals

    def _causal_keys(
        self, left: Block, right: Block, residuals: _BlockResiduals, of_queries: Sums | None
    ) -> Sums | None:
        """Let a block of keys see the queries after it, and add its own queries for the keys before."""
        scales, rows = residuals.scales, left.rows
        if of_queries is None:
            right.grad.copy_(residuals.to_keys)
        else:
            self.value[:, rows] += self._from_queries(of_queries, right, scales and scales.key)
            right.grad.add_(residuals.to_keys)
            if scales is not None:
                of_queries.decay(scales.decay)
        if not rows.start:
            return None
        of_queries = Sums(self.settings, left.features, self.inputs) if of_queries is None else of_queries
        grad, weights = self._upstream(left, scales and scales.query)
        of_queries.add(left.features, grad, doubled=False, weights=weights)
        return of_queries

    def _intra_block(self, left: Block, right: Block, intra_block: Tensor | None) -> tuple[Tensor, Tensor]:
        """From the weights inside a block to values, and to what makes the weights: zero where features do not."""
        queries, keys, degree = weight_factors(self.settings, self.inputs, left, right)
        scores, grad, causal = queries @ keys.mT, self.grad[:, left.rows], self.settings.causal
        self.value[:, right.rows] = visible(power_(scores.clone(), degree), intra_block, causal).mT @ grad
        d_weights = grad @ self.inputs.value[:, right.rows].mT + self.d_total[:, left.rows].to(grad.dtype)
        slope = degree * power_(scores, degree - 1) if degree > 1 else 1
        d_scores = visible(d_weights * slope, intra_block, causal)
        to_queries, to_keys = d_scores @ keys, d_scores.mT @ queries
        if self.local_query is None or self.local_key is None:
            return to_queries, to_keys
        self.local_query[:, left.rows], self.local_key[:, right.rows] = to_queries, to_keys
        return grad.new_zeros(()), grad.new_zeros(())

    def _from_keys(self, of_keys: Sums, left: Block, scale: Tensor | None) -> None:
        """From sums over keys to the features of queries."""
        grad, weights = self._upstream(left, scale)
        of_keys.pull(left.grad, left.features, grad, doubled=False, weights=weights)

    def _upstream(self, left: Block, scale: Tensor | None) -> tuple[Tensor, Tensor]:
        """The gradients of what a block of queries reads: of the sums of values, and of the denominators."""
        return scaled(self.grad[:, left.rows], scale), scaled(self.d_total[:, left.rows], scale)

    def _from_queries(self, of_queries: Sums | None, right: Block, scale: Tensor | None) -> Tensor:
        """From sums over queries to the features of keys, and, returned, to their values."""
        assert of_queries is not None
        values = scaled(self.inputs.value[:, right.rows], scale)
        of_queries.pull(right.grad, right.features, values, doubled=True, weights=scale)
        return scaled(of_queries.read(right.features, doubled=True), scale)

    def _pull(self, chunk: Chunk, whole: Tensor) -> None:
        """From a chunk's features to its rows of `whole`, and to the parameters."""
        whole[:, chunk.rows], *of_parameters = chunk.pull()
        for total, part in zip((p for p in self.parameters if p is not None), of_parameters, strict=True):
            total += part
