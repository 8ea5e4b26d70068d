"""Local attention: a token sees its own block, or a sliding window, and nothing else.

The control for a mechanism with a local window (PolySketchFormer, ICML version, section 3.2): its sketch contributes
only what a model with it learns beyond a model with the window alone.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_zoo.base import Attention
from attention_zoo.checks import check_bool, check_choice, check_float, check_int, require
from attention_zoo.info import AttentionInfo, Executed
from attention_zoo.ops.decoding.states import Window
from attention_zoo.ops.feature_product.reference import slices
from attention_zoo.ops.masking import masked_softmax
from attention_zoo.polynomial import weights_and_total
from attention_zoo.registry import register

WEIGHTS = ("polynomial", "softmax")


@register
class Local(Attention):
    """Exact weights inside a window, softmax or polynomial.

    With `weights=polynomial` it is `polysketch` with `local=true` without the sketch: with the same norms, scale and
    bias both are equal if there is only one block.

    Args:
        block_size: b, the tokens of a block; the first block begins with the sequence, the last may be shorter.
        sliding: a token sees the b - 1 tokens before it (and, without `causal`, after it) instead of its own block.
        weights: `softmax`, or `polynomial`: `(scale <q, k>)^degree`, divided by the bias plus their sum.
        degree: p of polynomial weights, even.
        qk_layernorm: LayerNorm of queries and keys before the product; None is True for polynomial weights only.
        separate_norms: one norm for queries and another for keys, as in `polysketch` with `sketch=learned`.
        scale: factor of the products; None is 1/sqrt(head_dim) for softmax, 1 for polynomial weights.
        bias: added to the sum of polynomial weights.
    """

    info = AttentionInfo(
        name="local",
        paper="Kacham, Mirrokni, Zhong 2024 (PolySketchFormer, ICML), section 3.2, without the sketch",
        causal=True,
        padding=True,
        complexity="O(n b h)",
        decode=True,
        control=True,
    )

    def __init__(
        self,
        *,
        block_size: int = 64,
        sliding: bool = False,
        weights: str = "softmax",
        degree: int = 4,
        qk_layernorm: bool | None = None,
        separate_norms: bool = False,
        scale: float | None = None,
        bias: float = 1.0,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.block_size = check_int("block_size", block_size)
        self.sliding = check_bool("sliding", sliding)
        self.is_softmax = check_choice("weights", weights, WEIGHTS) == "softmax"
        self.degree = check_int("degree", degree, 2)
        require("degree", degree, degree % 2 == 0, "even, so that weights are not negative")
        default_scale = self.head_dim**-0.5 if self.is_softmax else 1.0
        self.scale = default_scale if scale is None else check_float("scale", scale, above=0)
        self.bias = check_float("bias", bias, minimum=0)
        has_norm = not self.is_softmax if qk_layernorm is None else check_bool("qk_layernorm", qk_layernorm)
        self.query_norm = nn.LayerNorm(self.head_dim) if has_norm else nn.Identity()
        is_separate = check_bool("separate_norms", separate_norms) and has_norm
        self.key_norm = nn.LayerNorm(self.head_dim) if is_separate else None

    @property
    def _norm_of_keys(self) -> nn.Module:
        """A norm that both share has one name, so that its parameters are saved once (safetensors)."""
        return self.query_norm if self.key_norm is None else self.key_norm

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # Before 0.2 a norm that both share had both names, of which some formats keep one.
        own = f"{prefix}key_norm."
        for name in [name for name in state_dict if self.key_norm is None and name.startswith(own)]:
            state_dict.setdefault(f"{prefix}query_norm.{name.removeprefix(own)}", state_dict.pop(name))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @property
    def weight_degree(self) -> int:
        """p; 1 for softmax."""
        return 1 if self.is_softmax else self.degree

    def _weights(self, query: Tensor, key: Tensor, visible: Tensor) -> Tensor:
        """The normalised weights of queries and keys after their norms; `visible` is broadcastable to the result."""
        prepared = self.scale * query
        if self.is_softmax:
            return masked_softmax(prepared @ key.mT, visible)
        weights, total = weights_and_total(prepared, key, visible, self.degree, self.bias)
        return (weights / total).to(query.dtype)

    def _near(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Which keys are in the window of which queries: bool, `(..., queries, keys)`."""
        query_positions, key_positions = query_positions[..., :, None], key_positions[..., None, :]
        if self.sliding:
            near = (query_positions - key_positions).abs() < self.block_size
        else:
            near = query_positions // self.block_size == key_positions // self.block_size
        return near & (key_positions <= query_positions) if self.causal else near

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        seq_len = query.shape[2]
        size = min(self.block_size, seq_len)
        blocks = -(-seq_len // size)
        spare, count = blocks * size - seq_len, self._blocks_beside

        def in_blocks(x: Tensor) -> Tensor:
            return F.pad(x, (0, 0, 0, spare)).unflatten(2, (blocks, size))

        def windows(x: Tensor) -> Tensor:
            """The blocks that each block may see, `(batch, heads, blocks, keys, h)`, from `(.., blocks, size, h)`."""
            around = F.pad(x, (0, 0, 0, 0, *count))
            return torch.cat([around[:, :, i : i + blocks] for i in range(sum(count) + 1)], 3)

        positions = torch.arange(blocks * size, device=query.device).view(blocks, size)
        first = positions[:, :1] - count[0] * size
        key_positions = first + torch.arange((sum(count) + 1) * size, device=query.device)
        there = (key_positions >= 0) & (key_positions < seq_len)
        visible = (self._near(positions, key_positions) & there[:, None])[None, None]
        if padding is not None:
            hidden = windows(in_blocks(padding[:, None, :, None].to(query.dtype)))
            visible = visible & (hidden == 0).mT
        keys, values = windows(in_blocks(self._norm_of_keys(key))), windows(in_blocks(value))
        weights = self._weights(in_blocks(self.query_norm(query)), keys, visible)
        return (weights @ values).flatten(2, 3)[:, :, :seq_len].contiguous()

    @property
    def _blocks_beside(self) -> tuple[int, int]:
        """How many blocks before and after its own a token may see in part."""
        return int(self.sliding), int(self.sliding and not self.causal)

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        near = self._near(positions, torch.arange(key.shape[2], device=key.device))
        return self._weights(self.query_norm(query), self._norm_of_keys(key), visible & near)

    def _new_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> Window:
        sizes = batch_size, self.num_heads, self.head_dim
        return Window(*sizes, device, dtype, block_size=self.block_size, sliding=self.sliding)

    def _append(self, state: Window, key: Tensor, value: Tensor, padding: Tensor | None) -> None:
        state.append(self._norm_of_keys(key), value, padding)

    def _read(self, state: Window, query: Tensor) -> Tensor:
        return self._weights(self.query_norm(query), state.keys, state.visible[:, None, None]) @ state.values

    def _continue(self, state: Window, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        """A block of tokens at a time: they see the window from before, and each other."""
        outputs = []
        hidden = query.new_zeros(len(query), query.shape[2], dtype=torch.bool) if padding is None else padding
        for rows in slices(query.shape[2], self.block_size):
            keys = torch.cat([state.keys, self._norm_of_keys(key[:, :, rows])], 2)
            values = torch.cat([state.values, value[:, :, rows]], 2)
            positions = state.length + torch.arange(rows.stop - rows.start, device=query.device)
            visible = torch.cat([state.visible, ~hidden[:, rows]], 1)[:, None, None]
            near = self._near(positions, torch.cat([state.positions, positions]))
            outputs.append(self._weights(self.query_norm(query[:, :, rows]), keys, visible & near) @ values)
            self._append(state, key[:, :, rows], value[:, :, rows], hidden[:, rows])
        self.executed = Executed("reference")
        return torch.cat(outputs, 2)

    def _test_blocks(self) -> tuple[int, int]:
        return self.block_size, 3

    def _flops(self, seq_len: int) -> int:
        """Two products of each block with all blocks that it sees in part, hidden keys included."""
        size = min(self.block_size, seq_len)
        blocks = -(-seq_len // size)
        return 4 * blocks * size * size * (1 + sum(self._blocks_beside)) * self.head_dim
