"""Calls of the kernels for a learned sketch's networks: one level of degree 2, 12 heads of 32k tokens."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from attention_zoo.ops.sketch_networks import triton
from tools.kernels.call import Call, normal, shape_name

HEADS, SEQ_LEN = 12, 32768


def calls() -> Iterator[Call]:
    """Both passes at the papers' sizes, at other head dims, in float32, with networks per head, and with two inputs."""
    for width, r in ((64, 32), (64, 64), (64, 16), (32, 32), (128, 32), (128, 64)):
        yield from _calls(width, r)
    for r in (32, 64):
        yield from _calls(64, r, dtype=torch.float32)
    yield from _calls(64, 32, groups=HEADS)
    yield from _calls(32, 32, count=2)  # as at a higher level, whose inputs have r numbers


def _calls(width: int, r: int, dtype: torch.dtype = torch.bfloat16, groups: int = 1, count: int = 1) -> Iterator[Call]:
    shape = shape_name(f"r{r} h{width}", dtype, groups, count)

    def given(device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
        """The inputs, and the weights of both networks in the layout of the kernels."""
        inputs = [normal(device, groups, HEADS // groups, SEQ_LEN, width).to(dtype) for _ in range(count)]
        weights = []
        for size in (width, r):
            into, onto = (size, 8 * r), (8 * r, r)
            weights += [normal(device, 2, groups, *into) * size**-0.5, normal(device, 2, groups, 8 * r)]
            weights += [normal(device, 2, groups, *onto) * (8 * r) ** -0.5]
        return inputs, weights

    def forward(device: torch.device) -> Callable[[], Any]:
        inputs, weights = given(device)
        out = torch.empty(groups, HEADS // groups, SEQ_LEN, r, device=device, dtype=dtype)
        return lambda: triton.launch_networks(inputs, weights, out)

    def backward(device: torch.device) -> Callable[[], Any]:
        inputs, weights = given(device)
        d_out = normal(device, groups, HEADS // groups, SEQ_LEN, r).to(dtype)
        return lambda: triton.gradients(d_out, inputs, weights)

    yield Call(f"sketch networks forward {shape}", dtype, forward)
    yield Call(f"sketch networks backward {shape}", dtype, backward)
