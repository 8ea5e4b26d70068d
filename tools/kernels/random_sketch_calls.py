"""Calls of the kernels for a random sketch of degree 2, with layer norm: 12 heads of 32k tokens."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attention_zoo.ops.random_features import triton
from tools.kernels.call import Call, normal, shape_name

HEADS, SEQ_LEN = 12, 32768


def calls() -> list[Call]:
    """Both passes at the papers' sizes, at other head dims, with matrices per head, in float32, and with two inputs."""
    shapes = [(64, 32), (64, 64), (32, 32), (128, 64)]
    made = [_calls(width, r) for width, r in shapes]
    made += [_calls(64, 32, groups=HEADS), _calls(64, 32, dtype=torch.float32), _calls(32, 32, count=2)]
    return [call for of_shape in made for call in of_shape]


def _calls(
    width: int, r: int, *, dtype: torch.dtype = torch.bfloat16, groups: int = 1, count: int = 1
) -> tuple[Call, Call]:
    shape = shape_name(f"r{r} h{width}", dtype, groups, count)

    def given(device: torch.device) -> tuple[Any, ...]:
        inputs: list[Tensor | None] = [normal(device, 1, HEADS, SEQ_LEN, width).to(dtype) for _ in range(count)]
        norm = (None, None) if count > 1 else (torch.ones(width, device=device), torch.zeros(width, device=device))
        matrices = normal(device, groups, width, 2, r).to(dtype)
        return *(inputs if count > 1 else [*inputs, None]), *norm, matrices, r**-0.5, 1e-5

    def forward(device: torch.device) -> Callable[[], Any]:
        arguments = given(device)
        return lambda: triton.launch_sketch(*arguments)

    def backward(device: torch.device) -> Callable[[], Any]:
        arguments, grad = given(device), normal(device, 1, HEADS, SEQ_LEN, r).to(dtype)
        return lambda: triton.launch_sketch_backward(grad, *arguments)

    return (
        Call(f"random sketch forward {shape}", dtype, forward),
        Call(f"random sketch backward {shape}", dtype, backward),
    )
