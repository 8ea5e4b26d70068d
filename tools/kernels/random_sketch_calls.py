"""Calls of the kernels for a random sketch of degree 2, with layer norm: 12 heads of 32k tokens."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from attention_zoo.ops.random_features import triton
from tools.kernels.call import Call, normal, shape_name

HEADS, SEQ_LEN = 12, 32768


def calls() -> Iterator[Call]:
    """Both passes at the papers' sizes, at other head dims, with matrices per head, in float32, and with two inputs."""
    for width, r in ((64, 32), (64, 64), (32, 32), (128, 64)):
        yield from _calls(width, r)
    yield from _calls(64, 32, groups=HEADS)
    yield from _calls(64, 32, dtype=torch.float32)
    yield from _calls(32, 32, count=2)


def _calls(width: int, r: int, dtype: torch.dtype = torch.bfloat16, groups: int = 1, count: int = 1) -> Iterator[Call]:
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

    yield Call(f"random sketch forward {shape}", dtype, forward)
    yield Call(f"random sketch backward {shape}", dtype, backward)
