"""Linear-time operators of the fla-core package (Yang and Zhang 2024, Flash Linear Attention).

These are the operators, not the layers around them: they take queries, keys and values only. Decays and step sizes that
the papers compute from the hidden state are parameters here, one for each head or channel, with the papers' usual
initial values. Operators that need further projections of the hidden state (slots, second keys) are left out.

All are linear in the values and see the past only. A padded position does not change the state, and does not decay it:
other positions get the same output as without it.
"""

import importlib
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_zoo.base import Attention, Rows
from attention_zoo.info import AttentionInfo
from attention_zoo.ops.masking import zero_padding
from attention_zoo.registry import register
from attention_zoo.third_party.packages import require_package, usual_defaults

CHUNK = 64  # tokens per chunk in the package's chunked functions


class Function(NamedTuple):
    """A function of the package, and how it is called.

    `decay` is the name of its argument for log-decays, None if it has none. `heads_first`: it takes `(batch, heads,
    seq_len, ...)` as we do, instead of `(batch, seq_len, heads, ...)`. `knows_heads`: the function of a head depends on
    the head's index.
    """

    module: str
    name: str
    decay: str | None = None
    heads_first: bool = False
    knows_heads: bool = False
    options: Mapping[str, Any] = {}


def _info(name: str, paper: str, complexity: str = "O(n h^2)", padding: bool = True) -> AttentionInfo:
    return AttentionInfo(
        name=name,
        paper=f"{paper}; Yang, Zhang 2024 (fla)",
        causal=True,
        bidirectional=False,
        padding=padding,
        complexity=complexity,
        package="fla-core",
        implementations=("reference", "fused"),
        # The package's own references compute in float32.
        dtypes=(torch.float32, torch.bfloat16),
    )


