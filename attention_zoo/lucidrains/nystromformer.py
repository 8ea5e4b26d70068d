"""Nyströmformer by the package nystrom-attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_zoo.base import AttentionInfo, blocks_and_a_part, register
from attention_zoo.checks import check_int
from attention_zoo.lucidrains.peer import Handed, Peer, filled_up, hidden_by
from attention_zoo.nystromformer import iterated_inverse


@register
class LucidrainsNystromformer(Peer):
    """`(F Z) (B V)` by nystrom-attention: `nystromformer` without its convolution.

    It multiplies `F Z` first, 2 n m^2 FLOPs that ours does not need, and starts the iteration for Z from the largest
    column sum of all heads (of all batch items too, were they not given to it one by one). Where m does not divide the
    length it puts zeros in front, and the mask that hides them; ours has segments of two sizes. A padded position is
    part of its segment, so that means are over fewer tokens, where ours cuts what is left into equal segments; a
    landmark of padding only weighs as much as any other as a row of the matrix that is inverted.

    Args:
        num_landmarks: m.
        iterations: steps towards the pseudo-inverse.
    """

    info = AttentionInfo(
        name="lucidrains_nystromformer",
        paper="Xiong et al. 2021, algorithm 1",
        approximates="softmax",
        causal=False,
        padding=True,
        cross=False,
        random=False,
        complexity="O(n m h + n m^2 + m^3)",
        size="num_landmarks",
        package="nystrom-attention",
        implementations=("reference", "fused"),
        # Its identity matrix and its masked means are float32, which bfloat16 cannot be multiplied with.
        dtypes=(torch.float64, torch.float32),
    )
    source = "nystrom_attention.NystromAttention"

    def __init__(self, *, num_landmarks: int = 256, iterations: int = 6, **common: Any) -> None:
        super().__init__(**common)
        self.num_landmarks = check_int("num_landmarks", num_landmarks)
        self.iterations = check_int("iterations", iterations)
        sizes = {"dim": self.head_dim, "dim_head": self.head_dim, "heads": 1, "num_landmarks": num_landmarks}
        self.layer = self._make_layer(**sizes, pinv_iterations=iterations, residual=False)
        self.layer.to_qkv, self.layer.to_out = nn.Identity(), nn.Identity()

    def _run_layer(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        front, real = filled_up(query, padding, self.num_landmarks, front=True)
        query, key, value = (F.pad(x, (0, 0, front, 0)) if front else x for x in (query, key, value))
        masks = [None] * len(query) if real is None else real[:, None].expand(-1, self.num_heads, -1)
        items = zip(query, key, value, masks, strict=True)
        outs = [self.layer(Handed(*item), mask=mask)[:, front:] for *item, mask in items]
        return torch.stack(outs)

    def _matrix(
        self, query: Tensor, key: Tensor, value: Tensor | None, padding: Tensor | None, rows: Tensor | slice
    ) -> Tensor:
        """`F Z B`; entries may be negative."""
        front, _ = filled_up(query, padding, self.num_landmarks, front=True)
        real = F.pad(~hidden_by(padding, query), (front, 0))[:, None]
        query, key = (F.pad(x, (0, 0, front, 0)) for x in (query, key))
        query, key = (x * real[..., None] for x in (query * self.head_dim**-0.5, key))
        count = real.unflatten(2, (self.num_landmarks, -1)).sum(3)
        landmarks = [
            x.unflatten(2, (self.num_landmarks, -1)).sum(3) / count.clamp_min(1)[..., None] for x in (query, key)
        ]
        exists = count > 0
        from_landmarks = _blindly_uniform(query @ landmarks[1].mT, real, exists)
        kernel = _blindly_uniform(landmarks[0] @ landmarks[1].mT, exists, exists)
        to_landmarks = _blindly_uniform(landmarks[0] @ key.mT, exists, real)
        # Of all heads, where ours has those of each.
        largest = kernel.sum(-2).amax((-2, -1)) * kernel.sum(-1).amax((-2, -1))
        inverse = iterated_inverse(kernel, kernel.mT / largest[:, None, None, None], self.iterations)
        to_tokens = inverse @ to_landmarks * real[:, :, None]
        return (from_landmarks[:, :, front:][:, :, rows] @ to_tokens)[..., front:]

    @property
    def telling_length(self) -> int:
        """Twice the landmarks, and more."""
        return blocks_and_a_part(self.num_landmarks, 2)

    def _flops(self, seq_len: int) -> int:
        """The three score matrices, Z, `F Z`, `B V` and their product."""
        m, h = self.num_landmarks, self.head_dim
        n = seq_len + -seq_len % m
        return 2 * h * (4 * n * m + m * m) + self.iterations * 4 * 2 * m**3 + 2 * n * m * m


def _blindly_uniform(scores: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Softmax of the scores `(batch, heads, i, j)` of those that are there; of a row without any, uniform."""
    visible = left[..., :, None] & right[..., None, :]
    return scores.masked_fill(~visible, -torch.finfo(scores.dtype).max).softmax(-1)
