"""PolySketch attention: PolySketchFormer, ICML version sections 2.2 to 3.2 (Algorithms 1 and 2) and v1 section 2."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from attention_zoo.checks import check_bool, check_choice, check_float, check_int, check_power_of_two
from attention_zoo.feature_map import FeatureMapAttention
from attention_zoo.info import AttentionInfo, UnsupportedError
from attention_zoo.ops import launching
from attention_zoo.ops.decoding import tiles
from attention_zoo.ops.decoding.states import BlockState, FeatureSums, KeyValueCache
from attention_zoo.ops.draws import normal, sampled_hadamard
from attention_zoo.ops.feature_product.blocks import AS_THEY_ARE, Features
from attention_zoo.ops.feature_product.choice import is_quadratic
from attention_zoo.ops.feature_product.reference import LocalInputs
from attention_zoo.ops.masking import zero_padding
from attention_zoo.ops.random_features.tiles import why_unsupported as why_no_sketch
from attention_zoo.ops.sketch_networks import cpu
from attention_zoo.ops.sketch_networks.tiles import why_unsupported as why_no_networks
from attention_zoo.registry import register

if launching.HAS_KERNELS:
    from attention_zoo.ops.decoding.triton import read_block, step_features, step_sketched
    from attention_zoo.ops.random_features.triton import random_sketch
    from attention_zoo.ops.sketch_networks.triton import sketch_networks

SKETCHES = ("gaussian", "learned", "srht")
EXPANSION = 8  # hidden width of the learned networks over r, ICML version, Appendix D


class Sketch(nn.Module):
    """The un-tensored sketch of degree p, from two independent sketches M1, M2 of degree p/2; for p = 2 M1 = M2 = x."""

    def __init__(self, kind: str, degree: int, head_dim: int, sketch_size: int, groups: int) -> None:
        super().__init__()
        self.kind, self.head_dim, self.sketch_size = kind, head_dim, sketch_size
        half, count = degree // 2, 2 if degree > 2 else 0
        children = (type(self)(kind, half, head_dim, sketch_size, groups) for _ in range(count))
        self.children_sketches = nn.ModuleList(children)
        self.width = sketch_size if half > 1 else head_dim  # of M1 and M2

    def draw(self, generator: torch.Generator) -> None:
        """Draw this level and the levels below it."""
        for child in self.children_sketches:
            assert isinstance(child, Sketch)
            child.draw(generator)


class RandomSketch(Sketch):
    """`PSWN(A, r, p) = sqrt(1/r) [(M1 G1) o (M2 G2)]`, recursively.

    Gaussian G: ICML version, Algorithm 1. SRHT (v1, definition 2.4): G is a sampled Hadamard matrix, after a base SRHT
    of the input. `<L_i, R_j>` is unbiased for `<q_i, k_j>^degree`; its square is not unbiased for the square.
    The official code also divides both sketches by sqrt(r), so its weights are r^2 times too small; we do not.
    """

    def __init__(self, kind: str, degree: int, head_dim: int, sketch_size: int, groups: int) -> None:
        super().__init__(kind, degree, head_dim, sketch_size, groups)
        self.matrices: Tensor
        self.register_buffer("matrices", torch.empty(groups, self.width, 2, sketch_size))  # G1 and G2

    def draw(self, generator: torch.Generator) -> None:
        """Draw the matrices of this level and of the levels below it."""
        super().draw(generator)
        for of_all_heads in self.matrices.unbind(2):
            for matrix in of_all_heads:
                matrix.copy_(self._matrix(generator))

    def _matrix(self, generator: torch.Generator) -> Tensor:
        if self.kind == "gaussian":
            return normal((self.width, self.sketch_size), generator)
        mixed = sampled_hadamard(self.sketch_size, self.sketch_size, generator)
        if self.children_sketches:
            return mixed
        return sampled_hadamard(self.head_dim, self.sketch_size, generator) @ mixed / math.sqrt(self.sketch_size)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, heads, seq_len, h)` -> `(batch, heads, seq_len, r)`."""
        if self.children_sketches:
            both = zip(self.children_sketches, self.matrices.unbind(2), strict=True)
            first, second = (_project(child(x), matrices) for child, matrices in both)
        else:
            first, second = _project(x, self.matrices.flatten(2)).chunk(2, -1)
        return first * second * self.sketch_size**-0.5

    def forward_fused(self, x: Tensor, norm: nn.LayerNorm | None, scale: float) -> Tensor:
        """`forward` of `sqrt(scale) norm(x)`, with one kernel per level."""
        factor, children = self.sketch_size**-0.5, self.children_sketches
        if not children:
            return random_sketch(x, None, norm, self.matrices, scale * factor)
        first, second = (child.forward_fused(x, norm, scale) for child in children if isinstance(child, RandomSketch))
        return random_sketch(first, second, None, self.matrices, factor)


