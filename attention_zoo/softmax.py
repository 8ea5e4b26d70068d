"""Softmax attention: Vaswani et al. 2017, Attention Is All You Need, section 3.2.1, equation 1."""

from typing import Any

import torch
from torch import Tensor

from attention_zoo.checks import check_float
from attention_zoo.dense import DenseAttention
from attention_zoo.info import ALL_DTYPES, AttentionInfo
from attention_zoo.ops.decoding.states import KeyValueCache
from attention_zoo.ops.masking import masked_softmax, visible_keys
from attention_zoo.ops.operators import product_dtype
from attention_zoo.registry import register


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
        exact=True,
        complexity="O(n^2 h)",
        decode=True,
        dtypes=ALL_DTYPES,
    )

    def __init__(self, *, scale: float | None = None, dropout: float = 0.0, **common: Any) -> None:
        super().__init__(dropout=dropout, **common)
        self.scale = self.head_dim**-0.5 if scale is None else check_float("scale", scale, above=0)

    def _weights(self, query: Tensor, key: Tensor, visible: Tensor) -> Tensor:
        dtype = product_dtype(query)
        if dtype != torch.float16:
            return masked_softmax((query * self.scale) @ key.transpose(-1, -2), visible)
        # Scores may exceed float16's largest number; weights do not.
        with torch.autocast(query.device.type, enabled=False):
            scores = (query.float() * self.scale) @ key.float().transpose(-1, -2)
            return masked_softmax(scores, visible).to(dtype)

    def attend_visible(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        """The output for queries that see any set of keys: `visible` is bool, `(batch, 1, queries, keys)`."""
        return self._drop(self._weights(query, key, visible)) @ value


class KernelSoftmax(Softmax):
    """Softmax attention by the kernel that the mechanism is named after: inputs that it does not take are refused."""

    is_kernel = True

    def _kernel(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
    ) -> tuple[Tensor, str]:
        """The output, and the name of the kernel.

        Args:
            query: `(batch, heads, queries, head_dim)`.
            key: `(batch, heads, keys, head_dim)`; so is `value`.
            mask: bool `(batch, 1, 1 or queries, keys)`, True where visible, at least once in every row; None is all.
            is_causal: hide the future; never given with a mask.
        """
        raise NotImplementedError

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        query, key, value = contiguous_heads(query, key, value)
        if padding is None:
            return self._kernel(query, key, value, None, self.causal)
        visible = visible_keys(query.shape[2], key.shape[2], self.causal, padding, query.device)
        return self._masked(query, key, value, visible)

    def attend_visible(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        """As in `Softmax`, by the kernel, unless `impl=reference`."""
        if self.impl == "reference":
            return super().attend_visible(query, key, value, visible)
        query, key, value = contiguous_heads(query, key, value)
        return self._masked(query, key, value, visible)[0]

    def _masked(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> tuple[Tensor, str]:
        # The kernels return NaN for a row that sees nothing: let it see everything, then set it to zero.
        blind = ~visible.any(-1, keepdim=True)
        out, backend = self._kernel(query, key, value, visible | blind, False)
        return out.masked_fill(blind, 0), backend

    def _fused_read(self, state: KeyValueCache, query: Tensor) -> tuple[Tensor, str]:
        (query,) = contiguous_heads(query)
        if query.shape[2] == 1 and not state.has_padding:
            return self._kernel(query, state.keys, state.values, None, False)
        return self._masked(query, state.keys, state.values, state.visible_to(query.shape[2]))


def contiguous_heads(*tensors: Tensor) -> tuple[Tensor, ...]:
    """`(..., head_dim)` with the values of a head side by side, copied where they are not.

    A kernel refuses other layouts, or PyTorch computes the n x n matrix in its place without saying so.
    """
    return tuple(x if x.stride(-1) == 1 else x.contiguous() for x in tensors)
