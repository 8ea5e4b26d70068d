"""Polynomial attention: PolySketchFormer (ICML version), section 2.1: weights `<q, k>^p / (1 + sum <q, k'>^p)`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attention_zoo.base import Attention, AttentionInfo, register
from attention_zoo.checks import check_bool, check_float, check_int, require
from attention_zoo.ops.decoding import KeyValueCache
from attention_zoo.ops.masking import normalise_by_sum, visible_keys


@register
class Polynomial(Attention):
    """Exact polynomial attention with the n x n matrix in memory.

    The official code applies rotary embeddings before this layer norm, which makes the scores depend on absolute
    positions; where the norm goes is the model's choice, this class norms what it is given.

    Args:
        degree: p, even, so that weights are not negative.
        qk_layernorm: one affine LayerNorm over head_dim, shared by queries, keys and heads.
        scale: c in `(c <q, k>)^p`.
        bias: added to the sum of a row; `scale = s, bias = s^p` is the same function as `scale = 1, bias = 1`.
    """

    info = AttentionInfo(
        name="polynomial",
        paper="Kacham, Mirrokni, Zhong 2024 (PolySketchFormer, ICML), section 2.1",
        approximates="polynomial",
        causal=True,
        padding=True,
        cross=True,
        random=False,
        complexity="O(n^2 h)",
        decode=True,
    )

    def __init__(
        self,
        *,
        degree: int = 4,
        qk_layernorm: bool = True,
        scale: float = 1.0,
        bias: float = 1.0,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.degree = check_int("degree", degree, 2)
        require("degree", degree, degree % 2 == 0, "even, so that weights are not negative")
        self.scale = check_float("scale", scale, above=0)
        self.bias = check_float("bias", bias, minimum=0)
        self.layernorm = nn.LayerNorm(self.head_dim) if check_bool("qk_layernorm", qk_layernorm) else nn.Identity()

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        return self.attention_matrix(query, key, padding) @ value

    def attention_matrix(
        self,
        query: Tensor,
        key: Tensor,
        key_padding_mask: Tensor | None = None,
        *,
        value: Tensor | None = None,
    ) -> Tensor:
        """The normalised weights; a row sums to S / (bias + S)."""
        visible = visible_keys(query.shape[2], key.shape[2], self.causal, key_padding_mask, query.device)
        return self._weights(query, self.layernorm(key), visible)

    def _weights(self, query: Tensor, normed_key: Tensor, visible: Tensor) -> Tensor:
        scores = (self.scale * self.layernorm(query)) @ normed_key.transpose(-1, -2)
        # In place: fresh n x n memory costs more than the arithmetic.
        scores.masked_fill_(~visible, 0)
        # High powers overflow or vanish; those of a row relative to its largest score, or to the bias, do not.
        root = self.bias ** (1 / self.degree)
        largest = torch.linalg.vector_norm(scores.detach(), torch.inf, dim=-1, keepdim=True)
        unit = largest.clamp_min(max(root, torch.finfo(scores.dtype).tiny))
        return normalise_by_sum(scores.div_(unit) ** self.degree, (root / unit) ** self.degree)

    def _absorb(self, state: KeyValueCache, key: Tensor, value: Tensor, padding: Tensor | None) -> None:
        state.append(self.layernorm(key), value, padding)

    def _read(self, state: KeyValueCache, query: Tensor) -> Tensor:
        return self._weights(query, state.keys, state.visible) @ state.values

    def flops(self, batch: int, seq_len: int) -> int:
        """Two n x n x h products; the reference computes both triangles of a causal matrix."""
        return batch * self.num_heads * 4 * seq_len**2 * self.head_dim
