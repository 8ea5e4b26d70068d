"""The encoder that learns to reverse sequences: the thesis, sections 1.2.1 and 5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from attention_zoo import Attention
from bench.models.initial import before_logits
from bench.models.multihead import MultiHead
from bench.models.positions import PositionedEmbedding
from bench.models.registry import EncoderSettings


class Encoder(nn.Module):
    """Post-LN encoder as BERT's, `LN(GELU(linear))` after its blocks, and an unembedding matrix of its own.

    The thesis says neither which positions it adds nor how wide its feed-forward layer is: here they are sinusoidal,
    and four times the model.

    Args:
        attentions: the mechanism of each layer, all of the same heads.
        vocabulary: tokens are 0 to `vocabulary - 1`.
        seq_len: the longest sequence.
    """

    is_causal: ClassVar[bool] = EncoderSettings.is_causal

    def __init__(self, attentions: Sequence[Attention], *, vocabulary: int, seq_len: int) -> None:
        super().__init__()
        width = attentions[0].num_heads * attentions[0].head_dim
        self.embedding = PositionedEmbedding(vocabulary, width, seq_len)
        self.blocks = nn.ModuleList(Block(attention) for attention in attentions)
        self.final = nn.Sequential(nn.Linear(width, width), nn.GELU(), before_logits(nn.LayerNorm(width)))
        self.unembedding = nn.Embedding(vocabulary, width)

    def forward(self, tokens: Tensor, asked: Tensor | None = None) -> Tensor:
        """Logits of what belongs at each position.

        Args:
            tokens: `(batch, n)` int64, n at most `seq_len`.
            asked: `(batch, n)` bool, where logits are wanted; None is everywhere.

        Returns:
            `(batch, n, vocabulary)`, or `(asked, vocabulary)`.

        Raises:
            ValueError: more than `seq_len` tokens.
        """
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.final(x if asked is None else x[asked]), self.unembedding.weight)


class Block(nn.Module):
    """A layer: attention, then a feed-forward layer, each followed by the layer norm of its sum with what it read."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.multihead = MultiHead(attention, bias=True)
        width = self.multihead.out.out_features
        self.attention_norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.feed_forward_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, n, width)` -> the same shape."""
        x = self.attention_norm(x + self.multihead(x))
        return self.feed_forward_norm(x + self.feed_forward(x))
