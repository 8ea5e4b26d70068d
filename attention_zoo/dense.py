"""Attention by the n x n matrix of weights, whole and token by token."""

from __future__ import annotations

from torch import Tensor

from attention_zoo.base import Attention
from attention_zoo.ops.decoding import KeyValueCache
from attention_zoo.ops.masking import visible_keys


class DenseAttention(Attention):
    """A mechanism that is `_weights`, the normalised weights of visible keys, times the values."""

    def _weights(self, query: Tensor, key: Tensor, visible: Tensor) -> Tensor:
        """`(batch, heads, queries, keys)` of queries and of keys as `_normed` left them."""
        raise NotImplementedError

    def _normed(self, key: Tensor) -> Tensor:
        """What is done to each key alone, once, before it is cached."""
        return key

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
        """The weights, without dropout; a row sums to S / (bias + S) where the mechanism has a bias, else to 1."""
        visible = visible_keys(query.shape[2], key.shape[2], self.causal, key_padding_mask, query.device)
        return self._weights(query, self._normed(key), visible)

    def _absorb(self, state: KeyValueCache, key: Tensor, value: Tensor, padding: Tensor | None) -> None:
        state.append(self._normed(key), value, padding)

    def _read(self, state: KeyValueCache, query: Tensor) -> Tensor:
        return self._weights(query, state.keys, state.visible) @ state.values

    def flops(self, batch: int, seq_len: int) -> int:
        """Two n x n x h products; both triangles of a causal matrix are computed."""
        return batch * self.num_heads * 4 * seq_len**2 * self.head_dim
