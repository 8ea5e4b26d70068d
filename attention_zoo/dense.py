"""Base classes for attention by the n x n matrix of weights, and for dropout of weights."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_zoo.base import ALL, Attention
from attention_zoo.checks import check_bool, check_float, require
from attention_zoo.info import UnsupportedError
from attention_zoo.ops.chunks import weighted_values_by_rows
from attention_zoo.ops.decoding.states import KeyValueCache
from attention_zoo.ops.feature_product.reference import slices

ROWS = 256  # tokens of a continued prompt that are computed together
LARGEST_TILE = 512  # keys in a tile of PyTorch's fused kernels: 512 on a CPU, about 128 on a GPU


class AttentionDropout(Attention):
    """A mechanism with a weight for each query and key (or slot), which dropout may drop in training mode.

    As in the code of Vaswani et al. 2017 (Srivastava et al. 2014, Dropout, section 4) the other weights are divided by
    `1 - dropout`, so that the mean over the masks is the output without dropout. As in `nn.Dropout`, masks follow
    torch's generators, not `seed`: activation checkpointing restores them, and compiled code draws them.

    Raises:
        UnsupportedError: in training mode with dropout, `impl=fused` whose kernels drop no weights, or decoding.
    """

    # Whether the fast path drops weights itself; if not, `auto` runs the reference while weights are dropped.
    drops_fused: ClassVar[bool] = False

    def __init__(self, *, dropout: float = 0.0, **common: Any) -> None:
        super().__init__(**common)
        self.dropout = check_float("dropout", dropout, minimum=0)
        require("dropout", dropout, dropout < 1, "below 1")

    @property
    def dropout_p(self) -> float:
        """The current probability of dropping a weight: zero in evaluation mode."""
        return self.dropout if self.training else 0.0

    def _drop(self, weights: Tensor) -> Tensor:
        return F.dropout(weights, self.dropout_p)

    def _chooses_fused(self, why_not_fused: Callable[..., str | None], *arguments: Any) -> bool:
        if self.dropout_p > 0 and not self.drops_fused:
            reason = f"dropout={self.dropout}: the fast path of {self.info.name} drops no weights"
            return super()._chooses_fused(lambda *_: reason, *arguments)
        return super()._chooses_fused(why_not_fused, *arguments)

    def _check_decodes(self) -> None:
        super()._check_decodes()
        if self.dropout_p > 0:
            raise UnsupportedError(f"dropout={self.dropout}: {self.info.name} decodes in evaluation mode, call eval()")


class DenseAttention(AttentionDropout):
    """A mechanism whose output is `_weights`, the normalised weights of visible keys, times the values."""

    def _weights(self, query: Tensor, key: Tensor, visible: Tensor) -> Tensor:
        """The weights `(batch, heads, queries, keys)`, from queries and from keys after `_normed`.

        A row sums to S / (bias + S) if the mechanism has a bias, else to 1.
        """
        weights, total = self._weights_and_total(self._prepared(query), key, visible, *self._weight_parameters())
        return (weights / total).to(query.dtype)

    def _weights_and_total(
        self, query: Tensor, key: Tensor, visible: Tensor | None, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Weights before normalisation, and their denominators `(batch, heads, queries, 1)`, which are never zero.

        Args:
            query: after `_prepared`.
            key: after `_normed`.
            visible: may be for the last keys only, or None; all other keys are visible.
            parameters: `_weight_parameters`.
        """
        raise NotImplementedError

    def _prepared(self, query: Tensor) -> Tensor:
        """Transform each query by itself, before its weights are computed."""
        return query

    def _weight_parameters(self) -> tuple[Tensor, ...]:
        """Other tensors that the weights depend on and that may need gradients."""
        return ()

    def _normed(self, key: Tensor) -> Tensor:
        """Transform each key by itself, once, before it is cached."""
        return key

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        return self._drop(self._matrix(query, key, value, padding, ALL)) @ value

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        return self._weights(query, self._normed(key), visible)

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        out = weighted_values_by_rows(
            self._weights_and_total,
            self._prepared(query),
            self._normed(key),
            value,
            causal=self.causal,
            padding=padding,
            parameters=self._weight_parameters(),
        )
        return out, "rows"

    def _why_not_fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> str | None:
        return None

    def _append(self, state: KeyValueCache, key: Tensor, value: Tensor, padding: Tensor | None) -> None:
        state.append(self._normed(key), value, padding)

    def _read(self, state: KeyValueCache, query: Tensor) -> Tensor:
        return self._weights(query, state.keys, state.visible_to(query.shape[2])) @ state.values

    def _continue(
        self, state: KeyValueCache, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None
    ) -> Tensor:
        """As in the base class, with some rows of the matrix at a time."""
        outputs = []
        for rows in slices(query.shape[2], ROWS):
            own = None if padding is None else padding[:, rows]
            outputs.append(self._decode_step(state, query[:, :, rows], key[:, :, rows], value[:, :, rows], own))
        return torch.cat(outputs, 2)

    def _test_blocks(self) -> tuple[int, int]:
        """Several tiles of a fused kernel."""
        return (LARGEST_TILE, 2) if "fused" in self.info.implementations else super()._test_blocks()

    def _flops(self, seq_len: int) -> int:
        """Two n x n x h products; half of that if causal and fused, because the kernels skip blocks of the future."""
        skips = self.causal and self._fuses_here(seq_len)
        return 4 * seq_len**2 * self.head_dim // (2 if skips else 1)


class NormedDotProducts(DenseAttention):
    """A mechanism whose weights are a function of `scale <q, k>`, divided by a bias plus their sum.

    Args:
        qk_layernorm: one affine LayerNorm over head_dim, shared by queries, keys and heads.
        scale: factor of the products.
        bias: added to the sum of a row.
    """

    def __init__(self, *, qk_layernorm: bool, scale: float, bias: float, **common: Any) -> None:
        super().__init__(**common)
        self.scale = check_float("scale", scale, above=0)
        self.bias = check_float("bias", bias, minimum=0)
        self.layernorm = nn.LayerNorm(self.head_dim) if check_bool("qk_layernorm", qk_layernorm) else nn.Identity()

    def _normed(self, key: Tensor) -> Tensor:
        return self.layernorm(key)

    def _prepared(self, query: Tensor) -> Tensor:
        return self.scale * self.layernorm(query)
