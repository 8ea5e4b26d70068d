"""The tiles of the kernels of this folder, and what they take."""

from __future__ import annotations

from torch import Tensor

from attention_zoo.ops.launching import Configuration, Row

ROWS = (
    Row("sketch", Configuration({"BLOCK_T": 128}, 4, 1), bits=16),
    Row("sketch", Configuration({"BLOCK_T": 64}, 8, 1)),
    Row("gradient", Configuration({"BLOCK_T": 32}, 4, 1), (0, 89), 16),
    Row("gradient", Configuration({"BLOCK_T": 64}, 4, 1), bits=16, at_most={"width": 64, "r": 64}),
    Row("gradient", Configuration({"BLOCK_T": 64}, 8, 1), bits=16),
    Row("gradient", Configuration({"BLOCK_T": 32}, 8, 1)),
)

# What `python -m tools.kernels.tune` tries on a GPU.
CANDIDATES = {
    kernel: tuple(Configuration({"BLOCK_T": block_t}, warps, 1) for block_t, warps in tried)
    for kernel, tried in {
        "sketch": ((64, 4), (128, 4), (128, 8), (256, 8)),
        "gradient": ((32, 4), (64, 4), (64, 8), (128, 8)),
    }.items()
}

# Columns of inputs and sketches that a tile can have.
COLUMNS = (16, 32, 64, 128)


def refusal_of(x: Tensor, sketch_size: int) -> str | None:
    """Why the kernels do not take such rows; None if they do."""
    for name, size in (("width", x.shape[-1]), ("sketch_size", sketch_size)):
        if size not in COLUMNS:
            return f"the kernels take a {name} of {', '.join(map(str, COLUMNS))}, this is {size}"
    return None
