"""Sequence classifiers: the encoder of Skeinformer's Long Range Arena, and two models without attention.

Chen et al. 2022 (Skeinformer), section 6.1 and its code (pkuzengqi/Skeinformer), which is that of Xiong et al. 2021.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_zoo import Attention
from attention_zoo.checks import require
from bench.common.schema import require_setting, setting
from bench.models.layers import MultiHead, PreNorm, Settings

KERNEL_SIZE = 5
"""Of each convolution: with three layers, a position sees 6 tokens (or pixels) to each side."""


@dataclass
class ClassifierSettings(Settings):
    """`model=classifier`: the encoder of Long Range Arena, as in Skeinformer."""

    name: ClassVar[str] = "classifier"
    is_causal: ClassVar[bool] = False
    classifies: ClassVar[bool] = True

    layers: int = setting(2, "number of blocks (attention and feed-forward)", minimum=1, maximum=1000)
    dropout: float = setting(0.1, "dropout of the embeddings and of the layers' outputs", minimum=0, maximum=1)
    pooling: str = setting(
        "all",
        "mean over positions: all (with padding, as in the paper's code) or tokens only",
        choices=("all", "tokens"),
    )

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Also refuse other test lengths, since each position has its own learned embedding."""
        super().require_fits(config)
        lengths = config.get("training", {}).get("test_lengths")
        require_setting("training.test_lengths", lengths, lengths is None, f"null with model.name={self.name}")


@dataclass
class BagOfTokensSettings(ClassifierSettings):
    """`model=bag_of_tokens`: a control, the mean of the token embeddings, which ignores their order."""

    name: ClassVar[str] = "bag_of_tokens"
    has_attention: ClassVar[bool] = False

    layers: int = setting(0, "number of layers: none", minimum=0, maximum=0)


@dataclass
class ConvolutionSettings(ClassifierSettings):
    """`model=convolution`: a control whose layers see only a few neighbours."""

    name: ClassVar[str] = "convolution"
    has_attention: ClassVar[bool] = False

    layers: int = setting(3, "number of convolution layers", minimum=1, maximum=1000)
    dimensions: int = setting(1, "1: neighbours in the sequence; 2: neighbours in a square image", minimum=1, maximum=2)

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Also refuse an image that is not square."""
        super().require_fits(config)
        n = config["seq_len"]
        fits = self.dimensions == 1 or math.isqrt(n) ** 2 == n
        require_setting("seq_len", n, fits, "a square number with model.dimensions=2")


class SmallEmbedding(nn.Embedding):
    """An embedding that is initialised with standard deviation 0.02."""

    initial_std = 0.02


class Classifier(nn.Module):
    """Embedded tokens, blocks, a layer norm, the mean over positions, and two linear layers that predict the class.

    The same weights read both documents of a pair; the class is predicted from `[x0, x1, x0 * x1, x0 - x1]`.

    Args:
        settings: of one of the classifiers here.
        attentions: the mechanism of each layer; empty for models without attention.
        width: of the embeddings.
        vocabulary: tokens are 0 to `vocabulary - 1`.
        classes: number of classes.
        documents: 1, or 2 for pairs.
        seq_len: the longest sequence.
    """

    def __init__(
        self,
        settings: ClassifierSettings,
        attentions: Sequence[Attention],
        *,
        width: int,
        vocabulary: int,
        classes: int,
        documents: int,
        seq_len: int,
    ) -> None:
        super().__init__()
        self.seq_len, self.pooling = seq_len, settings.pooling
        self.embedding = SmallEmbedding(vocabulary, width)
        # Models without attention need no positions: a bag has no order, and a convolution sees neighbours.
        self.positions = SmallEmbedding(seq_len, width) if settings.has_attention else None
        dropout = settings.dropout
        self.dropout = nn.Dropout(dropout)
        blocks: list[nn.Module] = [
            PreNorm(MultiHead(attention, bias=True), _feed_forward(width, dropout), dropout) for attention in attentions
        ]
        if isinstance(settings, ConvolutionSettings):
            blocks = [ConvolutionBlock(width, settings) for _ in range(settings.layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        read = width if documents == 1 else 4 * width
        self.head = nn.Sequential(nn.Linear(read, 2 * width), nn.ReLU(), nn.Linear(2 * width, classes))

    def forward(self, tokens: Tensor, asked: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Logits of classes, or of masked tokens (`bench.training.pretraining`).

        Args:
            tokens: `(batch, n)` int64; for pairs `(batch, 2, n)`.
            asked: bool. `(batch, 1)`: examples whose class is predicted; None: all. Of the tokens' shape: tokens to
                predict; these are masked, that is, their embeddings are zero.
            mask: bool of the tokens' shape, True at tokens, False at padding; None: no padding.

        Returns:
            `(asked, classes)`, or `(asked, vocabulary)` from the embedding matrix.

        Raises:
            ValueError: n is below 2 or above `seq_len`.
        """
        n = tokens.shape[-1]
        require("seq_len", n, 2 <= n <= self.seq_len, f"2 to {self.seq_len}")
        if asked is not None and asked.shape == tokens.shape:
            hidden = asked.reshape(-1, n)
            return F.linear(self.read(tokens, mask, hidden)[hidden], self.embedding.weight)
        x = self.read(tokens, mask)
        if mask is None or self.pooling == "all":
            pooled = x.mean(1)
        else:
            pooled = x.sum(1) / mask.reshape(len(x), n).sum(1, keepdim=True).clamp_min(1)
        if tokens.dim() == 3:
            first, second = pooled.view(len(tokens), 2, -1).unbind(1)
            pooled = torch.cat([first, second, first * second, first - second], -1)
        logits: Tensor = self.head(pooled)
        return logits if asked is None else logits[asked[:, 0]]

    def read(self, tokens: Tensor, mask: Tensor | None, hidden: Tensor | None = None) -> Tensor:
        """Run each document of `tokens` through the blocks: `(documents, n, width)`, zero at padding."""
        n = tokens.shape[-1]
        padding = None if mask is None else ~mask.reshape(-1, n)
        x = self.embedding(tokens.reshape(-1, n))
        if hidden is not None:
            x = x.masked_fill(hidden[..., None], 0)
        if self.positions is not None:
            x = x + self.positions.weight[:n]
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, padding)
        return without(padding, self.norm(x))


def _feed_forward(width: int, dropout: float) -> nn.Module:
    wide = [nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout)]
    return nn.Sequential(*wide, nn.Linear(2 * width, width))


class ConvolutionBlock(nn.Module):
    """A pre-LN block: a convolution over neighbours, added to its input."""

    def __init__(self, width: int, settings: ConvolutionSettings) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.is_image = settings.dimensions == 2
        kind = nn.Conv2d if self.is_image else nn.Conv1d
        self.convolution = kind(width, width, KERNEL_SIZE, padding=KERNEL_SIZE // 2)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """As in `PreNorm`."""
        seen = without(padding, self.norm(x)).mT
        side = round(x.shape[1] ** 0.5)
        out = self.convolution(seen.unflatten(2, (side, side)) if self.is_image else seen)
        return x + self.dropout(F.gelu(out)).flatten(2).mT


def without(padding: Tensor | None, x: Tensor) -> Tensor:
    """`(documents, n, width)` with zeros at padding."""
    return x if padding is None else x.masked_fill(padding[..., None], 0)
