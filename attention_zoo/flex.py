"""Exact polynomial attention without the n x n matrix, by PyTorch's FlexAttention (Dong et al. 2024)."""

import dataclasses
import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from attention_zoo.polynomial import Polynomial
from attention_zoo.registry import register

# Each shape, dtype and set of hyperparameters is compiled separately; Dynamo's own limit of 8 would be too low.
COMPILATIONS = 4096
MASK_BLOCK = 128


@register
class FlexPolynomial(Polynomial):
    """`polynomial` as a softmax of the scores `p log|c|`, whose exponentials are the weights `c^p`.

    The softmax divides by their sum S. The kernel also returns log S, with which the denominator becomes `bias + S`:
    `S / (bias + S) = sigmoid(log S - log bias)`.

    On a CPU, FlexAttention has no backward pass and its kernel returns no log S. So `fused` needs a GPU, and takes no
    float64; for other inputs `auto` runs the reference, which is `polynomial`.

    Args:
        degree, qk_layernorm, scale, bias, dropout: as in `polynomial`.

    Raises:
        UnsupportedError: `impl=fused` without a GPU, of float64, or token by token.
    """

    info = dataclasses.replace(
        Polynomial.info,
        name="flex_polynomial",
        paper=f"{Polynomial.info.paper}; Dong et al. 2024 (FlexAttention)",
    )

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        with torch._dynamo.config.patch(recompile_limit=COMPILATIONS, accumulated_recompile_limit=COMPILATIONS):
            return self._flex(_compiled(), query, key, value, padding), "flex_attention"

    def _why_not_fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> str | None:
        if query.device.type != "cuda":
            return f"FlexAttention needs a GPU here, the input is on {query.device.type}"
        return "FlexAttention's kernel has no float64" if query.dtype == torch.float64 else None

    def _flex(self, kernel: Any, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        """The output by `flex_attention`, compiled or not."""
        degree = self.degree

        def log_weight(score: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
            # The logarithm gets 1 where the weight is 0, because its slope at 0 is infinite.
            hidden = score == 0 if padding is None else (score == 0) | padding[batch, j]
            return torch.where(hidden, -math.inf, degree * torch.where(hidden, 1, score).abs().log())

        mask = _causal_mask(query.shape[2], query.device) if self.causal else None
        inputs = self.layernorm(query), self.layernorm(key), value, log_weight, mask
        out, auxiliary = kernel(*inputs, scale=self.scale, return_aux=flex.AuxRequest(lse=True))
        if self.bias == 0:
            return out
        return out * (auxiliary.lse - math.log(self.bias)).sigmoid()[..., None].to(out.dtype)


@functools.cache
def _compiled() -> Any:
    # If a part were not compiled, the n x n matrix would be in memory; symbolic sizes would add bounds checks.
    return torch.compile(flex.flex_attention, fullgraph=True, dynamic=False)


@functools.lru_cache(maxsize=8)
@torch.inference_mode(False)  # it is kept for trainings, too
def _causal_mask(length: int, device: torch.device) -> flex.BlockMask:
    """The same as `create_block_mask` makes from the n x n mask, but from one entry per block."""
    block = torch.arange(-(-length // MASK_BLOCK), device=device)
    is_seen = block <= block[:, None]
    # The last row of blocks is not full if it ends beyond the sequence.
    is_full = (block < block[:, None]) & ((block[:, None] + 1) * MASK_BLOCK <= length)
    partial, full = _lists(is_seen & ~is_full), _lists(is_full)
    return flex.BlockMask.from_kv_blocks(*partial, *full, MASK_BLOCK, _is_past, (length, length))


def _lists(is_listed: Tensor) -> tuple[Tensor, Tensor]:
    """Per row of blocks, the number of listed ones, `(1, 1, rows)`; all, listed first, `(1, 1, rows, blocks)`."""
    indices = is_listed.int().argsort(dim=-1, descending=True, stable=True)
    return is_listed.sum(-1, dtype=torch.int32)[None, None], indices.int()[None, None]


def _is_past(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j
