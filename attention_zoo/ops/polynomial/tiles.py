"""Which tiles the kernels of polynomial attention work on."""

from __future__ import annotations

from typing import Any

from attention_zoo.ops.launching import Configuration, Row

HEAD_DIMS = (32, 64, 128)


def _row(kernel: str, m: int, n: int, warps: int, stages: int, **where: Any) -> Row:
    return Row(kernel, Configuration({"BLOCK_M": m, "BLOCK_N": n}, warps, stages), **where)


ROWS = (
    Row("prepare", Configuration({"BLOCK_M": 64}, 4, 1)),
    _row("forward", 128, 64, 4, 3, bits=16),
    _row("backward_keys", 64, 128, 8, 2, bits=16),
    _row("backward_queries", 128, 64, 8, 3, bits=16),
    _row("forward", 64, 32, 4, 2, bits=32),
    _row("backward_keys", 32, 64, 4, 2, bits=32),
    _row("backward_queries", 64, 32, 4, 2, bits=32),
)
