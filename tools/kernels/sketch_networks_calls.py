"""Calls of the kernels for a learned sketch's networks: one level of degree 2, 12 heads of 32k tokens."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attention_zoo.ops.sketch_networks import triton
from tools.kernels.call import Call, normal, shape_name

HEADS, SEQ_LEN = 12, 32768


def calls() -> list[Call]:
    """Both passes at the papers' sizes, at other head dims, in float32, with networks per head, and with two inputs."""
    shapes = [(64, 32), (64, 64), (64, 16), (32, 32), (128, 32), (128, 64)]
    made = [_calls(width, r) for width, r in shapes]
    made += [_calls(64, 32, dtype=torch.float32), _calls(64, 64, dtype=torch.float32), _calls(64, 32, groups=HEADS)]
    # A higher level has two inputs of r numbers.
    made += [_calls(32, 32, count=2)]
    return [call for of_shape in made for call in of_shape]


def _calls(
    width: int, r: int, *, dtype: torch.dtype = torch.bfloat16, groups: int = 1, count: int = 1
) -> tuple[Call, Call]:
    shape = shape_name(f"r{r} h{width}", dtype, groups, count)

    def forward(device: torch.device) -> Callable[[], Any]:
        inputs, weights = _inputs(device, width, r, dtype, groups, count)
        out = torch.empty(groups, HEADS // groups, SEQ_LEN, r, device=device, dtype=dtype)
        return lambda: triton.launch_networks(inputs, weights, out)

    def backward(device: torch.device) -> Callable[[], Any]:
        inputs, weights = _inputs(device, width, r, dtype, groups, count)
        d_out = normal(device, groups, HEADS // groups, SEQ_LEN, r).to(dtype)
        return lambda: triton.gradients(d_out, inputs, weights)

    return (
        Call(f"sketch networks forward {shape}", dtype, forward),
        Call(f"sketch networks backward {shape}", dtype, backward),
    )


def _inputs(
    device: torch.device, width: int, r: int, dtype: torch.dtype, groups: int, count: int
) -> tuple[list[Tensor], list[Tensor]]:
    """The inputs, and the weights of both networks in the layout of the kernels."""
    inputs = [normal(device, groups, HEADS // groups, SEQ_LEN, width).to(dtype) for _ in range(count)]
    weights = []
    for size in (width, r):
        into, onto = (size, 8 * r), (8 * r, r)
        weights += [normal(device, 2, groups, *into) * size**-0.5, normal(device, 2, groups, 8 * r)]
        weights += [normal(device, 2, groups, *onto) * (8 * r) ** -0.5]
    return inputs, weights
