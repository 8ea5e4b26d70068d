"""Controls of a mechanism with a local window: the window by itself, and no other token at all.

In PolySketchFormer (ICML version), section 3.2, a token has the exact weights of its own block and a sketch of the
blocks before. What a model learns with it is the sketch's only as far as it is more than a model learns with these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attention_zoo import Attention, AttentionInfo, register
from attention_zoo.checks import check_int
from attention_zoo.dense import DenseAttention
from attention_zoo.info import ALL_DTYPES
from attention_zoo.ops.masking import zero_padding
from attention_zoo.polynomial import Polynomial
from attention_zoo.softmax import Softmax

CONTROL = AttentionInfo(
    name="control",
    paper="Kacham, Mirrokni, Zhong 2024 (PolySketchFormer, ICML), a control of section 3.2",
    causal=True,
    padding=True,
    complexity="O(n^2 h)",
)


class OwnBlock(DenseAttention):
    """A dense mechanism of which a token sees its own block of `block_size` tokens and nothing else."""

    def __init__(self, *, block_size: int, **common: Any) -> None:
        super().__init__(**common)
        self.block_size = check_int("block_size", block_size)

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        block = torch.arange(key.shape[2], device=key.device) // self.block_size
        return super()._rows(query, key, visible & (block[positions, None] == block), positions)

    def _test_blocks(self) -> tuple[int, int]:
        return self.block_size, 3


@register
class LocalSoftmax(OwnBlock, Softmax):
    """Softmax inside a token's own block.

    Args:
        block_size: tokens of a block; the first begins with the sequence, the last may be shorter.
    """

    info = replace(CONTROL, name="local_softmax", dtypes=ALL_DTYPES)

    def __init__(self, *, block_size: int = 64, **common: Any) -> None:
        super().__init__(block_size=block_size, **common)


@register
class LocalPolynomial(OwnBlock, Polynomial):
    """Polynomial attention inside a token's own block: `polysketch` with `local` and `sketch=learned`, less the sketch.

    As there, queries and keys have a layer norm each.

    Args:
        block_size: tokens of a block; the first begins with the sequence, the last may be shorter.
        degree: p, even.
        scale: c in `(c <q, k>)^p`.
        bias: added to the sum of a row.
    """

    info = replace(CONTROL, name="local_polynomial")

    def __init__(
        self, *, block_size: int = 64, degree: int = 4, scale: float = 1.0, bias: float = 1.0, **common: Any
    ) -> None:
        super().__init__(block_size=block_size, degree=degree, scale=scale, bias=bias, **common)
        self.query_norm = nn.LayerNorm(self.head_dim)

    def _prepared(self, query: Tensor) -> Tensor:
        return self.scale * self.query_norm(query)


@register
class NoOtherToken(Attention):
    """Each token gets its own value."""

    info = replace(CONTROL, name="no_other_token", complexity="O(n h)", dtypes=ALL_DTYPES)

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        return zero_padding(value + 0, padding)

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        own = positions[:, None] == torch.arange(key.shape[2], device=key.device)
        return (visible & own).to(query.dtype).expand(*query.shape[:3], -1)

    def _flops(self, seq_len: int) -> int:
        """None of its own: values are passed on."""
        return 0
