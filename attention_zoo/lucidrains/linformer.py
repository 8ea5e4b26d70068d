"""Linformer by the package linformer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attention_zoo.base import AttentionInfo, blocks_and_a_part, register
from attention_zoo.checks import check_int
from attention_zoo.lucidrains.peer import Handed, Peer, Take
from attention_zoo.ops.draws import normal


@register
class LucidrainsLinformer(Peer):
    """`softmax(Q (E K)^T / sqrt(h)) (F V)` by linformer: `linformer`, the same numbers for a seed and the same work.

    E and F start as ours do, not uniform as in the package. Heads are given to it as batch items, which takes no
    copies. It takes no mask.

    Args:
        projection_dim: rows of E and F.

    Raises:
        ValueError: `max_seq_len` is None.
    """

    info = AttentionInfo(
        name="lucidrains_linformer",
        paper="Wang et al. 2020, section 4, equation 7",
        approximates="softmax",
        causal=False,
        padding=False,
        cross=True,
        random=True,
        complexity="O(n k h)",
        size="projection_dim",
        package="linformer",
        implementations=("reference", "fused"),
    )
    source = "linformer.LinformerSelfAttention"

    def __init__(self, *, projection_dim: int = 256, **common: Any) -> None:
        super().__init__(**common)
        n, h = self.max_seq_len, self.head_dim
        if n is None:
            raise ValueError("max_seq_len=None: must be an integer of at least 1, the columns of linformer's E")
        self.projection_dim = check_int("projection_dim", projection_dim)
        self.layer = self._make_layer(dim=h, seq_len=n, k=projection_dim, heads=1)
        self.layer.to_q, self.layer.to_k, self.layer.to_v = Take("query"), Take("key"), Take("value")
        self.layer.to_out = nn.Identity()
        self._draw()

    @torch.no_grad()
    def _draw(self) -> None:
        generator, k = self._generator(), self.projection_dim
        for projection in (self.layer.proj_k, self.layer.proj_v):
            projection.copy_(normal(projection.mT.shape, generator).mT * k**-0.5)

    def _run_layer(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        queries, keys, values = (x.flatten(0, 1) for x in (query, key, value))
        return self.layer(Handed(queries, keys, values), context=Handed(keys, keys, values)).view_as(query)

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        n = key.shape[2]
        scores = query @ (self.layer.proj_k[:n].mT @ key).mT * self.head_dim**-0.5
        return scores.softmax(-1) @ self.layer.proj_v[:n].mT

    @property
    def telling_length(self) -> int:
        """Twice the projected keys, and more."""
        return blocks_and_a_part(self.projection_dim, 2)

    def _flops(self, seq_len: int) -> int:
        """`E K`, `F V`, scores and weighted values."""
        return 8 * seq_len * self.projection_dim * self.head_dim
