"""PolySketch attention: PolySketchFormer, ICML version sections 2.2 to 3.2 (Algorithms 1 and 2) and v1 section 2."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from attention_zoo.base import Attention, AttentionInfo, Executed, UnsupportedError, blocks_and_a_part, register
from attention_zoo.checks import check_bool, check_choice, check_float, check_int, check_power_of_two
from attention_zoo.ops import launching
from attention_zoo.ops.chunks import by_keys
from attention_zoo.ops.decoding import tiles
from attention_zoo.ops.decoding.states import BlockState, FeatureSums, KeyValueCache
from attention_zoo.ops.feature_product.blocks import Features
from attention_zoo.ops.feature_product.choice import fused_flops, is_quadratic, normalised_product, refusal_of
from attention_zoo.ops.feature_product.reference import (
    Local,
    default_block_size,
    normalised_feature_product,
    product_flops,
)
from attention_zoo.ops.masking import normalise_by_sum, zero_padding
from attention_zoo.ops.random_sketch.tiles import refusal_of as refusal_of_sketch
from attention_zoo.ops.sketch_networks.tiles import refusal_of as refusal_of_networks
from attention_zoo.ops.sketches import gaussian_matrix, sampled_hadamard

SKETCHES = ("gaussian", "learned", "srht")
EXPANSION = 8  # hidden width of the learned networks over r, ICML version, Appendix D


class RandomSketch(nn.Module):
    """`PSWN(A, r, p) = sqrt(1/r) [(M1 G1) o (M2 G2)]`, recursively; M1, M2 are independent sketches of degree p/2.

    Gaussian G: ICML version, Algorithm 1. SRHT (v1, section 2.3): G is a sampled Hadamard matrix, after a base SRHT
    of the input. `<L_i, R_j>` is unbiased for `<q_i, k_j>^degree`; its square is not unbiased for the square.
    The official code divides both sides by sqrt(r), which makes the weights r^2 times too small; we follow the paper.
    """

    def __init__(self, kind: str, degree: int, head_dim: int, sketch_size: int, groups: int) -> None:
        super().__init__()
        self.kind, self.head_dim, self.sketch_size = kind, head_dim, sketch_size
        half = degree // 2
        self.children_sketches = nn.ModuleList(
            RandomSketch(kind, half, head_dim, sketch_size, groups) for _ in range(2 if half > 1 else 0)
        )
        width = sketch_size if half > 1 else head_dim
        self.matrices: Tensor
        self.register_buffer("matrices", torch.empty(groups, width, 2, sketch_size))  # G1 and G2

    def draw(self, generator: torch.Generator) -> None:
        """Fill the matrices of this level and those below."""
        for child in self.children_sketches:
            assert isinstance(child, RandomSketch)
            child.draw(generator)
        for of_all_heads in self.matrices.unbind(2):
            for matrix in of_all_heads:
                matrix.copy_(self._matrix(generator))

    def _matrix(self, generator: torch.Generator) -> Tensor:
        if self.kind == "gaussian":
            return gaussian_matrix(self.matrices.shape[1], self.sketch_size, generator)
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
        """`forward` of `sqrt(scale) norm(x)`, each level by one kernel."""
        from attention_zoo.ops.random_sketch.triton import random_sketch

        factor, children = self.sketch_size**-0.5, self.children_sketches
        if not children:
            return random_sketch(x, None, norm, self.matrices, scale * factor)
        first, second = (child.forward_fused(x, norm, scale) for child in children if isinstance(child, RandomSketch))
        return random_sketch(first, second, None, self.matrices, factor)


class LearnedSketch(nn.Module):
    """`sqrt(r) tanh(sqrt(1/r) [f1(M1) o f2(M2)])`, recursively: ICML version, Algorithm 2 and Appendix D.

    The released code stacks the networks for degree 4 only; this is the recursion of the paper for any power of two.
    """

    def __init__(self, degree: int, head_dim: int, sketch_size: int, groups: int) -> None:
        super().__init__()
        self.sketch_size = sketch_size
        half = degree // 2
        self.children_sketches = nn.ModuleList(
            LearnedSketch(half, head_dim, sketch_size, groups) for _ in range(2 if half > 1 else 0)
        )
        width = sketch_size if half > 1 else head_dim
        self.networks = nn.ModuleList(SketchNetwork(width, sketch_size, groups) for _ in range(2))

    def draw(self, generator: torch.Generator) -> None:
        """Initialise the networks of this level and those below."""
        for module in (*self.children_sketches, *self.networks):
            assert isinstance(module, LearnedSketch | SketchNetwork)
            module.draw(generator)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, heads, seq_len, h)` -> `(batch, heads, seq_len, r)`, bounded by sqrt(r)."""
        first, second = (child(x) for child in self.children_sketches) if self.children_sketches else (x, x)
        root = math.sqrt(self.sketch_size)
        return root * torch.tanh(self.networks[0](first) * self.networks[1](second) / root)

    def forward_fused(self, x: Tensor) -> Tensor:
        """`forward`, each level by one kernel where a GPU has it for such an input."""
        if not launching.on_gpu(x) or refusal_of_networks(x, self.sketch_size) is not None:
            return self(x)
        from attention_zoo.ops.sketch_networks.triton import sketch_networks

        inputs = [child.forward_fused(x) for child in self.children_sketches if isinstance(child, LearnedSketch)] or [x]
        layers = zip(*(network.weights for network in self.networks), strict=True)
        norms = zip(*(network.layernorms for network in self.networks), strict=True)
        return sketch_networks(
            *inputs,
            weights=[torch.stack(both) for both in layers],
            norms=[(torch.stack([f.weight, g.weight]), torch.stack([f.bias, g.bias])) for f, g in norms],
        )


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
        """LeCun normal initialisation (truncated at two standard deviations), as flax's Dense."""
        for weight in self.weights:
            std = weight.shape[1] ** -0.5 / 0.8796256610342398  # the std of a unit normal truncated at +-2
            drawn = torch.empty(weight.shape, dtype=torch.float32, device=generator.device)
            weight.copy_(nn.init.trunc_normal_(drawn, std=std, a=-2 * std, b=2 * std, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, heads, seq_len, width)` -> `(batch, heads, seq_len, r)`."""
        # One by one: a slice of a ParameterList makes parameters of its own of what `functional_call` puts there.
        for layernorm, first in zip(self.layernorms, (0, 2), strict=True):
            x = _project(
                F.gelu(_project(layernorm(x), self.weights[first]), approximate="tanh"), self.weights[first + 1]
            )
        return x


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Its parameters and buffers."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _project(x: Tensor, matrices: Tensor) -> Tensor:
    """`x @ matrices`, `(groups, in, out)`; one matrix for all heads is one product, not a batch of equal ones."""
    return x @ (matrices[0] if len(matrices) == 1 else matrices)


@register
class Polysketch(Attention):
    """Linear-time polynomial attention: weights `<L_i, R_j>^2 / (bias + sum)` of sketches L, R of queries and keys.

    The squared weights are never negative, and never form the n x n matrix or the n x r^2 features: the causal form is
    block lower-triangular multiplication. Its bias against exact polynomial attention has a closed form (tests).
    Weights are not rescaled: beyond degree 8, `|q| |k|` of a few hundred without a layer norm overflows float32.

    Args:
        sketch: `gaussian` (ICML, Algorithm 1), `learned` (Algorithm 2) or `srht` (v1; r and head_dim powers of two).
        sketch_size: r. Degree 2 needs no sketch: its features are the inputs, and r is not used.
        degree: p, a power of two.
        local: exact polynomial weights inside diagonal blocks (ICML, section 3.2); causal only, and the function then
            depends on `block_size`.
        block_size: b. None is the papers' 1024 with `local`; without it only speed depends on b, and None is what the
            device likes: 256 on a CPU; on a GPU the whole of a short sequence, of a longer one 512 or, of r = 64, 1024.
        qk_layernorm: LayerNorm of queries and keys before a random sketch and before the exact weights. The learned
            networks begin with a norm of their own, and have two more for the exact weights of queries and keys.
        scale: c in `(c <q, k>)^p`; a learned sketch does not see it, its exact weights do.
        bias: added to the sum of a row.
        per_head: a sketch for each head (v1) instead of one shared by all (ICML).

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
        super().__init__(**common)
        check_choice("sketch", sketch, SKETCHES)
        self.sketch_size = check_int("sketch_size", sketch_size)
        self.degree = check_power_of_two("degree", degree, 2)
        if check_bool("local", local) and not self.causal:
            raise UnsupportedError("local=true: polysketch has exact diagonal blocks only with causal=true")
        self.local = local
        self.block_size = None if block_size is None else check_int("block_size", block_size)
        self.scale = check_float("scale", scale, above=0)
        self.bias = check_float("bias", bias, minimum=0)
        groups = self.num_heads if check_bool("per_head", per_head) else 1
        if sketch == "srht":
            check_power_of_two("sketch_size", sketch_size)
            check_power_of_two("head_dim", self.head_dim)
        self.is_learned = sketch == "learned" and degree > 2
        self.sketch: nn.Module = nn.Identity()
        if degree > 2:
            arguments = degree // 2, self.head_dim, sketch_size, groups
            self.sketch = LearnedSketch(*arguments) if self.is_learned else RandomSketch(sketch, *arguments)
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

    @property
    def _num_features(self) -> int:
        """r; of degree 2 the features are the inputs."""
        return self.sketch_size if self.degree > 2 else self.head_dim

    def _draw(self) -> None:
        if isinstance(self.sketch, RandomSketch | LearnedSketch):
            self.sketch.draw(self._generator())

    def features(self, x: Tensor) -> Tensor:
        """The sketch L of queries or keys, before it is tensored with itself: `(batch, heads, seq_len, r)`."""
        normed = self.layernorm(x)
        return self.sketch(normed if self.scale == 1 else normed * math.sqrt(self.scale))

    def _features_with(self, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """`features` with other tensors in place of those of the layer norm and the sketch."""
        of_norm, of_sketch = _tensors(self.layernorm), _tensors(self.sketch)
        norm = dict(zip(of_norm, parameters[: len(of_norm)], strict=True))
        sketch = dict(zip(of_sketch, parameters[len(of_norm) :], strict=True))
        normed = functional_call(self.layernorm, norm, (x,))
        return functional_call(self.sketch, sketch, (normed if self.scale == 1 else normed * math.sqrt(self.scale),))

    def _features_by_kernels(self, x: Tensor) -> Tensor:
        """`features` on a GPU, as far as there are kernels."""
        norm = self.layernorm if isinstance(self.layernorm, nn.LayerNorm) else None
        if isinstance(self.sketch, RandomSketch) and refusal_of_sketch(x, self.sketch_size) is None:
            return self.sketch.forward_fused(x, norm, self.scale)
        if isinstance(self.sketch, LearnedSketch):
            return self.sketch.forward_fused(x if self.scale == 1 else x * math.sqrt(self.scale))
        return self.features(x)

    def _local_inputs(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        query_norm, key_norm = self.local_norms or (self.layernorm, self.layernorm)
        return query_norm(query) * self.scale, key_norm(key)

    @property
    def _chosen_block_size(self) -> int | None:
        """What the function says, or who made it; None: only the speed depends on it."""
        return self.block_size or (1024 if self.local else None)

    def _block_size(self, device: torch.device) -> int:
        return self._chosen_block_size or default_block_size(device, causal=self.causal, degree=2)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        return normalised_feature_product(
            self.features(query),
            zero_padding(self.features(key), padding),
            value,
            bias=self.bias,
            causal=self.causal,
            block_size=self._block_size(query.device),
            degree=2,
            local=self._local(query, key, padding),
        )

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        parameters = [*_tensors(self.layernorm).values(), *_tensors(self.sketch).values()]
        features = Features(lambda x, given: (self._features_with(x, given), None), parameters)
        if launching.on_gpu(query):
            features = Features(lambda x, _: (self._features_by_kernels(x), None))
        return normalised_product(
            query,
            key,
            value,
            features=features,
            padding=padding,
            bias=self.bias,
            causal=self.causal,
            block_size=self._chosen_block_size,
            degree=2,
            local=self._local(query, key, padding),
        )

    def _refusal(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> str | None:
        return refusal_of(query, self._num_features, block_size=self._chosen_block_size, degree=2)

    def _local(self, query: Tensor, key: Tensor, padding: Tensor | None) -> Local | None:
        if not self.local:
            return None
        exact_query, exact_key = self._local_inputs(query, key)
        return Local(exact_query, zero_padding(exact_key, padding), self.degree)

    def _new_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> FeatureSums | BlockState:
        r, h = self._num_features, self.head_dim
        sums = FeatureSums(batch_size, self.num_heads, r, h, device, dtype, degree=2, split=not self.local)
        if not self.local:
            return sums
        block_size = self._block_size(device)
        capacity = min(block_size, self.max_seq_len or block_size)
        block = KeyValueCache(batch_size, self.num_heads, h + r, h, device, dtype, capacity=capacity)
        return BlockState(sums, block, block_size)

    def _absorb(self, state: FeatureSums | BlockState, key: Tensor, value: Tensor, padding: Tensor | None) -> None:
        features = zero_padding(self.features(key), padding)
        if isinstance(state, FeatureSums):
            state.add(features, value)
        else:
            _, exact_key = self._local_inputs(key, key)
            state.add(zero_padding(exact_key, padding), features, value)

    def _extend(
        self, state: FeatureSums | BlockState, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None
    ) -> Tensor:
        self.executed = Executed("reference")
        features = self.features(query), zero_padding(self.features(key), padding)
        if isinstance(state, FeatureSums):
            return state.extend(*features, value, bias=self.bias)
        exact_query, exact_key = self._local_inputs(query, key)
        return state.extend(exact_query, zero_padding(exact_key, padding), *features, value, self.degree, self.bias)

    def _next(self, state: FeatureSums | BlockState, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if isinstance(state, BlockState):
            return super()._next(state, query, key, value)
        return self._run(self._step, self._fused_step, self._step_refusal, state, query, key, value)

    def _step(self, state: FeatureSums, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        both = self.features(torch.cat([query, key], 2))  # two tokens are sketched as fast as one
        return state.next(both, value, bias=self.bias)

    def _fused_step(self, state: FeatureSums, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, str]:
        from attention_zoo.ops.decoding.triton import step_features, step_sketched

        sketch = self.sketch
        if not isinstance(sketch, RandomSketch) or sketch.children_sketches or not tiles.holds(sketch.matrices):
            both = self.features(torch.cat([query, key], 2))
            return step_features(state, both, value, bias=self.bias), "triton"
        options: dict[str, Any] = {"norm": self.layernorm if isinstance(self.layernorm, nn.LayerNorm) else None}
        options |= {"scale": self.scale / math.sqrt(self.sketch_size), "bias": self.bias}
        return step_sketched(state, query, key, value, matrices=sketch.matrices, **options), "triton"

    def _step_refusal(self, state: FeatureSums, query: Tensor, key: Tensor, value: Tensor) -> str | None:
        return tiles.refusal_of(query)

    def _read(self, state: FeatureSums | BlockState, query: Tensor) -> Tensor:
        if isinstance(state, FeatureSums):
            return state.read(self.features(query), self.bias)
        exact_query, _ = self._local_inputs(query, query)
        return state.read(exact_query, self.features(query), self.degree, self.bias)

    def _fused_read(self, state: BlockState, query: Tensor) -> tuple[Tensor, str]:
        from attention_zoo.ops.decoding.triton import read_block

        exact_query, _ = self._local_inputs(query, query)
        return read_block(state, exact_query, self.features(query), self.degree, self.bias), "triton"

    def _read_refusal(self, state: BlockState, query: Tensor) -> str | None:
        return tiles.refusal_of(query)

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        """The normalised weights; a row sums to S / (bias + S)."""

        def products(keys: Tensor, query_features: Tensor) -> tuple[Tensor]:
            return (query_features @ self.features(keys).mT,)

        parameters = [*self.layernorm.parameters(), *self.sketch.parameters()]
        (weights,) = by_keys(products, key, self.features(query), parameters)
        weights = weights**2
        if self.local:
            exact_query, exact_key = self._local_inputs(query, key)
            exact = (exact_query @ exact_key.mT) ** self.degree
            block_size = self._block_size(query.device)
            block = torch.arange(key.shape[2], device=key.device) // block_size
            weights = torch.where(positions[:, None] // block_size == block, exact, weights)
        return normalise_by_sum(weights.masked_fill(~visible, 0), self.bias)

    @property
    def telling_length(self) -> int:
        """Several blocks and a part of one, exact with `local`, and too many for every weight to be computed."""
        features = self._num_features
        options: dict[str, Any] = {"causal": self.causal, "block_size": self._chosen_block_size, "degree": 2}
        lengths = (blocks_and_a_part(self._block_size(self.device), blocks) for blocks in itertools.count(3))
        inner = self.head_dim if self.local else None
        given = features, self.head_dim, self.device
        return next(n for n in lengths if not is_quadratic(n, *given, inner=inner, **options))

    def _flops(self, seq_len: int) -> int:
        """Sketches of queries and keys, and their product."""
        features, h = self._num_features, self.head_dim
        options: dict[str, Any] = {"causal": self.causal, "degree": 2, "inner": h if self.local else None}
        if self._fuses_here(seq_len):
            product = fused_flops(seq_len, features, h, self.device, block_size=self._chosen_block_size, **options)
        else:
            product = product_flops(seq_len, features, h + 1, block_size=self._block_size(self.device), **options)
        return 2 * self._sketch_flops(self.degree // 2) * seq_len + product

    def _sketch_flops(self, degree: int) -> int:
        if degree == 1:
            return 0
        r, width = self.sketch_size, self.head_dim if degree == 2 else self.sketch_size
        matrix = EXPANSION * r * (width + 3 * r) if self.is_learned else width * r
        return 2 * self._sketch_flops(degree // 2) + 2 * 2 * matrix
