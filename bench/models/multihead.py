"""A mechanism between the projections that make its queries, keys and values, and the one that joins its heads."""

from __future__ import annotations

from torch import Tensor, nn

from attention_zoo import Attention
from bench.models.positions import Rotary


class MultiHead(nn.Module):
    """Self-attention of `num_heads * head_dim` wide tokens; one product makes query, key and value.

    Args:
        attention: the mechanism, which says how many heads there are.
        bias: of both projections.
        rotary: turns queries and keys.
    """

    def __init__(self, attention: Attention, *, bias: bool, rotary: Rotary | None = None) -> None:
        super().__init__()
        width = attention.num_heads * attention.head_dim
        self.query_key_value = nn.Linear(width, 3 * width, bias=bias)
        self.rotary = rotary
        self.attention = attention
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, n, width)` -> the same shape."""
        batch, n, width = x.shape
        split = self.query_key_value(x).view(batch, n, 3, self.attention.num_heads, self.attention.head_dim)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        if self.rotary is not None:
            query, key = self.rotary(query), self.rotary(key)
        return self.out(self.attention(query, key, value).transpose(1, 2).reshape(batch, n, width))
