"""Where a token stands: sines and cosines that are added to it, and rotations of queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attention_zoo.checks import require

THETA = 10000.0


def sinusoidal(length: int, width: int) -> Tensor:
    """`(length, width)`: sine and cosine of `position / 10000^(2i / width)`, in turns (Vaswani et al. 2017, 3.5)."""
    angles = _angles(length, width)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).to(torch.float32)


class PositionedEmbedding(nn.Embedding):
    """Tokens 0 to `vocabulary - 1` as vectors of `width`, with sinusoidal positions, `seq_len` of them, added."""

    positions: Tensor

    def __init__(self, vocabulary: int, width: int, seq_len: int) -> None:
        super().__init__(vocabulary, width)
        self.register_buffer("positions", sinusoidal(seq_len, width), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """`(batch, n)` int64 -> `(batch, n, width)`.

        Raises:
            ValueError: more than `seq_len` tokens.
        """
        n, longest = tokens.shape[1], len(self.positions)
        require("seq_len", n, n <= longest, f"at most {longest}")
        return super().forward(tokens) + self.positions[:n]


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021): scores of queries and keys that it turned depend on differences only.

    Coordinate i is turned with coordinate i + head_dim / 2, as in Llama: the neighbouring pairs of the paper up to a
    permutation that is the same for queries and keys.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, length: int, head_dim: int) -> None:
        super().__init__()
        angles = _angles(length, head_dim)
        self.register_buffer("cos", angles.cos().to(torch.float32), persistent=False)
        self.register_buffer("sin", angles.sin().to(torch.float32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, heads, n, head_dim)` -> the same shape and dtype, position i turned by i steps."""
        cos, sin = self.cos[: x.shape[2]], self.sin[: x.shape[2]]
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def _angles(length: int, width: int) -> Tensor:
    """`(length, width / 2)` in float64: float32 has three digits of the angle left at position 32,768."""
    frequencies = THETA ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
