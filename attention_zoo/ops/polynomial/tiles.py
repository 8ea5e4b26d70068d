"""Which tiles the kernels of polynomial attention work on: chosen by what compiles without spills, not yet by time."""

from __future__ import annotations

from typing import Any

from attention_zoo.ops.launching import Configuration, Row, configurations

HEAD_DIMS = (32, 64, 128)


def _row(kernel: str, m: int, n: int, warps: int, stages: int, h: int = 128, **where: Any) -> Row:
    return Row(kernel, Configuration({"BLOCK_M": m, "BLOCK_N": n}, warps, stages), at_most={"head_dim": h}, **where)


ROWS = (
    # Of keys and of queries, which read the largest norm of each tile of keys.
    Row("prepare_inputs", Configuration({"BLOCK_M": 64}, 4, 1)),
    Row("prepare_gradients", Configuration({"BLOCK_M": 32}, 4, 1)),
    Row("pull_norm", Configuration({"BLOCK_M": 64}, 4, 1), at_most={"head_dim": 64}),
    Row("pull_norm", Configuration({"BLOCK_M": 32}, 4, 1)),
    # Warpgroups, and tiles that are loaded by hardware.
    _row("forward", 128, 64, 4, 3, h=64, arch=(90, 999), bits=16),
    _row("backward_keys", 32, 64, 4, 3, h=64, arch=(90, 90), bits=16),
    _row("backward_keys", 64, 128, 8, 2, h=64, arch=(90, 999), bits=16),
    _row("backward_queries", 128, 64, 8, 3, h=64, arch=(90, 999), bits=16),
    _row("forward", 128, 64, 8, 3, arch=(90, 999), bits=16),
    _row("backward_keys", 32, 128, 8, 2, arch=(90, 999), bits=16),
    _row("backward_queries", 128, 64, 8, 2, arch=(90, 999), bits=16),
    # Warps, and tiles that are loaded number by number.
    _row("forward", 128, 64, 8, 3, h=64, bits=16),
    _row("backward_keys", 32, 128, 8, 3, h=64, bits=16),
    _row("backward_queries", 128, 64, 8, 2, h=64, bits=16),
    _row("forward", 128, 64, 8, 2, bits=16),
    _row("backward_keys", 64, 64, 8, 2, bits=16),
    _row("backward_queries", 64, 64, 8, 2, bits=16),
    _row("forward", 64, 32, 4, 2, h=64, bits=32),
    _row("backward_keys", 32, 64, 4, 2, h=32, bits=32),
    _row("backward_keys", 32, 32, 8, 2, h=64, bits=32),
    _row("backward_queries", 64, 32, 4, 2, h=32, bits=32),
    _row("backward_queries", 32, 32, 4, 2, h=64, bits=32),
    _row("forward", 32, 32, 8, 2, bits=32),
    _row("backward_keys", 16, 16, 4, 2, bits=32),
    _row("backward_queries", 16, 32, 4, 2, bits=32),
)

# What `python -m tools.kernels.tune` tries on a GPU.
_OVER_ROWS = configurations("BLOCK_M", (32, 2, 1), (32, 4, 1), (64, 4, 1), (128, 8, 1))
CANDIDATES = dict.fromkeys(("prepare_inputs", "prepare_gradients", "pull_norm"), _OVER_ROWS) | {
    "forward": configurations(
        "BLOCK_M BLOCK_N", (64, 64, 4, 3), (128, 64, 4, 2), (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2)
    ),
    "backward_keys": configurations(
        "BLOCK_M BLOCK_N", (32, 64, 4, 3), (64, 64, 4, 2), (32, 128, 8, 2), (64, 128, 8, 2)
    ),
    "backward_queries": configurations(
        "BLOCK_M BLOCK_N", (64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3)
    ),
}
