"""Softmax attention: Vaswani et al. 2017, Attention Is All You Need, section 3.2.1, equation 1."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_zoo.base import ALL, ALL_DTYPES, AttentionInfo, UnsupportedError, register
from attention_zoo.checks import check_float, require
from attention_zoo.dense import DenseAttention
from attention_zoo.ops.masking import masked_softmax


@register
class Softmax(DenseAttention):
    """`softmax(scale Q K^T) V` with the n x n matrix in memory: the ground truth of every approximation.

    Args:
        scale: factor of the scores; None is 1/sqrt(head_dim).
        dropout: probability of dropping an attention weight in training mode; it draws from the seed, on the CPU.
    """

    info = AttentionInfo(
        name="softmax",
        paper="Vaswani et al. 2017, section 3.2.1, equation 1",
        approximates="softmax",
        causal=True,
        padding=True,
        cross=True,
        random=False,
        exact=True,
        complexity="O(n^2 h)",
        decode=True,
        dtypes=ALL_DTYPES,
    )

    def __init__(self, *, scale: float | None = None, dropout: float = 0.0, **common: Any) -> None:
        super().__init__(**common)
        self.scale = self.head_dim**-0.5 if scale is None else check_float("scale", scale, above=0)
        self.dropout = check_float("dropout", dropout, minimum=0)
        require("dropout", dropout, dropout < 1, "below 1")
        self._draw()

    def _draw(self) -> None:
        self._dropout_generator = self._generator()

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        weights = self._matrix(query, key, value, padding, ALL)
        if self.training and self.dropout > 0:
            retained = torch.rand(weights.shape, generator=self._dropout_generator) >= self.dropout
            weights = weights * retained.to(weights.device, non_blocking=True) / (1 - self.dropout)
        return weights @ value

    def _weights(self, query: Tensor, key: Tensor, visible: Tensor) -> Tensor:
        scores = (query * self.scale) @ key.transpose(-1, -2)
        return masked_softmax(scores, visible)

    def _check_decodes(self) -> None:
        super()._check_decodes()
        if self.training and self.dropout > 0:
            raise UnsupportedError(f"dropout={self.dropout}: {self.info.name} decodes in evaluation mode, call eval()")
