"""Calls of polynomial attention: 12 heads, the paper's degree, head_dim and norm, and shapes near it."""

from collections.abc import Callable
from typing import Any

import torch

from attention_zoo.ops.polynomial.triton import Forward, Norm, Settings, launch_backward, launch_forward
from tools.kernels.call import Call

HEADS, LENGTH = 12, 4096
BF16 = torch.bfloat16
# Degree, head_dim, causal, dtype.
SHAPES = (
    (2, 64, True, BF16),
    (4, 32, True, BF16),
    (4, 64, True, BF16),
    (4, 64, False, BF16),
    (4, 128, True, BF16),
    (8, 64, True, BF16),
    (4, 64, True, torch.float16),
    (4, 64, True, torch.float32),
)


def calls() -> list[Call]:
    """Both passes of every shape."""
    return [_call(of_pass, *shape) for shape in SHAPES for of_pass in ("forward", "backward")]


def _call(of_pass: str, degree: int, head_dim: int, causal: bool, dtype: torch.dtype) -> Call:
    name = f"polynomial {of_pass} p{degree} h{head_dim} {'causal' if causal else 'full'} {str(dtype)[6:]}"

    def make(device: torch.device) -> Callable[[], Any]:
        size = 1, HEADS, LENGTH, head_dim
        query, key, value, d_out = (torch.randn(size, device=device, dtype=dtype) for _ in range(4))
        norm = Norm(torch.ones(head_dim, device=device), torch.zeros(head_dim, device=device), 1e-5)
        settings = Settings(degree, head_dim**-0.5, 1.0, causal)
        if of_pass == "forward":
            return lambda: launch_forward(query, key, value, norm, None, settings)
        # Made-up residuals of the forward pass, so that the backward pass can be compiled alone.
        denominator, unit = (torch.full(query.shape[:3], x, device=device) for x in (float(LENGTH), 1.0))
        passed = Forward(torch.randn_like(value), denominator, query * head_dim**-0.25, key * head_dim**-0.25, unit)
        return lambda: launch_backward(d_out, query, key, value, norm, passed, settings)

    return Call(name, dtype, make)