class LearnedSketch(Sketch):
    """`sqrt(r) tanh(sqrt(1/r) [f1(M1) o f2(M2)])`, recursively: ICML version, Algorithm 2 and Appendix D.

    The released code has networks for degree 4 only; this is the recursion of the paper for any power of two.
    """

    def __init__(self, kind: str, degree: int, head_dim: int, sketch_size: int, groups: int) -> None:
        super().__init__(kind, degree, head_dim, sketch_size, groups)
        self.networks = nn.ModuleList(SketchNetwork(self.width, sketch_size, groups) for _ in range(2))

    def draw(self, generator: torch.Generator) -> None:
        """Initialise the networks of this level and of the levels below it."""
        super().draw(generator)
        for network in self.networks:
            assert isinstance(network, SketchNetwork)
            network.draw(generator)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, heads, seq_len, h)` -> `(batch, heads, seq_len, r)`, bounded by sqrt(r)."""
        first, second = (child(x) for child in self.children_sketches) if self.children_sketches else (x, x)
        root = math.sqrt(self.sketch_size)
        return root * torch.tanh(self.networks[0](first) * self.networks[1](second) / root)

    def forward_fused(self, x: Tensor) -> Tensor:
        """`forward`, with one operation per level, on a GPU if it has a kernel for this input."""
        on_gpu = launching.on_gpu(x)
        if on_gpu and why_no_networks(x, self.sketch_size) is not None:
            return self(x)
        inputs = [child.forward_fused(x) for child in self.children_sketches if isinstance(child, LearnedSketch)] or [x]
        return (sketch_networks if on_gpu else cpu.sketch_networks)(*inputs, **self._stacked())

    def _stacked(self) -> dict[str, Any]:
        """The parameters of both networks, stacked."""
        layers = zip(*(network.weights for network in self.networks), strict=True)
        norms = zip(*(network.layernorms for network in self.networks), strict=True)
        return {
            "weights": [torch.stack(both) for both in layers],
            "norms": [(torch.stack([f.weight, g.weight]), torch.stack([f.bias, g.bias])) for f, g in norms],
        }


class SketchNetwork(nn.Module):
    """LayerNorm, Dense 8r, gelu, Dense r, LayerNorm, Dense 8r, gelu, Dense r; no biases (ICML version, Appendix D)."""

    def __init__(self, width: int, sketch_size: int, groups: int) -> None:
        super().__init__()
        hidden = EXPANSION * sketch_size
        sizes = [(width, hidden), (hidden, sketch_size), (sketch_size, hidden), (hidden, sketch_size)]
        self.layernorms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(sketch_size)])
        self.weights = nn.ParameterList([nn.Parameter(torch.empty(groups, *size)) for size in sizes])

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        """LeCun normal initialisation (truncated at two standard deviations), as in flax's Dense."""
        for weight in self.weights:
            std = weight.shape[1] ** -0.5 / 0.8796256610342398  # the std of a unit normal truncated at +-2
            drawn = torch.empty(weight.shape, dtype=torch.float32, device=generator.device)
            weight.copy_(nn.init.trunc_normal_(drawn, std=std, a=-2 * std, b=2 * std, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, heads, seq_len, width)` -> `(batch, heads, seq_len, r)`."""
        # One by one: slicing a ParameterList would make new parameters of the tensors of a `functional_call`.
        for layernorm, first in zip(self.layernorms, (0, 2), strict=True):
            hidden = F.gelu(_project(layernorm(x), self.weights[first]), approximate="tanh")
            x = _project(hidden, self.weights[first + 1])
        return x


def _project(x: Tensor, matrices: Tensor) -> Tensor:
    """`x @ matrices`, `(groups, in, out)`; a matrix shared by all heads is one product, not a batch of products."""
    return x @ (matrices[0] if len(matrices) == 1 else matrices)


@register
class Polysketch(FeatureMapAttention):
    """Linear-time polynomial attention: weights `<L_i, R_j>^2 / (bias + sum)` of sketches L, R of queries and keys.

    The squared weights are never negative. Neither the n x n matrix nor the n x r^2 features are ever in memory: the
    causal form is block lower-triangular multiplication. The sketch's bias against exact polynomial attention has a
    closed form (tests). Weights are not rescaled: above degree 8, without a layer norm, `|q| |k|` of a few hundred
    overflows float32; above degree 16, random sketches and local weights do so with one, too.

    Args:
        sketch: `gaussian` (ICML, Algorithm 1), `learned` (Algorithm 2) or `srht` (v1; r and head_dim powers of two).
        sketch_size: r. Degree 2 needs no sketch: its features are the inputs, and r is not used.
        degree: p, a power of two.
        local: exact polynomial weights inside diagonal blocks (ICML, section 3.2); causal only, and the function then
            depends on `block_size`.
        block_size: b. With `local`, None is the ICML version's 1024. Without it only the speed depends on b, and None
            picks a fast one: 256 on a CPU; on a GPU all of a short sequence, of a longer one 512, or 1024 from r = 64.
        qk_layernorm: LayerNorm of queries and keys before a random sketch and before the exact weights. Learned
            networks begin with their own norm; with them the exact weights have one norm for queries and one for keys.
        scale: c in `(c <q, k>)^p`; the norm of a learned sketch undoes it, its exact weights have it.
        bias: added to the sum of a row.
        per_head: one sketch per head (v1) instead of one shared by all (ICML).

    Raises:
        UnsupportedError: `local` without `causal`.
    """

    info = AttentionInfo(
        name="polysketch",
        paper="Kacham, Mirrokni, Zhong 2024 (PolySketchFormer, ICML), sections 2.2 to 3.2; v1 section 2",
        approximates="polynomial",
        causal=True,
        padding=True,
        cross=True,
        random=True,
        cancels=True,
        complexity="O(n (r^2 h + b (r + h)))",
        decode=True,
        size="sketch_size",
        implementations=("reference", "fused"),
    )

    feature_degree = 2

    def __init__(
        self,
        *,
        sketch: str = "gaussian",
        sketch_size: int = 32,
        degree: int = 4,
        local: bool = False,
        block_size: int | None = None,
        qk_layernorm: bool = True,
        scale: float = 1.0,
        bias: float = 1.0,
        per_head: bool = False,
        **common: Any,
    ) -> None:
        default_block_size = 1024 if local else None
        super().__init__(block_size=default_block_size if block_size is None else block_size, **common)
        check_choice("sketch", sketch, SKETCHES)
        self.sketch_size = check_int("sketch_size", sketch_size)
        self.degree = check_power_of_two("degree", degree, 2)
        if check_bool("local", local) and not self.causal:
            raise UnsupportedError("local=true: polysketch has exact diagonal blocks only with causal=true")
        self.local = local
        self.scale = check_float("scale", scale, above=0)
        self.bias = check_float("bias", bias, minimum=0)
        groups = self.num_heads if check_bool("per_head", per_head) else 1
        if sketch == "srht":
            check_power_of_two("sketch_size", sketch_size)
            check_power_of_two("head_dim", self.head_dim)
        self.is_learned = sketch == "learned" and degree > 2
        self.sketch: nn.Module = nn.Identity()
        self.num_features = sketch_size if degree > 2 else self.head_dim
        if degree > 2:
            make = LearnedSketch if self.is_learned else RandomSketch
            self.sketch = make(sketch, degree // 2, self.head_dim, sketch_size, groups)
        norm = nn.LayerNorm(self.head_dim) if check_bool("qk_layernorm", qk_layernorm) else nn.Identity()
        self.layernorm = nn.Identity() if self.is_learned else norm
        self.local_norms = nn.ModuleList()
        if local and self.is_learned and qk_layernorm:
            self.local_norms.extend(nn.LayerNorm(self.head_dim) for _ in ("query", "key"))
        self._draw()

    @property
    def weight_degree(self) -> int:
        """p."""
        return self.degree

    def _draw(self) -> None:
        if isinstance(self.sketch, Sketch):
            self.sketch.draw(self._generator())

    def features(self, x: Tensor) -> Tensor:
        """The sketch L of queries or keys, before it is tensored with itself: `(batch, heads, seq_len, r)`."""
        normed = self.layernorm(x)
        return self.sketch(normed if self.scale == 1 else normed * math.sqrt(self.scale))

    def _features_with(self, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """`features` with other tensors as parameters and buffers of the layer norm and the sketch."""
        of_norm, of_sketch = (module.state_dict(keep_vars=True) for module in (self.layernorm, self.sketch))
        norm = dict(zip(of_norm, parameters[: len(of_norm)], strict=True))
        sketch = dict(zip(of_sketch, parameters[len(of_norm) :], strict=True))
        normed = functional_call(self.layernorm, norm, (x,))
        return functional_call(self.sketch, sketch, (normed if self.scale == 1 else normed * math.sqrt(self.scale),))

    def _features_by_kernels(self, x: Tensor) -> Tensor:
        """`features` by kernels where there are any."""
        norm = launching.kernel_norm(self.layernorm)
        if isinstance(self.sketch, RandomSketch) and why_no_sketch(x, self.sketch_size) is None:
            return self.sketch.forward_fused(x if norm is not None else self.layernorm(x), norm, self.scale)
        if isinstance(self.sketch, LearnedSketch):
            return self.sketch.forward_fused(x if self.scale == 1 else x * math.sqrt(self.scale))
        return self.features(x)

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        if launching.on_gpu(query) or not isinstance(self.sketch, LearnedSketch):
            return super()._fused(query, key, value, padding)
        # To compute networks again in the backward pass costs more than to save r numbers per token.
        left, right = self._features_by_kernels(query), self._features_by_kernels(key)
        return self._product(left, right, value, AS_THEY_ARE, padding, self._local(query, key, padding))

    def _local_inputs(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        query_norm, key_norm = self.local_norms or (self.layernorm, self.layernorm)
        return query_norm(query) * self.scale, key_norm(key)

    def _fused_features(self, query: Tensor) -> Features:
        if launching.on_gpu(query):
            return Features(lambda x, _: (self._features_by_kernels(x), None))
        parameters = [x for module in (self.layernorm, self.sketch) for x in module.state_dict(keep_vars=True).values()]
        return Features(lambda x, tensors: (self._features_with(x, tensors), None), parameters)

    def _local(self, query: Tensor, key: Tensor, padding: Tensor | None) -> LocalInputs | None:
        if not self.local:
            return None
        exact_query, exact_key = self._local_inputs(query, key)
        return LocalInputs(exact_query, zero_padding(exact_key, padding), self.degree)

    def _new_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> FeatureSums | BlockState:
        sums = super()._new_state(batch_size, device, dtype)
        if not self.local:
            return sums
        block_size, width = self._block_size(device), self.head_dim + self.num_features
        sizes = batch_size, self.num_heads, width, self.head_dim
        block = KeyValueCache(*sizes, device, dtype, capacity=min(block_size, self.max_seq_len or block_size))
        return BlockState(sums, block, block_size)

    def _append(self, state: FeatureSums | BlockState, key: Tensor, value: Tensor, padding: Tensor | None) -> None:
        if isinstance(state, FeatureSums):
            return super()._append(state, key, value, padding)
        _, exact_key = self._local_inputs(key, key)
        state.add(zero_padding(exact_key, padding), zero_padding(self.features(key), padding), value)

    def _continue(
        self, state: FeatureSums | BlockState, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None
    ) -> Tensor:
        if isinstance(state, FeatureSums):
            return super()._continue(state, query, key, value, padding)
        self._require_reference_to_continue()
        exact_query, exact_key = self._local_inputs(query, key)
        features = self.features(query), zero_padding(self.features(key), padding)
        return state.extend(exact_query, zero_padding(exact_key, padding), *features, value, self.degree, self.bias)

    def _step(self, state: FeatureSums | BlockState, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if isinstance(state, FeatureSums):
            return super()._step(state, query, key, value)
        return self._continue(state, query, key, value, None)

    def _fused_step(
        self, state: FeatureSums | BlockState, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, str]:
        if isinstance(state, BlockState):
            self._append(state, key, value, None)
            exact_query, _ = self._local_inputs(query, query)
            return read_block(state, exact_query, self.features(query), self.degree, self.bias), "triton"
        sketch = self.sketch
        if not isinstance(sketch, RandomSketch) or sketch.children_sketches or not tiles.holds(sketch.matrices):
            both = self.features(torch.cat([query, key], 2))
            return step_features(state, both, value, bias=self.bias), "triton"
        norm = launching.kernel_norm(self.layernorm)
        if norm is None:
            query, key = self.layernorm(query), self.layernorm(key)
        options: dict[str, Any] = {"norm": norm}
        options |= {"scale": self.scale / math.sqrt(self.sketch_size), "bias": self.bias}
        return step_sketched(state, query, key, value, matrices=sketch.matrices, **options), "triton"

    def _row_weights(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        weights = super()._row_weights(query, key, visible, positions)
        if not self.local:
            return weights
        exact_query, exact_key = self._local_inputs(query, key)
        exact = (exact_query @ exact_key.mT) ** self.degree
        block_size = self._block_size(query.device)
        block = torch.arange(key.shape[2], device=key.device) // block_size
        return torch.where(positions[:, None] // block_size == block, exact, weights)

    def _test_blocks(self) -> tuple[int, int]:
        """At least three blocks, and enough that the fast path does not compute every weight."""
        options: dict[str, Any] = {"causal": self.causal, "block_size": self.block_size, "degree": self.feature_degree}
        options["inner"] = self.head_dim if self.local else None
        size, sizes = self._block_size(self.device), (self.num_features, self.head_dim, self.device)
        blocks = (n for n in itertools.count(3) if not is_quadratic(n * size + 1, *sizes, **options))
        return size, next(blocks)

    def _feature_flops(self) -> int:
        return self._sketch_flops(self.degree // 2)

    def _sketch_flops(self, degree: int) -> int:
        if degree == 1:
            return 0
        r, width = self.sketch_size, self.head_dim if degree == 2 else self.sketch_size
        matrix = EXPANSION * r * (width + 3 * r) if self.is_learned else width * r
        return 2 * self._sketch_flops(degree // 2) + 2 * 2 * matrix
