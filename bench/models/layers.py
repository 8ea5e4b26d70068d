"""The parts that models share, such as positions and multi-head attention, and the initialisation of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attention_zoo import Attention
from attention_zoo.checks import require
from bench.common.errors import ConfigError

LOGIT_STD = 0.2
"""Standard deviation of an untrained model's logits: its loss begins at the logarithm of the vocabulary."""
THETA = 10000.0


@dataclass
class Settings:
    """The settings `model.*` of a cell, each a `setting` with a default."""

    name: ClassVar[str]
    is_causal: ClassVar[bool]
    classifies: ClassVar[bool] = False
    """Whether it predicts the class of an example; False: it predicts tokens."""
    has_attention: ClassVar[bool] = True
    """False for a control without attention, which is used with the mechanism `identity`."""
    layers: int

    def require_answers(self, classes: int | None) -> None:
        """Refuse a task whose kind of answers (this many classes; None: tokens) the model does not predict.

        Raises:
            ConfigError: names the model and what it needs.
        """
        if self.classifies != (classes is not None):
            what = "classes" if self.classifies else "tokens"
            raise ConfigError(f"model.name={self.name}: must have a task whose answers are {what}")

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Refuse a resolved configuration whose sizes, mask or mechanism do not fit the model.

        Raises:
            ConfigError: names the key, its value and what is allowed.
        """
        heads, width = config["num_heads"], config["num_heads"] * config["head_dim"]
        mechanism, pretrain = config["attention"]["name"], config.get("training", {}).get("pretrain_steps")
        if config["causal"] != self.is_causal:
            value, allowed = (str(flag).lower() for flag in (config["causal"], self.is_causal))
            raise ConfigError(f"causal={value}: must be {allowed} with model.name={self.name}")
        if not self.has_attention and mechanism != "identity":
            raise ConfigError(f"attention={mechanism}: must be identity with model.name={self.name}, which has none")
        if pretrain and not self.classifies:
            classes = "a classifier names hidden tokens first (task=listops, text, retrieval, image or pathfinder)"
            why = f"its answers are tokens anyway; {classes}"
            raise ConfigError(f"training.pretrain_steps={pretrain}: must be 0 with model.name={self.name}, {why}")
        if width % 2 and not self.classifies:
            raise ConfigError(f"num_heads={heads}: num_heads * head_dim={width} must be even, sines and cosines")


class Model(nn.Module):
    """Embedded tokens, optional sinusoidal positions, blocks of layers, and logits, which a subclass defines.

    Args:
        attentions: the mechanism of each layer, all with the same heads.
        blocks: the layers.
        vocabulary: tokens are 0 to `vocabulary - 1`.
        seq_len: the longest sequence.
        activation_checkpointing: recompute each block in the backward pass instead of storing its activations.
        sinusoidal: add sinusoidal positions to the token embeddings.
    """

    positions: Tensor | None

    def __init__(
        self,
        attentions: Sequence[Attention],
        blocks: Sequence[nn.Module],
        *,
        vocabulary: int,
        seq_len: int,
        activation_checkpointing: bool = False,
        sinusoidal: bool = True,
    ) -> None:
        super().__init__()
        self.activation_checkpointing = activation_checkpointing
        self.width = attentions[0].num_heads * attentions[0].head_dim
        self.embedding = nn.Embedding(vocabulary, self.width)
        self.seq_len = seq_len
        positions = sinusoids(seq_len, self.width) if sinusoidal else None
        self.register_buffer("positions", positions, persistent=False)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, tokens: Tensor, asked: Tensor | None = None) -> Tensor:
        """Logits `(batch, n, vocabulary)` at each position of tokens `(batch, n)`, int64.

        With `asked`, `(batch, n)` bool, only those where it is true, `(asked, vocabulary)`. Raises `ValueError` for
        more than `seq_len` tokens.
        """
        n = tokens.shape[1]
        require("seq_len", n, n <= self.seq_len, f"at most {self.seq_len}")
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions[:n]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.activation_checkpointing else block(x)
        return self.logits(x if asked is None else x[asked])

    def logits(self, x: Tensor) -> Tensor:
        """Logits `(..., vocabulary)` from the blocks' output `(..., width)`."""
        raise NotImplementedError


