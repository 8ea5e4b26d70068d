"""Linear attention with `phi(x) = elu(x) + 1`: Katharopoulos et al. 2020, Transformers are RNNs, section 3.2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_zoo.base import Attention, AttentionInfo, Executed, blocks_and_a_part, register
from attention_zoo.checks import check_float, check_int
from attention_zoo.ops.decoding import tiles
from attention_zoo.ops.decoding.states import FeatureSums
from attention_zoo.ops.feature_product.blocks import Features
from attention_zoo.ops.feature_product.choice import fused_flops, normalised_product, refusal_of
from attention_zoo.ops.feature_product.reference import default_block_size, normalised_feature_product, product_flops
from attention_zoo.ops.masking import normalise_by_sum, zero_padding


@register
class Linear(Attention):
    """`out_i = phi(q_i) Z / (phi(q_i) z + eps)` with `Z = sum_j phi(k_j)^T v_j` and `z = sum_j phi(k_j)^T`.

    The causal sums end at j = i (Katharopoulos et al., equation 8; equation 3.7 of Reizin's thesis, Fast Algorithms
    for Attention Mechanism, lets them run over all keys: a slip). There is no 1 / sqrt(h). Padded keys lose their
    features, not only their vectors (phi(0) = 1 would stay in the denominator). Below -17 the official `elu(x) + 1`
    is zero in float32, here it is `exp(x)`; the "linear" of the Skeinformer code has no denominator and is another
    function.

    Args:
        eps: added to the sum of a row, which therefore is a little less than 1 after the division.
        block_size: b of the block algorithm; speed depends on it, the result does not. None is what the device likes:
            128 on a CPU, 512 there without a causal mask; on a GPU, whose kernels need 16 at least, as many as
            features, from 128 to 512.
    """

    info = AttentionInfo(
        name="linear",
        paper="Katharopoulos et al. 2020 (Transformers are RNNs), section 3.2",
        approximates=None,
        causal=True,
        padding=True,
        cross=True,
        random=False,
        complexity="O(n h^2)",
        decode=True,
        implementations=("reference", "fused"),
    )

    def __init__(self, *, eps: float = 1e-6, block_size: int | None = None, **common: Any) -> None:
        super().__init__(**common)
        self.eps = check_float("eps", eps, minimum=0)
        self.block_size = None if block_size is None else check_int("block_size", block_size)

    def features(self, x: Tensor) -> Tensor:
        """`phi(x) = elu(x) + 1`, `(batch, heads, seq_len, head_dim)`, positive."""
        above = x.relu()
        # `x - above` is x clamped to 0 from above, with a slope of 1 at 0: that of `clamp` there is torch's choice.
        return (x - above).exp() + above

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        return normalised_feature_product(
            self.features(query),
            zero_padding(self.features(key), padding),
            value,
            bias=self.eps,
            causal=self.causal,
            block_size=self.block_size,
        )

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        return normalised_product(
            query,
            key,
            value,
            features=Features(lambda x, _: (self.features(x), None)),
            padding=padding,
            bias=self.eps,
            causal=self.causal,
            block_size=self.block_size,
        )

    def _refusal(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> str | None:
        return refusal_of(query, self.head_dim, block_size=self.block_size)

    def _new_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> FeatureSums:
        return FeatureSums(batch_size, self.num_heads, self.head_dim, self.head_dim, device, dtype, split=True)

    def _absorb(self, state: FeatureSums, key: Tensor, value: Tensor, padding: Tensor | None) -> None:
        state.add(zero_padding(self.features(key), padding), value)

    def _extend(self, state: FeatureSums, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        self.executed = Executed("reference")
        key_features = zero_padding(self.features(key), padding)
        return state.extend(self.features(query), key_features, value, bias=self.eps)

    def _next(self, state: FeatureSums, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self._run(self._step, self._fused_step, self._step_refusal, state, query, key, value)

    def _step(self, state: FeatureSums, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return state.next(self.features(torch.cat([query, key], 2)), value, bias=self.eps)

    def _read(self, state: FeatureSums, query: Tensor) -> Tensor:
        return state.read(self.features(query), self.eps)

    def _fused_step(self, state: FeatureSums, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, str]:
        from attention_zoo.ops.decoding.triton import step_linear

        return step_linear(state, query, key, value, eps=self.eps), "triton"

    def _step_refusal(self, state: FeatureSums, query: Tensor, key: Tensor, value: Tensor) -> str | None:
        return tiles.refusal_of(query)

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        """The normalised kernel matrix; a row sums to S / (S + eps)."""
        weights = self.features(query) @ self.features(key).mT
        return normalise_by_sum(weights.masked_fill(~visible, 0), self.eps)

    @property
    def telling_length(self) -> int:
        """Several blocks and a part of one."""
        return blocks_and_a_part(self.block_size or default_block_size(self.device, causal=self.causal))

    def _flops(self, seq_len: int) -> int:
        """Both products with the state, and the diagonal blocks of the causal form."""
        h, causal = self.head_dim, self.causal
        if self._fuses_here(seq_len):
            return fused_flops(seq_len, h, h, self.device, causal=causal, block_size=self.block_size)
        block_size = self.block_size or default_block_size(self.device, causal=causal)
        return product_flops(seq_len, h, h + 1, causal=causal, block_size=block_size)
