"""The tiles of the kernels of this folder."""

from __future__ import annotations

from attention_zoo.ops.launching import Configuration, Row


def _tiles(
    block_t: int, block_f: int, num_warps: int, num_stages: int = 2, registers: int | None = None
) -> Configuration:
    return Configuration({"BLOCK_T": block_t, "BLOCK_F": block_f}, num_warps, num_stages, registers)


ROWS = (
    Row("features", _tiles(128, 64, 8), bits=16),
    Row("features", _tiles(64, 32, 4), at_most={"width": 64}),
    Row("features", _tiles(32, 16, 4)),
    Row("gradient", _tiles(64, 64, 4, registers=168), (90, 99), 16, {"width": 64}),
    Row("gradient", _tiles(64, 32, 4), bits=16, at_most={"width": 64}),
    Row("gradient", _tiles(64, 32, 4), (90, 999), 16),
    Row("gradient", _tiles(32, 32, 4), bits=16),
    Row("gradient", _tiles(32, 32, 4), at_most={"width": 64}),
    Row("gradient", _tiles(16, 32, 4)),
)
