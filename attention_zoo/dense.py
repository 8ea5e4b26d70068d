"""Attention by the n x n matrix of weights, whole and token by token; dropout of weights."""

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

ROWS = 256  # of a prompt that goes on, which are computed together
LARGEST_TILE = 512  # keys that PyTorch's fused kernels treat together: 512 on a CPU, 128 or so on a GPU


class AttentionDropout(Attention):
    """A mechanism with a weight for each query and key, or slot, that may be dropped in training mode.

    As in the code of Vaswani et al. 2017 (Srivastava et al. 2014, Dropout, section 4) the others are divided by
    `1 - dropout`, so that the mean over the masks is the output without. As those of `nn.Dropout`, masks follow torch's
    own generators instead of `seed`: activation checkpointing brings them back, and compiled code draws them.

    Raises:
        UnsupportedError: in training, `impl=fused` whose kernels have no such weights, or a step of decoding.
    """

    # Whether the fast path drops weights itself; where it does not, `auto` is the reference while weights are dropped.
    drops_fused: ClassVar[bool] = False

    def __init__(self, *, dropout: float = 0.0, **common: Any) -> None:
        super().__init__(**common)
        self.dropout = check_float("dropout", dropout, minimum=0)
        require("dropout", dropout, dropout < 1, "below 1")

    @property
    def dropout_p(self) -> float:
        """The probability with which a weight is dropped now: zero in evaluation."""
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
    """A mechanism that is `_weights`, the normalised weights of visible keys, times the values."""

    def _weights(self, query: Tensor, key: Tensor, visible: Tensor) -> Tensor:
        """`(batch, heads, queries, keys)` of queries and of keys as `_normed` left them.

        A row sums to S / (bias + S) where the mechanism has a bias, else to 1.
        """
        weights, total = self._weights_and_total(self._prepared(query), key, visible, *self._weight_parameters())
        return (weights / total).to(query.dtype)

    def _weights_and_total(
        self, query: Tensor, key: Tensor, visible: Tensor | None, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Weights and, `(batch, heads, queries, 1)`, what they are divided by, never zero.

        Args:
            query: as `_prepared` left it.
            key: as `_normed` left it.
            visible: may speak of the last keys only, or be None; the other keys are all visible.
            parameters: `_weight_parameters`.
        """
        raise NotImplementedError

    def _prepared(self, query: Tensor) -> Tensor:
        """What is done to each query alone before its weights are computed."""
        return query

    def _weight_parameters(self) -> tuple[Tensor, ...]:
        """What the weights depend on beside queries and keys, and gradients may go to."""
        return ()

    def _normed(self, key: Tensor) -> Tensor:
        """What is done to each key alone, once, before it is cached."""
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
        """Some rows of the matrix at a time."""
        outputs = []
        for rows in slices(query.shape[2], ROWS):
            own = None if padding is None else padding[:, rows]
            self._append(state, key[:, :, rows], value[:, :, rows], own)
            outputs.append(self._run(self._read, self._fused_read, self._why_no_fused_read, state, query[:, :, rows]))
        return torch.cat(outputs, 2)

    def _test_blocks(self) -> tuple[int, int]:
        """Of a fused kernel several tiles."""
        return (LARGEST_TILE, 2) if "fused" in self.info.implementations else super()._test_blocks()

    def _flops(self, seq_len: int) -> int:
        """Two n x n x h products, half of them if causal and fused: the kernels skip the blocks of the future."""
        skips = self.causal and self._fuses_here(seq_len)
        return 4 * seq_len**2 * self.head_dim // (2 if skips else 1)


class NormedDotProducts(DenseAttention):
    """A mechanism whose weights are a function of `scale <q, k>`, over a bias and their sum.

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
