"""Attention of blocks and their neighbours by the package local-attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_zoo.base import AttentionInfo, blocks_and_a_part, register
from attention_zoo.checks import check_int
from attention_zoo.lucidrains.peer import Peer, hidden_by
from attention_zoo.ops.masking import masked_softmax


@register
class LucidrainsLocal(Peer):
    """Softmax over the query's own block of keys and its neighbours, by local-attention, without rotary embeddings.

    The zoo has no mechanism of its own like it. The nearest is `bigbird` without random blocks: its queries see five
    blocks, the first and the last among them, as many as here with `neighbours=2`; those of its first and last block
    see everything besides.

    Args:
        block_size: w, the package's `window_size`. A last block that is shorter is filled up with hidden zeros.
        neighbours: blocks seen on each side of the own, before it only if causal: `look_backward`, `look_forward`.
    """

    info = AttentionInfo(
        name="lucidrains_local",
        paper="Beltagy et al. 2020 (Longformer), section 3.1, as blocks",
        approximates="softmax",
        causal=True,
        padding=True,
        cross=False,
        random=False,
        complexity="O(n w h)",
        package="local-attention",
        implementations=("reference", "fused"),
    )
    source = "local_attention.LocalAttention"

    def __init__(self, *, block_size: int = 64, neighbours: int = 1, **common: Any) -> None:
        super().__init__(**common)
        self.block_size = check_int("block_size", block_size)
        self.neighbours = check_int("neighbours", neighbours)
        after = 0 if self.causal else neighbours
        self.layer = self._make_layer(
            window_size=block_size, causal=self.causal, look_backward=neighbours, look_forward=after, autopad=True
        )

    def _run_layer(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        if padding is None and query.shape[2] % self.block_size == 0:
            return self.layer(query, key, value)
        out = self.layer(query, key, value, mask=~hidden_by(padding, query))
        # A row that sees no key is the mean of everything, the future included.
        return out if padding is None else out.masked_fill(self._sees_padding_only(padding)[:, None, :, None], 0)

    def _sees_padding_only(self, padding: Tensor) -> Tensor:
        """`(batch, n)`."""
        n, w = padding.shape[1], self.block_size
        position = torch.arange(n, device=padding.device)
        first = (position // w - self.neighbours).clamp_min(0) * w
        end = position + 1 if self.causal else ((position // w + self.neighbours + 1) * w).clamp_max(n)
        before = F.pad((~padding).cumsum(1), (1, 0))
        return before[:, first] == before[:, end]

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        block = torch.arange(key.shape[2], device=key.device) // self.block_size
        near = (block[positions, None] - block).abs() <= self.neighbours
        return masked_softmax(query @ key.mT * self.head_dim**-0.5, visible & near)

    @property
    def telling_length(self) -> int:
        """Two blocks more than a query sees."""
        return blocks_and_a_part(self.block_size, 2 * self.neighbours + 3)

    def _flops(self, seq_len: int) -> int:
        """Scores and weighted values, of blocks beyond either end too."""
        w = self.block_size
        blocks = 1 + self.neighbours * (1 if self.causal else 2)
        return 4 * (seq_len + -seq_len % w) * blocks * w * self.head_dim
