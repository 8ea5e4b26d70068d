"""Transformer++: the decoder that PolySketchFormer trains (ICML version, section 4 and Appendices H and I)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_zoo import Attention
from bench.common.errors import ConfigError
from bench.common.schema import setting
from bench.models.layers import Model, MultiHead, PreNorm, Rotary, Settings, before_logits


@dataclass
class TransformerSettings(Settings):
    """`model=transformer_...`: Transformer++, the decoder of PolySketchFormer."""

    name: ClassVar[str] = "transformer"
    is_causal: ClassVar[bool] = True

    layers: int = setting(12, "number of blocks (attention and feed-forward)", minimum=1, maximum=1000)
    dropout: float = setting(0.0, "dropout of the outputs of attention and feed-forward layers", minimum=0, maximum=1)
    sinusoidal: bool = setting(True, "add sinusoidal positions to the embeddings, besides rotary ones")
    short_convolution: int = setting(
        0, "kernel size of a causal convolution of queries, keys and values; 0: none", minimum=0, maximum=64
    )
    activation_checkpointing: bool = setting(False, "recompute each block in the backward pass to save memory")

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Also refuse sizes without rotary positions, and redraws, which checkpointing would count twice."""
        heads, head_dim, redraw = config["num_heads"], config["head_dim"], config["attention"].get("redraw_interval")
        if head_dim % 2:
            raise ConfigError(f"head_dim={head_dim}: must be even, rotary positions turn pairs of coordinates")
        if heads * head_dim < 4:
            raise ConfigError(f"num_heads={heads}: num_heads * head_dim={heads * head_dim} must be at least 4")
        if self.activation_checkpointing and redraw is not None:
            raise ConfigError(
                f"model.activation_checkpointing=true: must be false with attention.redraw_interval={redraw}, "
                "which would count what is computed again as another forward pass"
            )
        super().require_fits(config)


class Transformer(Model):
    """Pre-LN decoder: rotary (and sinusoidal) positions, gated linear units, logits from the tied embedding.

    The logits at a position predict the next token.
    """

    def __init__(
        self, settings: TransformerSettings, attentions: Sequence[Attention], *, vocabulary: int, seq_len: int
    ) -> None:
        width, rotary = attentions[0].num_heads * attentions[0].head_dim, Rotary(seq_len, attentions[0].head_dim)
        inside: dict[str, Any] = {"bias": False, "rotary": rotary, "short_convolution": settings.short_convolution}
        blocks = [PreNorm(MultiHead(each, **inside), GatedLinearUnit(width), settings.dropout) for each in attentions]
        how = {key: getattr(settings, key) for key in ("activation_checkpointing", "sinusoidal")}
        super().__init__(attentions, blocks, vocabulary=vocabulary, seq_len=seq_len, **how)
        self.norm = before_logits(nn.LayerNorm(self.width))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def logits(self, x: Tensor) -> Tensor:
        """Logits from the tied embedding."""
        return F.linear(self.norm(x), self.embedding.weight, self.bias)


class GatedLinearUnit(nn.Module):
    """`(x W * gelu(x V)) U` (Shazeer 2020), with about as many parameters as a layer of four times the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = 8 * width // 3 // 8 * 8
        self.value_gate = nn.Linear(width, 2 * hidden, bias=False)
        self.out = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, n, width)` -> the same shape."""
        value, gate = self.value_gate(x).chunk(2, -1)
        return self.out(value * F.gelu(gate, approximate="tanh"))