class MultiHead(nn.Module):
    """Self-attention of tokens of width `num_heads * head_dim`; one matrix product computes query, key and value.

    Args:
        attention: the mechanism, which sets the number of heads.
        bias: whether both projections have one.
        rotary: rotates queries and keys.
        short_convolution: kernel size of a convolution of query, key and value; 0: none.
    """

    def __init__(
        self, attention: Attention, *, bias: bool, rotary: Rotary | None = None, short_convolution: int = 0
    ) -> None:
        super().__init__()
        width = attention.num_heads * attention.head_dim
        self.query_key_value = nn.Linear(width, 3 * width, bias=bias)
        self.short_convolution = ShortConvolution(3 * width, short_convolution) if short_convolution else nn.Identity()
        self.rotary = rotary
        self.attention = attention
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """`(batch, n, width)` -> the same shape; `padding` is `(batch, n)` bool, None: no padding."""
        batch, n, width = x.shape
        heads = self.attention.num_heads, self.attention.head_dim
        split = self.short_convolution(self.query_key_value(x)).view(batch, n, 3, *heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        if self.rotary is not None:
            query, key = self.rotary(query), self.rotary(key)
        # Not every mechanism accepts padding, so it is only passed if there is some.
        given = {} if padding is None else {"key_padding_mask": padding}
        return self.out(self.attention(query, key, value, **given).transpose(1, 2).reshape(batch, n, width))


class PreNorm(nn.Module):
    """A pre-LN block: attention, then a feed-forward layer, each added to its input."""

    def __init__(self, multihead: MultiHead, feed_forward: nn.Module, dropout: float) -> None:
        super().__init__()
        self.multihead = multihead
        width = multihead.out.out_features
        self.attention_norm = nn.LayerNorm(width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = feed_forward
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """`(batch, n, width)` -> the same shape; `padding` is `(batch, n)` bool, None: no padding."""
        x = x + self.dropout(self.multihead(self.attention_norm(x), padding))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class ShortConvolution(nn.Module):
    """Each channel is a weighted sum of its last few tokens: H3 (Fu et al. 2023), Hyena, Mamba, most linear attention.

    With it a key contains the previous token, which otherwise takes a layer of attention. Initialised as the identity.
    """

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels, 1, kernel_size))
        nn.init.ones_(self.weight[..., -1])

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, n, channels)` -> the same shape."""
        channels, _, size = self.weight.shape
        return F.conv1d(F.pad(x.mT, (size - 1, 0)), self.weight, groups=channels).mT


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Initialise a model's weights; its mechanisms have initialised their own, and norms stay unchanged.

    As in the official code (flax's Dense and Embed): linear layers are LeCun normal with zero bias, embeddings have
    standard deviation 1/sqrt(width). Smaller embeddings, such as GPT-2's 0.02, are hidden by the added positions: two
    layers of width 64 then needed more than 800 steps, not 200 to 300, to learn induction heads.
    """
    if isinstance(module, Attention):
        return
    if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
        nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5, generator=generator)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        std = getattr(module, "initial_std", module.embedding_dim**-0.5)
        nn.init.normal_(module.weight, std=std, generator=generator)
    for child in module.children():
        initialise(child, generator)


def before_logits(norm: nn.LayerNorm) -> nn.LayerNorm:
    """Scale the norm before the unembedding, so that logits begin with standard deviation `LOGIT_STD`."""
    nn.init.constant_(norm.weight, LOGIT_STD)
    return norm


def sinusoids(length: int, width: int) -> Tensor:
    """`(length, width)`: alternating sine and cosine of `position / 10000^(2i / width)` (Vaswani et al. 2017, 3.5)."""
    angles = _angles(length, width)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).to(torch.float32)


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021): scores of rotated queries and keys depend only on position differences.

    Coordinate i is rotated with coordinate i + head_dim / 2, as in Llama; the paper rotates neighbouring pairs, which
    is the same up to a permutation common to queries and keys.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, length: int, head_dim: int) -> None:
        super().__init__()
        angles = _angles(length, head_dim)
        self.register_buffer("cos", angles.cos().to(torch.float32), persistent=False)
        self.register_buffer("sin", angles.sin().to(torch.float32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, heads, n, head_dim)` -> the same shape and dtype, position i rotated by i steps."""
        cos, sin = self.cos[: x.shape[2]], self.sin[: x.shape[2]]
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def _angles(length: int, width: int) -> Tensor:
    """`(length, width / 2)` in float64: in float32 only three digits of the angle remain at position 32,768."""
    frequencies = THETA ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
