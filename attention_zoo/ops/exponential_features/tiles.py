"""The tiles of the kernels of this folder."""

from __future__ import annotations

from attention_zoo.ops.launching import Configuration, Row

ROWS = (
    Row("features", Configuration({"BLOCK_T": 128, "BLOCK_F": 64}, 8, 2), bits=16),
    Row("features", Configuration({"BLOCK_T": 64, "BLOCK_F": 32}, 4, 2), at_most={"width": 64}),
    Row("features", Configuration({"BLOCK_T": 32, "BLOCK_F": 16}, 4, 2)),
    Row("gradient", Configuration({"BLOCK_T": 64, "BLOCK_F": 64}, 4, 2, 168), (90, 99), 16, {"width": 64}),
    Row("gradient", Configuration({"BLOCK_T": 64, "BLOCK_F": 32}, 4, 2), bits=16, at_most={"width": 64}),
    Row("gradient", Configuration({"BLOCK_T": 64, "BLOCK_F": 32}, 4, 2), (90, 999), 16),
    Row("gradient", Configuration({"BLOCK_T": 32, "BLOCK_F": 32}, 4, 2), bits=16),
    Row("gradient", Configuration({"BLOCK_T": 32, "BLOCK_F": 32}, 4, 2), at_most={"width": 64}),
    Row("gradient", Configuration({"BLOCK_T": 16, "BLOCK_F": 32}, 4, 2)),
)
