"""The tiles of the decoding kernels, and the parts into which a state is split for them."""

import math

from torch import Tensor

from attention_zoo.ops import launching
from attention_zoo.ops.launching import Configuration, Entry

# A part costs one more row, its normaliser. Wide sums are long enough to have smaller parts, for more programs.
WIDE = 256
ROWS_OF_WIDE, ROWS_OF_NARROW, FEWEST_ROWS = 16, 32, 8
# The most that a program keeps in registers: features that it computes, and elements of a sketch's matrix.
MOST_FEATURES, LARGEST_MATRIX = 1024, 2**13

ROWS: tuple[Entry, ...] = (
    Entry("featured_step", Configuration({"BLOCK": 64}, 4, 1), at_most={"width": 64}),
    Entry("featured_step", Configuration({"BLOCK": 128}, 4, 1)),
    Entry("sketched_step", Configuration({"BLOCK": 128}, 4, 1)),
    Entry("exponential_step", Configuration({"BLOCK": 128, "BLOCK_DIM": 16}, 4, 1), at_most={"width": 256}),
    Entry("exponential_step", Configuration({"BLOCK": 128, "BLOCK_DIM": 16}, 8, 1), at_most={"width": 512}),
    Entry("exponential_step", Configuration({"BLOCK": 128, "BLOCK_DIM": 8}, 8, 1)),
    Entry("block_read", Configuration({"BLOCK": 128, "BLOCK_N": 64}, 4, 1), at_most={"head_dim": 64}),
    Entry("block_read", Configuration({"BLOCK": 128, "BLOCK_N": 64}, 8, 1)),
)


def rows_of_part(head_dim: int, width: int) -> int:
    """The dimensions of the values in one part, which share a normaliser, of a state whose steps are kernels."""
    rows = math.gcd(head_dim, ROWS_OF_NARROW if width <= WIDE else ROWS_OF_WIDE)
    return rows if rows >= FEWEST_ROWS else head_dim


def holds(matrices: Tensor) -> bool:
    """Whether a program has room for one of the two matrices of a sketch, `(groups, head_dim, 2, r)`."""
    return matrices.shape[1] * matrices.shape[3] <= LARGEST_MATRIX


def why_unsupported(query: Tensor, features: int = 1) -> str | None:
    """Why no kernel decodes a token like this, `(batch, heads, 1, head_dim)`; None if one does.

    Args:
        query: of the token.
        features: how many features the kernel computes itself and needs all at once.
    """
    if not launching.on_gpu(query):
        return f"its steps are kernels for a GPU, the input is on {query.device.type}"
    if query.shape[-1] % FEWEST_ROWS:
        return f"its steps take a head_dim that is a multiple of {FEWEST_ROWS}, the input has {query.shape[-1]}"
    if features > MOST_FEATURES:
        return f"its steps make at most {MOST_FEATURES} features, there are {features}"
    return launching.why_unsupported(query)
