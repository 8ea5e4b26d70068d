"""What the models are put together from, and the weights that they begin with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attention_zoo import Attention
from bench.models.positions import PositionedEmbedding, Rotary

LOGIT_STD = 0.2
"""Of an untrained model: its loss begins at the logarithm of the vocabulary."""


class Model(nn.Module):
    """Embedded tokens, blocks of layers, and logits; what blocks and logits are, a subclass says.

    Args:
        attentions: the mechanism of each layer, all of the same heads.
        blocks: the layers.
        vocabulary: tokens are 0 to `vocabulary - 1`.
        seq_len: the longest sequence.
        activation_checkpointing: compute each block again in the backward pass instead of keeping it.
    """

    def __init__(
        self,
        attentions: Sequence[Attention],
        blocks: Sequence[nn.Module],
        *,
        vocabulary: int,
        seq_len: int,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.activation_checkpointing = activation_checkpointing
        self.width = attentions[0].num_heads * attentions[0].head_dim
        self.embedding = PositionedEmbedding(vocabulary, self.width, seq_len)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, tokens: Tensor, asked: Tensor | None = None) -> Tensor:
        """Logits at each position.

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
            x = checkpoint(block, x, use_reentrant=False) if self.activation_checkpointing else block(x)
        return self.logits(x if asked is None else x[asked])

    def logits(self, x: Tensor) -> Tensor:
        """`(..., width)`, what the blocks gave -> `(..., vocabulary)`."""
        raise NotImplementedError


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


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Draw the weights of a model; its mechanisms have drawn their own, and norms stay as they are.

    As in the official code (flax's Dense and Embed): linear layers are LeCun normal without bias, embeddings have
    standard deviation 1/sqrt(width). Smaller ones, such as GPT-2's 0.02, drown in the positions that are added: two
    layers of width 64 then needed more than 800 steps instead of 200 to 300 to learn induction heads.
    """
    if isinstance(module, Attention):
        return
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5, generator=generator)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5, generator=generator)
    for child in module.children():
        initialise(child, generator)


def before_logits(norm: nn.LayerNorm) -> nn.LayerNorm:
    """The norm whose output meets the embeddings, so scaled that logits begin with `LOGIT_STD`."""
    nn.init.constant_(norm.weight, LOGIT_STD)
    return norm
