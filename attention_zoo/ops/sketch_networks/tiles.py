"""The configurations of the networks' kernels, and what they are made for."""

from torch import Tensor

from attention_zoo.ops import launching
from attention_zoo.ops.launching import Configuration, Row

WIDTHS, SKETCH_SIZES = (16, 32, 64, 128), (16, 32, 64)


def why_unsupported(x: Tensor, sketch_size: int) -> str | None:
    """Why no kernel takes `(batch, heads, seq_len, width)` inputs like x; None if one does."""
    return launching.why_not_among("sketch_size", sketch_size, SKETCH_SIZES) or launching.why_unsupported(x, WIDTHS)


def _tiles(block_m: int, block_hidden: int, num_warps: int, num_stages: int) -> Configuration:
    return Configuration({"BLOCK_M": block_m, "BLOCK_HIDDEN": block_hidden}, num_warps, num_stages)


# Small tiles leave registers for several blocks on a multiprocessor, which wait for their products in turn.
ROWS = (
    Row("networks", _tiles(64, 32, 4, 2), (90, 90), bits=16, at_most={"width": 64, "recompute": 0}),
    Row("networks", _tiles(64, 64, 4, 2), bits=16, at_most={"width": 64}),
    Row("networks", _tiles(64, 64, 4, 2), (90, 999), bits=16),
    Row("networks", _tiles(64, 32, 4, 2), bits=16),
    Row("networks", _tiles(16, 32, 4, 2), bits=32),
    Row("input_gradient", _tiles(64, 32, 4, 2), (0, 89), bits=16),
    Row("input_gradient", _tiles(64, 64, 4, 2), bits=16),
    Row("input_gradient", _tiles(16, 32, 4, 2), bits=32),
    Row("weight_gradients", _tiles(64, 64, 4, 2), bits=16, at_most={"width": 64}),
    Row("weight_gradients", _tiles(64, 64, 4, 2), (90, 999), bits=16),
    Row("weight_gradients", _tiles(32, 64, 4, 2), bits=16),
    Row("weight_gradients", _tiles(16, 32, 4, 2), bits=32, at_most={"r": 16}),
    Row("weight_gradients", _tiles(32, 16, 4, 2), bits=32),
)
