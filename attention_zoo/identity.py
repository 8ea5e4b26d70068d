"""Identity: attention to no other token, to see what a model learns without attention."""

import torch
from torch import Tensor

from attention_zoo.base import Attention
from attention_zoo.info import ALL_DTYPES, AttentionInfo
from attention_zoo.ops.decoding.states import Window
from attention_zoo.ops.masking import zero_padding
from attention_zoo.registry import register


@register
class Identity(Attention):
    """Each token gets its own value, whatever the queries and keys are; padding gets zeros.

    A control that every mechanism should beat: a model with it treats each token by itself.
    """

    info = AttentionInfo(
        name="identity",
        paper="no paper: a control",
        causal=True,
        padding=True,
        complexity="O(n h)",
        decode=True,
        dtypes=ALL_DTYPES,
        reads=("value",),
        control=True,
    )

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        return zero_padding(value.clone(), padding)

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        own = positions[:, None] == torch.arange(key.shape[2], device=key.device)
        return (visible & own).to(query.dtype).expand(*query.shape[:3], -1).contiguous()

    def _new_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> Window:
        return Window(batch_size, self.num_heads, self.head_dim, device, dtype, block_size=1, sliding=False)

    def _read(self, state: Window, query: Tensor) -> Tensor:
        return zero_padding(state.values.clone(), ~state.visible)

    def _flops(self, seq_len: int) -> int:
        """Zero: values are only copied."""
        return 0
