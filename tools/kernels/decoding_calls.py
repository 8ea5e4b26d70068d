"""Calls of the decoding kernels: one step for a batch of 16 x 12 heads, and for a batch of one."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from attention_zoo.ops.decoding import triton
from attention_zoo.ops.decoding.tiles import rows_of_part
from tools.kernels.call import Call

BATCH, HEADS, BLOCK = 16, 12, 1024
Launch = Callable[[], Tensor]


def calls() -> Iterator[Call]:
    """Every kernel at the sizes of the papers."""
    bits16, bits32 = torch.bfloat16, torch.float32
    for h in (32, 64, 128):
        yield Call(f"decoding linear h{h}", bits16, partial(_linear, bits16, h))
        yield Call(f"decoding performer m256 h{h}", bits16, partial(_performer, bits16, h, 256))
        for r in (16, 32, 64):
            yield Call(f"decoding polysketch r{r} h{h}", bits16, partial(_polysketch, bits16, h, r, BATCH))
            yield Call(f"decoding features r{r} h{h}", bits16, partial(_features, bits16, h, r))
            yield Call(f"decoding local r{r} h{h}", bits16, partial(_local, bits16, h, r))
    for batch in (1, BATCH):
        make = partial(_polysketch, bits32, 64, 32, batch)
        yield Call(f"decoding polysketch r32 h64 fp32 batch {batch}", bits32, make)
    yield Call("decoding linear h64 fp32", bits32, partial(_linear, bits32, 64))
    yield Call("decoding performer m1024 h64 fp32", bits32, partial(_performer, bits32, 64, 1024))
    yield Call("decoding local r32 h64 fp32", bits32, partial(_local, bits32, 64, 32))


def _linear(dtype: torch.dtype, h: int, device: torch.device) -> Launch:
    sums, rows = _sums(BATCH, h, h, device)
    query, key, value = _tokens(BATCH, h, dtype, device)
    return lambda: triton.launch_featured_step(sums, value, query, key, 1e-6, rows, 1, True)


def _performer(dtype: torch.dtype, h: int, m: int, device: torch.device) -> Launch:
    sums, rows = _sums(BATCH, h, m, device)
    query, key, value = _tokens(BATCH, h, dtype, device)
    log_scale = torch.zeros(BATCH, HEADS, h // rows, device=device)
    projection = torch.randn(m, h, device=device)
    return lambda: triton.launch_exponential_step(sums, value, log_scale, query, key, projection, h**-0.25, 1e-6, rows)


def _polysketch(dtype: torch.dtype, h: int, r: int, batch: int, device: torch.device) -> Launch:
    sums, rows = _sums(batch, h, r * (r + 1) // 2, device)
    query, key, value = _tokens(batch, h, dtype, device)
    matrices = torch.randn(1, h, 2, r, device=device)
    weight, bias = torch.ones(h, device=device), torch.zeros(h, device=device)
    rest = matrices, weight, bias, 1e-5, r**-0.5, 1.0, rows
    return lambda: triton.launch_sketched_step(sums, value, query, key, *rest)


def _features(dtype: torch.dtype, h: int, r: int, device: torch.device) -> Launch:
    sums, rows = _sums(BATCH, h, r * (r + 1) // 2, device)
    (value,) = _tokens(BATCH, h, dtype, device, 1)
    query, key = torch.randn(BATCH, HEADS, 2, r, device=device, dtype=dtype).unbind(2)
    return lambda: triton.launch_featured_step(sums, value, query, key, 1.0, rows, 2, False)


def _local(dtype: torch.dtype, h: int, r: int, device: torch.device) -> Launch:
    sums = torch.randn(BATCH * HEADS, h + 1, r * (r + 1) // 2, device=device)
    (query,), (features,) = (_tokens(BATCH, dim, dtype, device, 1) for dim in (h, r))
    both = torch.randn(BATCH, HEADS, BLOCK, h + r, device=device, dtype=dtype)
    values = torch.randn(BATCH, HEADS, BLOCK, h, device=device, dtype=dtype)
    return lambda: triton.launch_block_read(sums, query, features, both[..., :h], values, 4, 1.0)


def _sums(batch: int, h: int, width: int, device: torch.device) -> tuple[Tensor, int]:
    rows = rows_of_part(h, width)
    return torch.randn(batch * HEADS, h + h // rows, width, device=device), rows


def _tokens(batch: int, dim: int, dtype: torch.dtype, device: torch.device, number: int = 3) -> list[Tensor]:
    return [torch.randn(batch, HEADS, 1, dim, device=device, dtype=dtype) for _ in range(number)]
