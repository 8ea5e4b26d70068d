"""FAVOR+ by the package performer-pytorch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attention_zoo.base import AttentionInfo, register
from attention_zoo.checks import check_int
from attention_zoo.lucidrains.peer import Peer
from attention_zoo.ops.sketches import orthogonal_features

# Constants of performer-pytorch that its layer takes no argument for.
FEATURE_EPS, CAUSAL_EPS, CAUSAL_CHUNKS = 1e-4, 1e-6, 128


@register
class LucidrainsPerformer(Peer):
    """FAVOR+ by performer-pytorch: `performer` with the same projection for the same seed, and the same work.

    It adds 1e-4 to every feature, relative to the largest of its query or of all keys, where ours adds 1e-6 relative to
    the largest of its own query or key; the largest is a constant for gradients. Causal, this largest key lets the
    future move past outputs, and without its CUDA code it keeps an m x h sum for each position of a chunk, of which
    there are 128: as many multiplications as without blocks, and more memory traffic. It takes no mask.

    Args:
        num_features: m.
    """

    info = AttentionInfo(
        name="lucidrains_performer",
        paper="Choromanski et al. 2021 (Performer), sections 2.3 and 2.4",
        approximates="softmax",
        causal=False,
        approximately_causal=True,
        padding=False,
        cross=True,
        random=True,
        complexity="O(n m h)",
        size="num_features",
        package="performer-pytorch",
        implementations=("reference", "fused"),
    )
    source = "performer_pytorch.FastAttention"

    def __init__(self, *, num_features: int = 256, **common: Any) -> None:
        super().__init__(**common)
        self.num_features = check_int("num_features", num_features)
        self.layer = self._make_layer(dim_heads=self.head_dim, nb_features=num_features, causal=self.causal)
        self._draw()

    def _draw(self) -> None:
        projection = orthogonal_features(self.num_features, self.head_dim, self._generator())
        self.layer.projection_matrix.copy_(projection)

    def _run_layer(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        return self.layer(query, key, value)

    def _features(self, x: Tensor, dims: tuple[int, ...]) -> Tensor:
        """`exp(w x - |x|^2 / 2 - largest) + eps` over sqrt(m), of x over h^(1/4); the largest w x over `dims`."""
        x = x * self.head_dim**-0.25
        exponents = x @ self.layer.projection_matrix.to(x.dtype).T
        largest = exponents.detach().amax(dims, keepdim=True)
        positive = (exponents - x.square().sum(-1, keepdim=True) / 2 - largest).exp()
        return (positive + FEATURE_EPS) * self.num_features**-0.5

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        query_features, key_features = self._features(query, (-1,)), self._features(key, (-2, -1))
        weights = query_features @ key_features.mT * visible
        total = weights.sum(-1, keepdim=True)
        if self.causal:
            total = total + CAUSAL_EPS * query_features.sum(-1, keepdim=True)
        return weights / total

    @property
    def telling_length(self) -> int:
        """Several positions in each of its chunks."""
        return 3 * CAUSAL_CHUNKS + 1

    def _flops(self, seq_len: int) -> int:
        """Features of queries and keys, the products with the state, the normaliser."""
        m, h = self.num_features, self.head_dim
        return 8 * seq_len * m * h + 2 * seq_len * m
