"""Performer (FAVOR+): Choromanski et al. 2021, Rethinking Attention with Performers, sections 2.3 and 2.4."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attention_zoo.checks import check_bool, check_choice, check_float, check_int
from attention_zoo.feature_map import FeatureMapAttention
from attention_zoo.info import AttentionInfo
from attention_zoo.ops import launching
from attention_zoo.ops.decoding import tiles
from attention_zoo.ops.decoding.states import FeatureSums
from attention_zoo.ops.draws import integers, normal, orthogonal_features
from attention_zoo.ops.feature_product.blocks import Features, Pull
from attention_zoo.ops.feature_product.tiles import padded
from attention_zoo.ops.gradients import in_a_backward_pass
from attention_zoo.registry import register

if launching.HAS_KERNELS:
    from attention_zoo.ops.decoding.triton import step_exponential
    from attention_zoo.ops.random_features.triton import exponential_features

CAUSAL_ALGORITHMS = ("block", "cumulative_sum")


@register
class Performer(FeatureMapAttention):
    """Softmax attention by positive random features `phi(x) = exp(w x - |x|^2 / 2) / sqrt(m)`, x scaled by sqrt(scale).

    The official code subtracts the largest exponent over all keys, which leaks the future into the past. Here each key
    has its own maximum t, and causal sums are relative to the running maximum of t; both cancel in the normalised
    output. The official orthogonal features lack the signs that make them Haar, and are biased; these are not.
    Padded keys have features of zero, not only vectors of zero (phi(0) > 0 would stay in the denominator).

    Args:
        num_features: m.
        orthogonal: orthogonal blocks of features instead of independent ones.
        eps: added to every feature, relative to the largest feature of its own query or key.
        causal_algorithm: `block` lower-triangular multiplication, or the prefix sum over single positions
            (`cumulative_sum`) of the original implementation, slow.
        block_size: b of the block algorithm; the speed depends on it, the result does not. None picks a fast one: 128
            on a CPU (512 if not causal); on a GPU the padded number of features, at least 128 and at most 512. The GPU
            kernels need at least 16.
        scale: c in `exp(c <q, k>)`; None is 1/sqrt(head_dim). The code behind Skeinformer's tables divides queries and
            keys by h^(1/4) twice, which is 1/head_dim.
        redraw_interval: forward passes in training mode that share a projection; None never redraws. Each projection
            follows from the seed and its number; a new one makes a decoding state useless, as `resample` does.
            Evaluation does not redraw. performer-pytorch waits one forward more from its second draw on.
            With activation checkpoints each module must be called once for each backward pass: a pass that is computed
            again has the projection of that moment. Under `torch.compile` the count is outside of the graph.
    """

    info = AttentionInfo(
        name="performer",
        paper="Choromanski et al. 2021 (Performer), sections 2.3 and 2.4",
        approximates="softmax",
        causal=True,
        padding=True,
        cross=True,
        random=True,
        complexity="O(n m h)",
        decode=True,
        size="num_features",
        implementations=("reference", "fused"),
    )

    has_log_scale = True

    def __init__(
        self,
        *,
        num_features: int = 256,
        orthogonal: bool = True,
        eps: float = 1e-6,
        causal_algorithm: str = "block",
        block_size: int | None = None,
        scale: float | None = None,
        redraw_interval: int | None = None,
        **common: Any,
    ) -> None:
        super().__init__(block_size=block_size, **common)
        self.scale = self.head_dim**-0.5 if scale is None else check_float("scale", scale, above=0)
        self.num_features = check_int("num_features", num_features)
        self.orthogonal = check_bool("orthogonal", orthogonal)
        self.eps = check_float("eps", eps, minimum=0)
        check_choice("causal_algorithm", causal_algorithm, CAUSAL_ALGORITHMS)
        if causal_algorithm == "cumulative_sum":
            self.block_size = 1
        self.redraw_interval = None if redraw_interval is None else check_int("redraw_interval", redraw_interval)
        self.projection: Tensor
        self.register_buffer("projection", torch.empty(num_features, self.head_dim))
        self._draw()

    def _draw(self) -> None:
        self._forwards = 0
        self._redraw(0)

    @torch.inference_mode(False)
    def _redraw(self, number: int) -> None:
        generator = self._generator()
        if number:
            seeds = integers(2**63 - 1, (number,), generator)
            generator.manual_seed(int(seeds[-1]))
        size = self.num_features, self.head_dim
        drawn = orthogonal_features(*size, generator) if self.orthogonal else normal(size, generator)
        # Not in place: the backward pass of an earlier forward may still need the old projection.
        self.projection = drawn.to(self.projection)

    def _redraw_if_due(self) -> None:
        """In training mode, draw a new projection if it is due."""
        if self.redraw_interval is None or not self.training:
            return
        if torch.compiler.is_compiling():
            from attention_zoo.ops import uncompiled

            uncompiled.call(self._count_forward, self.redraw_interval)
        else:
            self._count_forward(self.redraw_interval)

    def _count_forward(self, redraw_interval: int) -> None:
        """Count a pass, and redraw in time; a checkpoint that computes a pass again is no other."""
        if in_a_backward_pass():
            return
        number, shared_by = divmod(self._forwards, redraw_interval)
        if number and not shared_by:
            self._redraw(number)
        self._forwards += 1

    def get_extra_state(self) -> Tensor:
        """The seed and the number of forward passes so far, for the state_dict: they determine the next projection."""
        return torch.tensor([self.seed, self._forwards], device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Load the schedule from a state_dict; the projection is a buffer of its own."""
        self.seed, self._forwards = state.tolist()

    def _scaled_features(self, x: Tensor, projection: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`phi(x) exp(-t)` and the log scale `t = max_f log phi_f(x) sqrt(m)`, `(..., seq_len)`."""
        x = x.to(torch.promote_types(x.dtype, torch.float32)) * self.scale**0.5
        exponents = x @ (self.projection if projection is None else projection).to(x.dtype).T
        largest = exponents.amax(-1, keepdim=True)
        # In place if autograd does not need the intermediate results.
        if torch.is_grad_enabled():
            relative = (exponents - largest).exp()
            features = (relative + self.eps) * self.num_features**-0.5
        else:
            factor = self.num_features**-0.5
            features = exponents.sub_(largest - math.log(factor)).exp_().add_(self.eps * factor)
        return features, largest.squeeze(-1) - x.square().sum(-1) / 2

    def features(self, x: Tensor) -> Tensor:
        """`phi(x)`, `(batch, heads, seq_len, m)`: for eps = 0, `E <phi(q), phi(k)> = exp(scale <q, k>)`."""
        features, log_scale = self._scaled_features(x)
        return features * log_scale.exp()[..., None]

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        self._redraw_if_due()
        return super()._attend(query, key, value, padding)

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        self._redraw_if_due()
        return super()._fused(query, key, value, padding)

    def _fused_features(self, query: Tensor) -> Features:
        if launching.on_gpu(query):
            return Features(self._features_by_kernels)
        return Features(self._features_in_dtype, [self.projection], self._features_with_pull)

    def _features_in_dtype(self, x: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        features, log_scale = self._scaled_features(x, *parameters)
        return features.to(x.dtype), log_scale

    def _features_by_kernels(self, x: Tensor, _: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """`_scaled_features` on a GPU, padded with zeros for the kernels of the product."""
        columns = padded(self.num_features)
        return exponential_features(x, self.projection, scale=self.scale, eps=self.eps, columns=columns)

    def _features_with_pull(self, x: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor, Pull]:
        """`_scaled_features` with its backward pass in closed form: a third of autograd's passes over memory."""
        precision, (projection,) = torch.promote_types(x.dtype, torch.float32), parameters
        projection, x_scaled = projection.to(precision), x.to(precision) * self.scale**0.5
        features, factor = x_scaled @ projection.T, self.num_features**-0.5
        largest, where = features.max(-1, keepdim=True)
        features.sub_(largest - math.log(factor)).exp_().add_(self.eps * factor)

        def pull(d_features: Tensor, d_scale: Tensor | None = None) -> tuple[Tensor]:
            d_exponents = features.sub_(self.eps * factor).mul_(d_features)
            d_largest = -d_exponents.sum(-1, keepdim=True)
            if d_scale is not None:
                d_largest += d_scale[..., None]
            d_x = d_exponents.scatter_add_(-1, where, d_largest) @ projection
            if d_scale is not None:
                d_x -= d_scale[..., None] * x_scaled
            return (d_x.mul_(self.scale**0.5).to(x.dtype),)

        return features.to(x.dtype), largest.squeeze(-1) - x_scaled.square().sum(-1) / 2, pull

    def _fused_step(self, state: FeatureSums, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, str]:
        options: dict[str, Any] = {"projection": self.projection, "scale": self.scale, "eps": self.eps}
        return step_exponential(state, query, key, value, **options), "triton"

    def _why_no_fused_step(self, state: FeatureSums, query: Tensor, key: Tensor, value: Tensor) -> str | None:
        return tiles.why_unsupported(query, self.num_features)

    def _feature_flops(self) -> int:
        return 2 * self.num_features * self.head_dim
