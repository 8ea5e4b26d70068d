"""Softmax attention: Vaswani et al. 2017, Attention Is All You Need, section 3.2.1, equation 1."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attention_zoo.base import ALL_DTYPES, AttentionInfo, register
from attention_zoo.checks import check_float
from attention_zoo.dense import DenseAttention
from attention_zoo.ops.masking import masked_softmax


@register
class Softmax(DenseAttention):
    """`softmax(scale Q K^T) V` with the n x n matrix in memory: the ground truth of every approximation.

    Args:
        scale: factor of the scores; None is 1/sqrt(head_dim).
        dropout: probability of dropping a weight in training mode.
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
        super().__init__(dropout=dropout, **common)
        self.scale = self.head_dim**-0.5 if scale is None else check_float("scale", scale, above=0)

    def _weights(self, query: Tensor, key: Tensor, visible: Tensor) -> Tensor:
        scores = (query * self.scale) @ key.transpose(-1, -2)
        return masked_softmax(scores, visible)
