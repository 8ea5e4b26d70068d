"""Polynomial attention: PolySketchFormer (ICML version), section 2.1: weights `<q, k>^p / (1 + sum <q, k'>^p)`."""

from typing import Any

import torch
from torch import Tensor

from attention_zoo.checks import check_int, require
from attention_zoo.dense import NormedDotProducts
from attention_zoo.info import AttentionInfo
from attention_zoo.ops import launching
from attention_zoo.ops.masking import denominator, largest_magnitude, power_, zero_hidden_
from attention_zoo.ops.polynomial.tiles import HEAD_DIMS
from attention_zoo.registry import register

if launching.HAS_KERNELS:
    from attention_zoo.ops.polynomial.triton import polynomial_attention


def weights_and_total(
    query: Tensor, key: Tensor, visible: Tensor | None, degree: int, bias: float
) -> tuple[Tensor, Tensor]:
    """`<q, k>^p`, and the bias plus their sum, both divided by a factor per row that keeps them in range.

    Args:
        query: `(..., queries, h)`.
        key: `(..., keys, h)`.
        visible: as in `DenseAttention._weights_and_total`.
        degree: p, even.
        bias: added to the sum of a row.
    """
    # In place: allocating memory costs more than the arithmetic.
    scores = zero_hidden_(query @ key.mT, visible)
    root = bias ** (1 / degree)
    unit = largest_magnitude(scores).clamp_min(max(root, torch.finfo(scores.dtype).tiny))
    weights = power_(scores.div_(unit), degree)
    return weights, denominator(weights.sum(-1, keepdim=True), (root / unit) ** degree)


@register
class Polynomial(NormedDotProducts):
    """Exact polynomial attention: the reference has the n x n matrix in memory, the fast path does not.

    On a GPU the fast path is Triton kernels (backend `triton`) for a head_dim of 32, 64 or 128, except in float64.
    Other inputs, and a CPU, compute some rows at a time (backend `rows`).

    The official code applies rotary embeddings before this layer norm, so its scores depend on absolute positions.
    Here the model decides about the order: this class normalises the queries and keys that it is given.

    Args:
        degree: p, even, so that weights are not negative.
        qk_layernorm: one affine LayerNorm over head_dim, shared by queries, keys and heads.
        scale: c in `(c <q, k>)^p`.
        bias: added to the sum of a row; `scale = s, bias = s^p` is the same function as `scale = 1, bias = 1`.
        dropout: probability of dropping a weight in training mode; the reference does it.
    """

    info = AttentionInfo(
        name="polynomial",
        paper="Kacham, Mirrokni, Zhong 2024 (PolySketchFormer, ICML), section 2.1",
        approximates="polynomial",
        causal=True,
        padding=True,
        cross=True,
        exact=True,
        complexity="O(n^2 h)",
        decode=True,
        implementations=("reference", "fused"),
    )

    def __init__(
        self,
        *,
        degree: int = 4,
        qk_layernorm: bool = True,
        scale: float = 1.0,
        bias: float = 1.0,
        dropout: float = 0.0,
        **common: Any,
    ) -> None:
        super().__init__(dropout=dropout, qk_layernorm=qk_layernorm, scale=scale, bias=bias, **common)
        self.degree = check_int("degree", degree, 2)
        require("degree", degree, degree % 2 == 0, "even, so that weights are not negative")

    @property
    def weight_degree(self) -> int:
        """p."""
        return self.degree

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        if not launching.on_gpu(query) or launching.why_unsupported(query, HEAD_DIMS) is not None:
            return super()._fused(query, key, value, padding)
        norm = launching.kernel_norm(self.layernorm)
        if norm is None:
            query, key = self.layernorm(query), self.layernorm(key)
        out = polynomial_attention(
            query,
            key,
            value,
            degree=self.degree,
            scale=self.scale,
            bias=self.bias,
            causal=self.causal,
            padding=padding,
            norm=norm,
        )
        return out, "triton"

    def _weights_and_total(
        self, query: Tensor, key: Tensor, visible: Tensor | None, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        return weights_and_total(query, key, visible, self.degree, self.bias)
