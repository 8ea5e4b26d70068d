"""The encoder that learns to reverse sequences: the thesis, sections 1.2.1 and 5."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from attention_zoo import Attention
from bench.common.schema import setting
from bench.models.layers import Model, MultiHead, Settings, before_logits


@dataclass
class EncoderSettings(Settings):
    """`model=encoder`: the post-LN encoder of the thesis."""

    name: ClassVar[str] = "encoder"
    is_causal: ClassVar[bool] = False

    layers: int = setting(1, "number of blocks (attention and feed-forward)", minimum=1, maximum=1000)


class Encoder(Model):
    """Post-LN encoder as in BERT, `LN(GELU(linear))` after its blocks, and a separate unembedding matrix.

    The thesis says neither which positions it adds nor how wide its feed-forward layer is: here positions are
    sinusoidal, and that layer is four times as wide as the model. The logits at a position predict its own target.
    """

    def __init__(
        self, settings: EncoderSettings, attentions: Sequence[Attention], *, vocabulary: int, seq_len: int
    ) -> None:
        super().__init__(attentions, [Block(each) for each in attentions], vocabulary=vocabulary, seq_len=seq_len)
        norm = before_logits(nn.LayerNorm(self.width))
        self.final = nn.Sequential(nn.Linear(self.width, self.width), nn.GELU(), norm)
        self.unembedding = nn.Embedding(vocabulary, self.width)

    def logits(self, x: Tensor) -> Tensor:
        """Logits from the unembedding matrix."""
        return F.linear(self.final(x), self.unembedding.weight)


class Block(nn.Module):
    """A post-LN block: attention, then a feed-forward layer; each is added to its input and normalised."""

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
