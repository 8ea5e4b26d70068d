"""The base class of mechanisms with a feature map: linear attention, in time linear in the sequence length."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from attention_zoo.base import Attention
from attention_zoo.checks import check_int
from attention_zoo.info import Executed, UnsupportedError
from attention_zoo.ops.chunks import by_keys
from attention_zoo.ops.decoding import tiles
from attention_zoo.ops.decoding.states import FeatureSums
from attention_zoo.ops.feature_product.blocks import LEAST, Features
from attention_zoo.ops.feature_product.choice import fused_flops, normalised_product, why_unsupported
from attention_zoo.ops.feature_product.reference import (
    LocalInputs,
    default_block_size,
    normalised_feature_product,
    product_flops,
)
from attention_zoo.ops.masking import normalise_by_sum, zero_padding


class FeatureMapAttention(Attention):
    """Weights `<phi(q_i), phi(k_j)>^d`, divided by a bias plus their sum over j.

    A subclass sets `num_features` and implements `features`, phi; `_scaled_features` instead if phi may overflow. It
    overrides `_fused_features` if phi has parameters or the fast path computes it in another way, and `_fused_step`
    if a kernel decodes. The state of decoding is sums over keys, whose size does not grow. Padded keys have features
    of zero, so they add nothing to the sums.

    Args:
        block_size: b of the block algorithm of `causal=True`.
        bias: added to the sum of a row.
    """

    num_features: int
    feature_degree: ClassVar[int] = 1  # d, the power of the products of features
    has_log_scale: ClassVar[bool] = False
    local = False  # whether diagonal blocks have exact weights instead of weights of features

    def __init__(self, *, block_size: int | None = None, bias: float = 0.0, **common: Any) -> None:
        super().__init__(**common)
        self.block_size = None if block_size is None else check_int("block_size", block_size)
        self.bias = bias

    def features(self, x: Tensor) -> Tensor:
        """phi of queries or keys, `(batch, heads, seq_len, num_features)`."""
        raise NotImplementedError

    def _scaled_features(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """`phi(x) exp(-t)` and t, `(batch, heads, seq_len)`; t is None where `has_log_scale` is False."""
        return self.features(x), None

    def _key_features(self, key: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor | None]:
        features, log_scale = self._scaled_features(key)
        if log_scale is not None and padding is not None:
            log_scale = log_scale.masked_fill(padding[:, None], LEAST)
        return zero_padding(features, padding), log_scale

    def _fused_features(self, query: Tensor) -> Features:
        """How the fast path computes the features of queries like these, and of keys."""
        return Features(lambda x, _: self._scaled_features(x))

    def _local(self, query: Tensor, key: Tensor, padding: Tensor | None) -> LocalInputs | None:
        """The inputs of the exact weights inside diagonal blocks, if there are any."""
        return None

    def _block_size(self, device: torch.device) -> int:
        return self.block_size or default_block_size(device, causal=self.causal, degree=self.feature_degree)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        query_features, _ = self._scaled_features(query)
        key_features, log_scale = self._key_features(key, padding)
        if log_scale is not None and not self.causal:
            # The largest scale of all keys cancels; if causal, it would leak the future into the past.
            key_features = key_features * (log_scale - log_scale.amax(-1, keepdim=True)).exp()[..., None]
            log_scale = None
        return normalised_feature_product(
            query_features.to(value.dtype),
            key_features.to(value.dtype),
            value,
            bias=self.bias,
            causal=self.causal,
            block_size=self._block_size(query.device),
            degree=self.feature_degree,
            log_scale=log_scale,
            local=self._local(query, key, padding),
        )

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        local = self._local(query, key, padding)
        return self._product(query, key, value, self._fused_features(query), padding, local)

    def _product(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        features: Features,
        padding: Tensor | None,
        local: LocalInputs | None,
    ) -> tuple[Tensor, str]:
        """The result of the fast path with these features, and its name."""
        return normalised_product(
            query,
            key,
            value,
            features=features,
            padding=padding,
            bias=self.bias,
            causal=self.causal,
            block_size=self.block_size,
            degree=self.feature_degree,
            local=local,
        )

    def _why_not_fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> str | None:
        plain = type(self)._fused_features is FeatureMapAttention._fused_features
        if plain and next(self.parameters(), None) is not None:
            return f"{self.info.name} has parameters, which its `_fused_features` must pass on: they would not learn"
        return why_unsupported(query, self.num_features, block_size=self.block_size, degree=self.feature_degree)

    def _new_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> Any:
        sizes = batch_size, self.num_heads, self.num_features, self.head_dim
        # Only a kernel that decodes uses parts.
        is_split = "fused" in self.info.implementations and not self.local
        options: dict[str, Any] = {"degree": self.feature_degree, "scaled": self.has_log_scale, "split": is_split}
        return FeatureSums(*sizes, device, dtype, **options)

    def _append(self, state: FeatureSums, key: Tensor, value: Tensor, padding: Tensor | None) -> None:
        features, log_scale = self._key_features(key, padding)
        state.add(features, value, log_scale)

    def _continue(
        self, state: FeatureSums, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None
    ) -> Tensor:
        self._require_reference_to_continue()
        features, log_scale = self._key_features(key, padding)
        return state.extend(self._scaled_features(query)[0], features, value, log_scale, self.bias)

    def _require_reference_to_continue(self) -> None:
        if self.impl == "fused":
            why = f"no kernel of {self.info.name} adds several tokens, or padding, to a state"
            raise UnsupportedError(f"impl=fused: {why}")
        self.executed = Executed("reference")

    def _decode_step(self, state: Any, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        if padding is not None:
            return self._continue(state, query, key, value, padding)
        return self._run(self._step, self._fused_step, self._why_no_fused_step, state, query, key, value)

    def _step(self, state: FeatureSums, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        both, log_scale = self._scaled_features(torch.cat([query, key], 2))  # two tokens take as long as one
        return state.next(both, value, None if log_scale is None else log_scale[..., 1:], self.bias)

    def _fused_step(self, state: FeatureSums, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, str]:
        """`_step` by a kernel, and its name."""
        raise NotImplementedError

    def _why_no_fused_step(self, state: FeatureSums, query: Tensor, key: Tensor, value: Tensor) -> str | None:
        return tiles.why_unsupported(query)

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        """The normalised weights; a row sums to S / (bias + S), S the sum of its weights."""
        weights = self._row_weights(query, key, visible, positions)
        return normalise_by_sum(weights.masked_fill(~visible, 0), self.bias).to(query.dtype)

    def _row_weights(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        """The weights of `_rows`; with log scales each row may have any factor."""

        def products(keys: Tensor, query_features: Tensor) -> tuple[Tensor, ...]:
            key_features, log_scale = self._scaled_features(keys)
            products = query_features @ key_features.mT
            return (products,) if log_scale is None else (products, log_scale)

        parameters = list(self.parameters())
        weights, *log_scales = by_keys(products, key, self._scaled_features(query)[0], parameters)
        for log_scale in log_scales:
            exponents = log_scale[:, :, None].expand(-1, -1, query.shape[2], -1).masked_fill(~visible, -torch.inf)
            highest = exponents.amax(-1, keepdim=True)
            weights = weights * (exponents - highest.masked_fill(highest == -torch.inf, 0)).exp()
        return weights if self.feature_degree == 1 else weights**self.feature_degree

    def _test_blocks(self) -> tuple[int, int]:
        return self._block_size(self.device), 3

    def _flops(self, seq_len: int) -> int:
        """The features of queries and keys, and their product."""
        m, h = self.num_features, self.head_dim
        inner = h if self.local else None
        options: dict[str, Any] = {"causal": self.causal, "degree": self.feature_degree, "inner": inner}
        if self._fuses_here(seq_len):
            product = fused_flops(seq_len, m, h, self.device, block_size=self.block_size, **options)
        else:
            product = product_flops(seq_len, m, h + 1, block_size=self._block_size(self.device), **options)
        return 2 * seq_len * self._feature_flops() + product

    def _feature_flops(self) -> int:
        """FLOPs of the features of one query or key."""
        return 0
