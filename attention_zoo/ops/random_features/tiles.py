"""The tiles of the kernels of this folder, and which inputs they take."""

from torch import Tensor

from attention_zoo.ops.launching import Configuration, Entry, why_not_among

ROWS = (
    Entry("features", Configuration({"BLOCK_T": 128, "BLOCK_F": 64}, 8, 2), bits=16),
    Entry("features", Configuration({"BLOCK_T": 64, "BLOCK_F": 32}, 4, 2), at_most={"width": 64}),
    Entry("features", Configuration({"BLOCK_T": 32, "BLOCK_F": 16}, 4, 2)),
    Entry("features_gradient", Configuration({"BLOCK_T": 64, "BLOCK_F": 64}, 4, 2, 168), (90, 99), 16, {"width": 64}),
    Entry("features_gradient", Configuration({"BLOCK_T": 64, "BLOCK_F": 32}, 4, 2), bits=16, at_most={"width": 64}),
    Entry("features_gradient", Configuration({"BLOCK_T": 64, "BLOCK_F": 32}, 4, 2), (90, 999), 16),
    Entry("features_gradient", Configuration({"BLOCK_T": 32, "BLOCK_F": 32}, 4, 2), bits=16),
    Entry("features_gradient", Configuration({"BLOCK_T": 32, "BLOCK_F": 32}, 4, 2), at_most={"width": 64}),
    Entry("features_gradient", Configuration({"BLOCK_T": 16, "BLOCK_F": 32}, 4, 2)),
    Entry("sketch", Configuration({"BLOCK_T": 128}, 4, 1), bits=16, at_most={"r": 64}),
    Entry("sketch", Configuration({"BLOCK_T": 64}, 8, 1)),
    Entry("sketch_gradient", Configuration({"BLOCK_T": 32}, 4, 1), (0, 89), 16),
    Entry("sketch_gradient", Configuration({"BLOCK_T": 64}, 4, 1), bits=16, at_most={"width": 64, "r": 64}),
    Entry("sketch_gradient", Configuration({"BLOCK_T": 64}, 8, 1), bits=16),
    Entry("sketch_gradient", Configuration({"BLOCK_T": 32}, 8, 1)),
)

# The columns of inputs and sketches that a tile can have.
COLUMNS = (16, 32, 64, 128)


def why_unsupported(x: Tensor, sketch_size: int) -> str | None:
    """Why the kernels do not take rows like x, or this sketch_size; None if they do."""
    return why_not_among("width", x.shape[-1], COLUMNS) or why_not_among("sketch_size", sketch_size, COLUMNS)
