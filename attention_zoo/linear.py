"""Linear attention with `phi(x) = elu(x) + 1`: Katharopoulos et al. 2020, Transformers are RNNs, section 3.2."""

from typing import Any

from torch import Tensor

from attention_zoo.checks import check_float
from attention_zoo.feature_map import FeatureMapAttention
from attention_zoo.info import AttentionInfo
from attention_zoo.ops import launching
from attention_zoo.ops.decoding.states import FeatureSums
from attention_zoo.registry import register

if launching.HAS_KERNELS:
    from attention_zoo.ops.decoding.triton import step_linear


@register
class Linear(FeatureMapAttention):
    """`out_i = phi(q_i) Z / (phi(q_i) z + eps)` with `Z = sum_j phi(k_j)^T v_j` and `z = sum_j phi(k_j)^T`.

    The causal sums end at j = i (Katharopoulos et al., equation 8; equation 3.7 of Reizin's thesis, Fast Algorithms
    for Attention Mechanism, sums over all keys: a slip). There is no 1 / sqrt(h). Padded keys have features of zero,
    not only vectors of zero (phi(0) = 1 would stay in the denominator). Below -17.4 the official `elu(x) + 1` is zero
    in float32, here it is `exp(x)`. The "linear" of the Skeinformer code has no denominator and is another function.

    Args:
        eps: added to the denominator, so that the weights of a row sum to a little less than 1.
        block_size: b of the block algorithm; the speed depends on it, the result does not. None picks a fast one: 128
            on a CPU (512 if not causal); on a GPU the number of features, at least 128 and at most 512. The GPU
            kernels need at least 16.
    """

    info = AttentionInfo(
        name="linear",
        paper="Katharopoulos et al. 2020 (Transformers are RNNs), section 3.2",
        causal=True,
        padding=True,
        cross=True,
        complexity="O(n h^2)",
        decode=True,
        implementations=("reference", "fused"),
    )

    def __init__(self, *, eps: float = 1e-6, block_size: int | None = None, **common: Any) -> None:
        super().__init__(block_size=block_size, bias=check_float("eps", eps, minimum=0), **common)
        self.num_features = self.head_dim

    def features(self, x: Tensor) -> Tensor:
        """`phi(x) = elu(x) + 1`, `(batch, heads, seq_len, head_dim)`, positive."""
        above = x.relu()
        # `x - above` is min(x, 0) with a slope of 1 at 0; the slope of `clamp` there is torch's choice.
        return (x - above).exp() + above

    def _fused_step(self, state: FeatureSums, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, str]:
        return step_linear(state, query, key, value, eps=self.bias), "triton"
