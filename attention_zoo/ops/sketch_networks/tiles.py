"""The configurations of the networks' kernels, and which inputs they take."""

from torch import Tensor

from attention_zoo.ops import launching
from attention_zoo.ops.launching import Configuration, Entry

WIDTHS, SKETCH_SIZES, HOPPER = (16, 32, 64, 128), (16, 32, 64), (90, 90)


def why_unsupported(x: Tensor, sketch_size: int) -> str | None:
    """Why no kernel takes `(batch, heads, seq_len, width)` inputs like x; None if one does."""
    return launching.why_not_among("sketch_size", sketch_size, SKETCH_SIZES) or launching.why_unsupported(x, WIDTHS)


# Small tiles leave registers for several blocks on a multiprocessor: while one waits for a dot product, another runs.
ROWS = (
    Entry(
        "networks", Configuration({"BLOCK_M": 64, "BLOCK_HIDDEN": 32}, 4, 2), HOPPER, 16, {"width": 64, "recompute": 0}
    ),
    Entry("networks", Configuration({"BLOCK_M": 64, "BLOCK_HIDDEN": 64}, 4, 2), bits=16, at_most={"width": 64}),
    Entry("networks", Configuration({"BLOCK_M": 64, "BLOCK_HIDDEN": 64}, 4, 2), (90, 999), bits=16),
    Entry("networks", Configuration({"BLOCK_M": 64, "BLOCK_HIDDEN": 32}, 4, 2), bits=16),
    Entry("networks", Configuration({"BLOCK_M": 16, "BLOCK_HIDDEN": 32}, 4, 2), bits=32),
    Entry("input_gradient", Configuration({"BLOCK_M": 64, "BLOCK_HIDDEN": 32}, 4, 2), (0, 89), bits=16),
    Entry("input_gradient", Configuration({"BLOCK_M": 64, "BLOCK_HIDDEN": 64}, 4, 2), bits=16),
    Entry("input_gradient", Configuration({"BLOCK_M": 16, "BLOCK_HIDDEN": 32}, 4, 2), bits=32),
    Entry("weight_gradients", Configuration({"BLOCK_M": 64, "BLOCK_HIDDEN": 64}, 4, 2), bits=16, at_most={"width": 64}),
    Entry("weight_gradients", Configuration({"BLOCK_M": 64, "BLOCK_HIDDEN": 64}, 4, 2), (90, 999), bits=16),
    Entry("weight_gradients", Configuration({"BLOCK_M": 32, "BLOCK_HIDDEN": 64}, 4, 2), bits=16),
    Entry("weight_gradients", Configuration({"BLOCK_M": 16, "BLOCK_HIDDEN": 32}, 4, 2), bits=32, at_most={"r": 16}),
    Entry("weight_gradients", Configuration({"BLOCK_M": 32, "BLOCK_HIDDEN": 16}, 4, 2), bits=32),
)