class FlaAttention(Attention):
    """An operator of fla-core: `reference` is its own plain PyTorch function, `fused` its Triton kernel on a GPU.

    `auto` chooses by the device of the input, and `executed` names the kernel. Scores are scaled by
    1/sqrt(head_dim), the default of all functions of the package.

    Raises:
        UnsupportedError: the package is not installed, `causal=False`, or `impl=fused` without a GPU.
    """

    reference: ClassVar[Function]
    fused: ClassVar[Function]
    has_beta: ClassVar[bool] = False
    # Weight decay of a logarithm would draw every rate towards 1, a memory of one token.
    no_weight_decay: ClassVar[tuple[str, ...]] = ("log_rate",)
    # Products of a vector with the h x h state per token: one to write, one to read; 0 if there is no state.
    state_products: ClassVar[int] = 2

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        require_package(self.info, "fla", "triton")
        rate = self._initial_rate()
        self.log_rate = None if rate is None else nn.Parameter(rate.log())
        self.beta_logit = nn.Parameter(torch.zeros(self.num_heads)) if self.has_beta else None

    def _initial_rate(self) -> Tensor | None:
        """The learned decay rates, `(heads,)` or `(heads, head_dim)`: a state decays by `exp(-rate)` each token."""
        return None

    def _log_decay(self, device: torch.device) -> Tensor | None:
        """The logarithm of the decay per token, shaped like the rates."""
        return None if self.log_rate is None else -self.log_rate.float().exp()

    def _features(self, x: Tensor) -> Tensor:
        """The vectors that the operator takes as queries or keys."""
        return x

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        return self._call(self.reference, query, key, value, padding)

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        return self._call(self.fused, query, key, value, padding), f"{self.fused.module}.{self.fused.name}"

    def _why_not_fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> str | None:
        device = query.device.type
        return None if device == "cuda" else f"the kernels of fla-core need a GPU, the input is on {device}"

    def _matrix(self, query: Tensor, key: Tensor, value: Tensor | None, padding: Tensor | None, rows: Rows) -> Tensor:
        """The reference's outputs for the unit vectors as values: the operator is linear in the values."""
        keys = key.shape[2]
        basis = torch.eye(keys, dtype=key.dtype, device=key.device).expand(*key.shape[:2], keys, keys)
        return self._call(self.reference, query, key, basis, padding)[:, :, rows]

    def _output_rows(self, query: Tensor, key: Tensor, value: Tensor, rows: Tensor, item: int, batch: int) -> Tensor:
        # The matrix would take n times as long.
        return self._attend(query, key, value, None)[:, :, rows]

    def _call(self, function: Function, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        dtype = query.dtype
        if function is self.reference:
            precision = torch.promote_types(dtype, torch.float32)
            query, key, value = (x.to(precision) for x in (query, key, value))
        tensors = {"q": self._features(query), "k": self._features(key), "v": value}
        log_decay = self._log_decay(key.device)
        if function.decay is not None and log_decay is not None:
            tensors[function.decay] = self._at_every_position(log_decay, key)
        if self.beta_logit is not None:
            tensors["beta"] = self._at_every_position(self.beta_logit.float().sigmoid(), key)
        tensors = {name: x if name == "q" else _zero_padding(x, padding) for name, x in tensors.items()}
        # The package copies tensors that are not contiguous. With each head as a batch item they are contiguous.
        folds = not (function.heads_first or function.knows_heads) and query.is_contiguous()
        if folds:
            tensors = {name: x.flatten(0, 1).unsqueeze(2) for name, x in tensors.items()}
        elif not function.heads_first:
            tensors = {name: x.transpose(1, 2) for name, x in tensors.items()}
        with usual_defaults():
            out = _imported(function)(**tensors, **function.options)
        out = out[0] if isinstance(out, tuple) else out
        if folds:
            out = out.squeeze(2).unflatten(0, key.shape[:2])
        elif not function.heads_first:
            out = out.transpose(1, 2)
        return out.to(dtype)

    def _at_every_position(self, x: Tensor, key: Tensor) -> Tensor:
        """`(heads, ...)` as `(batch, heads, seq_len, ...)`."""
        return x.to(key.device)[None, :, None].expand(*key.shape[:3], *x.shape[1:])

    def _test_blocks(self) -> tuple[int, int]:
        return CHUNK, 3

    def _flops(self, seq_len: int) -> int:
        """The recurrent form if there is a state (kernels need more FLOPs in fewer steps), else two n^2 h products."""
        if self.state_products == 0:
            return 4 * seq_len**2 * self.head_dim
        return seq_len * self.state_products * 2 * self.head_dim**2


class DeltaAttention(FlaAttention):
    """The delta rule: writes `beta (v_t - S k_t)`, the state's error at the key, instead of `v_t`.

    Queries and keys are normalised to length 1: otherwise the state would explode (Yang et al. 2024, section 3.3).
    beta starts at sigmoid(0) = 1/2 and is learned for each head.
    """

    has_beta = True
    state_products = 3

    def _features(self, x: Tensor) -> Tensor:
        return (x * (x.float().square().sum(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)


@register
class FlaRetention(FlaAttention):
    """Linear attention whose state decays by the fixed factor `1 - 2^(-5 - head)`.

    The package's functions take no decay per position, so padding would change distances; it is refused.
    """

    info = _info("fla_retention", "Sun et al. 2023 (RetNet), section 2.1", padding=False)
    reference = Function("fla.ops.retention.naive", "naive_retention", heads_first=True)
    fused = Function("fla.ops.retention", "chunk_retention", knows_heads=True)


@register
class FlaLightningAttn(FlaAttention):
    """The state decays by the fixed `exp(-8 head / heads)`, as in its first layer. Padding is refused, as in retention.

    The package has no plain function of this name: the reference is that of simple_gla with these decays.
    """

    info = _info("fla_lightning_attn", "Qin et al. 2024 (Lightning Attention-2)", padding=False)
    reference = Function("fla.ops.simple_gla.naive", "naive_chunk_simple_gla", decay="g")
    fused = Function(
        "fla.ops.lightning_attn", "chunk_lightning_attn", knows_heads=True, options={"layer_idx": 0, "num_layers": 1}
    )

    def _log_decay(self, device: torch.device) -> Tensor:
        return -8 / self.num_heads * torch.arange(self.num_heads, device=device)


@register
class FlaLinearAttn(FlaAttention):
    """Linear attention with features `elu(x) + 1`, normalised by the sum of the weights."""

    info = _info("fla_linear_attn", "Katharopoulos et al. 2020, sections 3.2 and 3.3")
    reference = Function("fla.ops.linear_attn.naive", "naive_recurrent_linear_attn", options={"normalize": True})
    fused = Function("fla.ops.linear_attn", "chunk_linear_attn", options={"normalize": True})

    def _features(self, x: Tensor) -> Tensor:
        return F.elu(x) + 1


@register
class FlaSimpleGla(FlaAttention):
    """One learned decay per head, as in Mamba-2; initial rates as in gated_delta_rule."""

    info = _info("fla_simple_gla", "Dao, Gu 2024 (Mamba-2)")
    reference = Function("fla.ops.simple_gla.naive", "naive_chunk_simple_gla", decay="g")
    fused = Function("fla.ops.simple_gla", "chunk_simple_gla", decay="g")

    def _initial_rate(self) -> Tensor:
        return _mamba_rate(self.num_heads)


@register
class FlaGla(FlaAttention):
    """One learned decay per channel of the keys; all start at `sigmoid(0)^(1/16)`."""

    info = _info("fla_gla", "Yang et al. 2024 (Gated Linear Attention), sections 4.1 and 4.4")
    reference = Function("fla.ops.gla.naive", "naive_recurrent_gla", decay="gk")
    fused = Function("fla.ops.gla", "chunk_gla", decay="g")

    def _initial_rate(self) -> Tensor:
        return torch.full((self.num_heads, self.head_dim), math.log(2) / 16)


@register
class FlaDeltaRule(DeltaAttention):
    """The delta rule without decay."""

    info = _info(
        "fla_delta_rule", "Yang et al. 2024 (Parallelizing Linear Transformers with the Delta Rule), section 2.2"
    )
    reference = Function("fla.ops.delta_rule.naive", "delta_rule_recurrence", heads_first=True)
    fused = Function("fla.ops.delta_rule", "chunk_delta_rule")


@register
class FlaGatedDeltaRule(DeltaAttention):
    """The delta rule on a state that decays by one learned factor per head.

    The package's layer draws the initial rates; here they are spread evenly over the same range.
    """

    info = _info("fla_gated_delta_rule", "Yang, Kautz, Hatamizadeh 2025 (Gated DeltaNet), section 3.1")
    reference = Function("fla.ops.gated_delta_rule.naive", "naive_chunk_gated_delta_rule", decay="g")
    fused = Function("fla.ops.gated_delta_rule", "chunk_gated_delta_rule", decay="g")

    def _initial_rate(self) -> Tensor:
        return _mamba_rate(self.num_heads)


@register
class FlaKda(DeltaAttention):
    """The delta rule on a state that decays by one learned factor per channel of the keys.

    The initial rates are those of Gated DeltaNet per head, times a step size per channel, spread over its range.
    """

    info = _info("fla_kda", "Kimi Team 2025 (Kimi Linear), section 3")
    reference = Function("fla.ops.kda.naive", "naive_recurrent_kda", decay="g")
    fused = Function("fla.ops.kda", "chunk_kda", decay="g")

    def _initial_rate(self) -> Tensor:
        return _mamba_rate(self.num_heads)[:, None] * 10 ** (2 * _quantiles(self.head_dim) - 1)


@register
class FlaBased(FlaAttention):
    """Weights `1 + s + s^2/2` of the scaled scores s, normalised: the Taylor expansion of exp.

    Both functions of the package compute the n x n weights, block by block on a GPU (its linear-time kernel takes
    head_dim <= 16 only). A key of zeros has weight 1, so padding cannot be zeroed away; it is refused.
    """

    info = _info("fla_based", "Arora et al. 2024 (Based)", complexity="O(n^2 h)", padding=False)
    state_products = 0
    reference = Function("fla.ops.based.naive", "naive_parallel_based", heads_first=True)
    fused = Function("fla.ops.based", "parallel_based")


@register
class FlaRebased(FlaAttention):
    """Weights `s^2` of the scaled scores s, divided by 1e-6 plus their sum; without the layer's learned affine map.

    Both functions of the package compute the n x n weights, block by block on a GPU.
    """

    info = _info("fla_rebased", "Aksenov et al. 2024 (ReBased)", complexity="O(n^2 h)")
    state_products = 0
    reference = Function("fla.ops.rebased.naive", "naive_parallel_rebased", heads_first=True)
    # Its default, 1e-5, differs from the reference's.
    fused = Function("fla.ops.rebased", "parallel_rebased", options={"eps": 1e-6})


def _imported(function: Function) -> Callable[..., Any]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Triton is not supported on current platform")
        return getattr(importlib.import_module(function.module), function.name)


def _quantiles(count: int) -> Tensor:
    """Quantiles of the uniform distribution on [0, 1]: nearly the averages of `count` sorted draws."""
    return (torch.arange(count) + 0.5) / count


def _mamba_rate(heads: int) -> Tensor:
    """`A dt` with A uniform in [0, 16] and dt at 0.01, the middle of its logarithmic range from 0.001 to 0.1."""
    return 16 * _quantiles(heads) * 0.01


def _zero_padding(x: Tensor, padding: Tensor | None) -> Tensor:
    """`zero_padding` for `(batch, heads, seq_len)` tensors too."""
    return zero_padding(x, padding) if x.dim() == 4 else zero_padding(x[..., None], padding)[..., 0]
