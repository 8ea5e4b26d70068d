"""Power retention by the Triton kernels of the retention package (Buckman, Gelada, Zhang 2025), on a GPU."""

import dataclasses
import importlib
from typing import Any

import torch
from torch import Tensor

from attention_zoo.checks import check_int
from attention_zoo.polynomial import Polynomial
from attention_zoo.registry import register
from attention_zoo.third_party.packages import require_package

HEAD_DIMS = (16, 32, 64, 128, 256)
# It would compute products of wider dtypes in TF32.
DTYPES = (torch.bfloat16, torch.float16)


@register
class RetentionPower(Polynomial):
    """Weights `<q, k>^2` of the past, divided by their sum, from a state of the keys' symmetric squares.

    Weights inside a chunk are computed one by one; earlier keys are in the state. The reference is `polynomial` of
    degree 2 without layer norm and bias. The package's gates, which the papers compute from the hidden state, are
    left out, and so are its other degrees, which have no state.

    Args:
        chunk_size: tokens per chunk; a sequence that is not longer has no state at all.

    Raises:
        UnsupportedError: the package is not installed, `causal=False`, or a dtype or head_dim that it does not take.
    """

    info = dataclasses.replace(
        Polynomial.info,
        name="retention_power",
        paper="Buckman, Gelada, Zhang 2025 (Scaling Context Requires Rethinking Attention)",
        approximates=None,
        bidirectional=False,
        padding=False,
        cross=False,
        decode=False,
        complexity="O(n h^3)",
        package="retention",
        devices=("cuda",),
        dtypes=(torch.float64, torch.float32, torch.bfloat16, torch.float16),
    )

    is_kernel = True

    def __init__(self, *, chunk_size: int = 1024, **common: Any) -> None:
        scale = common["head_dim"] ** -0.5
        super().__init__(degree=2, qk_layernorm=False, scale=scale, bias=0.0, **common)
        self.chunk_size = check_int("chunk_size", chunk_size, 16)
        require_package(self.info, "retention", "triton")

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        # It takes (batch, seq_len, heads, head_dim): with each head as a batch item that needs no copy.
        by_position = (x.flatten(0, 1).unsqueeze(2) for x in (query, key, value))
        # Otherwise it would pad a short sequence to a whole chunk.
        chunk_size = self.chunk_size if query.shape[2] > self.chunk_size else None
        retention = importlib.import_module("retention").power_retention
        out = retention(*by_position, deg=self.degree, scale=self.scale, chunk_size=chunk_size)
        return out.squeeze(2).unflatten(0, query.shape[:2]), "power_retention"

    def _why_not_fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> str | None:
        if query.dtype not in DTYPES:
            return f"the kernels of retention take {', '.join(map(str, DTYPES))}, not {query.dtype}"
        if self.head_dim not in HEAD_DIMS:
            return f"the kernels of retention take a head_dim of {', '.join(map(str, HEAD_DIMS))}, not {self.head_dim}"
        return None

    def _test_blocks(self) -> tuple[int, int]:
        return self.chunk_size, 3

    def _flops(self, seq_len: int) -> int:
        """Half of two products of a chunk with itself, and two products with the state, if there is one."""
        if not self._fuses_here(seq_len):
            return super()._flops(seq_len)
        per_token = 2 * min(seq_len, self.chunk_size) * self.head_dim
        if seq_len > self.chunk_size:
            squares = self.head_dim * (self.head_dim + 1) // 2
            per_token += 2 * 2 * squares * (self.head_dim + 1)
        return seq_len * per_token
