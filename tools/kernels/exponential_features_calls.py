"""Calls of the kernels for performer's exponential features: 12 heads of 32k tokens."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from attention_zoo.ops.feature_product.tiles import padded
from attention_zoo.ops.random_features import triton
from tools.kernels.call import Call, normal, shape_name

HEADS, SEQ_LEN = 12, 32768


def calls() -> Iterator[Call]:
    """Both passes with default, fewer and performer-pytorch's features, at other head dims, and in float32."""
    for m, width in ((256, 64), (128, 64), (266, 64), (2048, 64), (256, 32), (256, 128)):
        yield from _calls(m, width)
    yield from _calls(256, 64, torch.float32)


def _calls(m: int, width: int, dtype: torch.dtype = torch.bfloat16) -> Iterator[Call]:
    shape = shape_name(f"m{m} h{width}", dtype)

    def given(device: torch.device) -> tuple[Any, ...]:
        x = normal(device, 1, HEADS, SEQ_LEN, width).to(dtype)
        return x, *triton.parts(normal(device, m, width), dtype), width**-0.25, 1e-6, padded(m)

    def forward(device: torch.device) -> Callable[[], Any]:
        arguments = given(device)
        return lambda: triton.launch_features(*arguments)

    def backward(device: torch.device) -> Callable[[], Any]:
        arguments = given(device)
        d_features = normal(device, 1, HEADS, SEQ_LEN, padded(m)).to(dtype)
        d_log_scale = normal(device, 1, HEADS, SEQ_LEN)
        return lambda: triton.launch_features_backward(d_features, d_log_scale, *arguments)

    yield Call(f"exponential features forward {shape}", dtype, forward)
    yield Call(f"exponential features backward {shape}", dtype, backward)
