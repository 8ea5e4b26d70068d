"""Calls of the kernels of feature products: polysketch attention (squares), performer and linear attention."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attention_zoo.ops.feature_product import tiles, triton
from tools.kernels.call import Call, shape_name

HEADS = 12
# Kernels that compute left operands of products in registers.
STREAMING = ("square_state_kernel", "square_output_kernel", "square_gradient_kernel")


@dataclass(frozen=True)
class Case:
    """One shape: r features for heads of h columns; `block_size=None` is the kernels' own choice.

    `local` adds exact weights of degree 4 within blocks, `scaled` adds log scales.
    """

    kind: str
    r: int
    h: int = 64
    batch: int = 1
    length: int = 32768
    causal: bool = True
    dtype: torch.dtype = torch.bfloat16
    block_size: int | None = None
    local: bool = False
    scaled: bool = False

    @property
    def degree(self) -> int:
        """Degree of the weights in the product of features."""
        return 2 if self.kind == "polysketch" else 1

    @property
    def name(self) -> str:
        """The shape as text, such as `r32 h64 1x32768 causal`."""
        seen = ("causal" if self.causal else "full") + (" local" if self.local else "")
        return shape_name(f"r{self.r} h{self.h} {self.batch}x{self.length} {seen}", self.dtype)

    @property
    def rows(self) -> int:
        """Rows of a chunk."""
        return self.block_size or tiles.default_block_size(self.length, self.r, self.degree)

    @property
    def reads_sums(self) -> bool:
        """Whether kernels read sums over other chunks: there are several, or the call is not causal."""
        return not self.causal or self.rows < self.length

    def inputs(self, device: torch.device) -> triton.Inputs:
        """Random inputs of the operator."""
        features, values = ((self.batch, HEADS, self.length, columns) for columns in (self.r, self.h))

        def drawn(size: tuple[int, ...]) -> Tensor:
            # Positive, like the features of performer and linear attention.
            return torch.rand(size, device=device, dtype=self.dtype)

        query, key = (drawn(values), drawn(values)) if self.local else (None, None)
        scale = torch.randn(features[:3], device=device) if self.scaled else None
        log_degree = 2 if self.local else self.degree - 1
        settings = 1.0, self.causal, min(self.rows, self.length), self.degree, log_degree
        return triton.Inputs(drawn(features), drawn(features), drawn(values), query, key, scale, *settings)

    def forward(self, device: torch.device) -> Callable[[], Any]:
        """The launches of the forward pass."""
        given = self.inputs(device)
        return lambda: triton.forward(given)

    def backward(self, device: torch.device) -> Callable[[], Any]:
        """The launches of the backward pass."""
        given = self.inputs(device)
        # Made-up residuals of the forward pass, so that the backward pass can be compiled alone.
        out, d_out = torch.rand_like(given.value), torch.rand_like(given.value)
        residuals = triton.Residuals(*map(torch.ones_like, triton.empty_residuals(given)))
        return lambda: triton.backward(d_out, given, out, residuals)


CASES = (
    *(Case("polysketch", r) for r in (32, 64)),
    *(Case("polysketch", r, batch=8, length=4096) for r in (32, 64)),
    *(Case("polysketch", r, block_size=1024, local=True) for r in (32, 64)),
    *(Case("polysketch", 32, h) for h in (32, 128)),
    Case("polysketch", 32, dtype=torch.float32),
    Case("polysketch", 32, causal=False),
    # A single chunk: all weights are computed exactly.
    Case("polysketch", 32, batch=8, length=2048),
    Case("performer", 256, scaled=True),
    Case("performer", 256, causal=False),
    Case("performer", 256, scaled=True, dtype=torch.float32),
    Case("linear", 64),
    Case("linear", 64, causal=False),
)


def calls() -> list[Call]:
    """Both passes of every case."""
    return [
        Call(f"{case.kind} {name} {case.name}", case.dtype, make, STREAMING if case.reads_sums else ())
        for case in CASES
        for name, make in (("forward", case.forward), ("backward", case.backward))
    ]
