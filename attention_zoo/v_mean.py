"""V-Mean, attention with uniform weights: Chen et al. 2022 (Skeinformer), section 5 and figure 1."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_zoo.feature_map import FeatureMapAttention
from attention_zoo.info import ALL_DTYPES, AttentionInfo
from attention_zoo.ops.masking import masked_softmax, visible_keys, zero_padding
from attention_zoo.registry import register

# Rows that one GPU thread sums one after the other.
SCAN_BLOCK = 128


def masked_mean(value: Tensor, padding: Tensor | None) -> Tensor:
    """The mean of the values that are not padding, `(batch, heads, 1, head_dim)`; zeros if all are padding.

    Args:
        value: `(batch, heads, seq_len, head_dim)`.
        padding: `(batch, seq_len)` bool, True at padding.
    """
    precision = torch.promote_types(value.dtype, torch.float32)
    visible = visible_keys(1, value.shape[2], False, padding, value.device)
    total = zero_padding(value, padding).sum(2, keepdim=True, dtype=precision)
    return (total / visible.sum(-1, keepdim=True).clamp_min(1)).to(value.dtype)


def cumulative_sum(x: Tensor) -> Tensor:
    """`x.cumsum(2)` of `(batch, heads, seq_len, k)`, in at least float32.

    A GPU scans this dimension with one thread per column, too few to fill it. So there blocks are scanned first, then
    their sums. On a CPU that would be a fifth slower.
    """
    precision = torch.promote_types(x.dtype, torch.float32)
    if x.device.type == "cpu":
        return x.cumsum(2, dtype=precision)
    blocks = F.pad(x, (0, 0, 0, -x.shape[2] % SCAN_BLOCK)).unflatten(2, (-1, SCAN_BLOCK))
    within = blocks.cumsum(3, dtype=precision)
    before = F.pad(within[:, :, :-1, -1:].cumsum(2), (0, 0, 0, 0, 1, 0))
    return (within + before).flatten(2, 3)[:, :, : x.shape[2]]


def cumulative_mean(value: Tensor, padding: Tensor | None) -> Tensor:
    """The mean of the values up to each position, without padding, `(batch, heads, seq_len, head_dim)`."""
    visible = visible_keys(1, value.shape[2], False, padding, value.device)
    # A GPU scans the last dimension in parallel.
    count = visible.cumsum(-1).transpose(-1, -2).clamp_min(1)
    return (cumulative_sum(zero_padding(value, padding)) / count).to(value.dtype)


@register
class VMean(FeatureMapAttention):
    """The mean of the visible values, `(1/n) 1 1^T V`, whatever the queries and keys are.

    A baseline for sampling: softmax attention with Q = 0. If causal, it is the cumulative mean. Its feature is 1.
    """

    info = AttentionInfo(
        name="v_mean",
        paper="Chen et al. 2022 (Skeinformer), section 5, figure 1",
        approximates="softmax",
        causal=True,
        padding=True,
        cross=True,
        complexity="O(n h)",
        decode=True,
        dtypes=ALL_DTYPES,
        reads=("value",),
        control=True,
    )

    num_features = 1

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)

    def features(self, x: Tensor) -> Tensor:
        """Ones, `(batch, heads, seq_len, 1)`."""
        return torch.ones_like(x[..., :1])

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        mean = cumulative_mean if self.causal else masked_mean
        return mean(value, padding).expand_as(query).contiguous()

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        return masked_softmax(query.new_zeros(()), visible).expand(*query.shape[:3], -1).contiguous()

    def _test_blocks(self) -> tuple[int, int]:
        return SCAN_BLOCK, 3

    def _flops(self, seq_len: int) -> int:
        """The sum over V: one addition for each of its entries."""
        return seq_len * self.head_dim
