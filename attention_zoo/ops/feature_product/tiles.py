"""Which inputs the kernels of this folder take, and their tiles by GPU, bits of an element and sizes.

The first sizes come from the machine code (`docs/kernels.md`); `python -m tools.kernels.tune` measures on a GPU.
"""

from torch import Tensor

from attention_zoo.ops import launching
from attention_zoo.ops.feature_product.chunks import PART, WIDEST
from attention_zoo.ops.launching import Configuration, Entry, why_not_among

# The columns that features, values and exact queries may have.
COLUMNS = (16, 32, 64, 128)
# The most columns that fit into 99 KiB of shared memory, where a product in float32 has both halves of every number.
WIDEST_FLOAT32 = 64
# The fewest rows of a block: with fewer, the sums before each block take more memory than what is summed.
SHORTEST = 16
# By features, the longest n whose every weight is computed: `n (r + h) / 2` products a row, in blocks `2 r^2 h`.
QUADRATIC = {16: 1024, 32: 2048, 64: 4096, 128: 8192}
BLOCKS = {16: 512, 32: 512, 64: 1024, 128: 1024}
OLDER, HOPPER, NEWER, ANY = (0, 89), (90, 90), (100, 199), (0, 999)
# At most so many columns of values, and of queries inside chunks.
SMALL = {"h": 64, "inner": 64}
# Three uses of one kernel: to scan a sequence, to sum a part of it, to sum a segment of keys that all queries see.
SQUARES = ("square_state", "square_part", "square_segment")

# For newer GPUs ptxas prefers many blocks to many registers, and spills a few, unless told the number of registers.
ROWS = (
    # Without asynchronous dot products (wgmma) every operand is in registers.
    *(Entry(kernel, Configuration({"BLOCK_I": 4, "BLOCK_T": 32}, 4, 2), OLDER, 16) for kernel in SQUARES),
    Entry("square_output", Configuration({"BLOCK_T": 64, "BLOCK_N": 32}, 4, 2), OLDER, 16, {"h": 64}),
    Entry("square_output", Configuration({"BLOCK_T": 64, "BLOCK_N": 32}, 8, 2), OLDER, 16),
    Entry("output", Configuration({"BLOCK_T": 64, "BLOCK_N": 16, "BLOCK_M": 32, "BLOCK_INNER": 64}, 8, 1), OLDER, 16),
    Entry("square_gradient", Configuration({"BLOCK_T": 64}, 4, 2), OLDER, 16),
    Entry("intra_chunk_query", Configuration({"BLOCK_T": 64, "BLOCK_N": 32}, 4, 2), OLDER, 16),
    Entry("intra_chunk_key", Configuration({"BLOCK_T": 32, "BLOCK_N": 64}, 8, 1), OLDER, 16),
    Entry("chunk", Configuration({"BLOCK_T": 64}, 4, 2), bits=16, at_most={"r": 32}),
    Entry("chunk", Configuration({"BLOCK_T": 64}, 8, 2), bits=16),
    Entry("chunk", Configuration({"BLOCK_T": 32}, 8, 1)),
    Entry("prefix", Configuration({"BLOCK_C": 32, "BLOCK": 64}, 4, 1)),
    Entry("square_state", Configuration({"BLOCK_I": 8, "BLOCK_T": 64}, 4, 3), bits=16, at_most={"h": 64, "r": 32}),
    # Tiles with many rows need fewer instructions per row; tiles with many products load values less often.
    *(
        Entry(kernel, Configuration({"BLOCK_I": 16, "BLOCK_T": 128}, 8, 2), HOPPER, 16, {"h": 64})
        for kernel in ("square_state", "square_part")
    ),
    *(
        Entry(kernel, Configuration({"BLOCK_I": 8, "BLOCK_T": 64}, 4, 3), bits=16, at_most={"h": 64})
        for kernel in ("square_state", "square_part")
    ),
    *(Entry(kernel, Configuration({"BLOCK_I": 4, "BLOCK_T": 64}, 4, 2, 255), NEWER, 16) for kernel in SQUARES),
    *(Entry(kernel, Configuration({"BLOCK_I": 4, "BLOCK_T": 64}, 4, 3), bits=16) for kernel in SQUARES),
    *(Entry(kernel, Configuration({"BLOCK_I": 4, "BLOCK_T": 32}, 8, 1)) for kernel in SQUARES),
    Entry("state", Configuration({"BLOCK_M": 64, "BLOCK_T": 64}, 4, 2, 255), NEWER, 16),
    Entry("state", Configuration({"BLOCK_M": 64, "BLOCK_T": 64}, 4, 3), bits=16),
    Entry("state", Configuration({"BLOCK_M": 32, "BLOCK_T": 32}, 4, 1)),
    Entry("square_output", Configuration({"BLOCK_T": 128, "BLOCK_N": 64}, 8, 2), HOPPER, 16, {"h": 64, "r": 32}),
    Entry(
        "square_output", Configuration({"BLOCK_T": 128, "BLOCK_N": 64}, 4, 3), ANY, 16, {"h": 64, "r": 64, "whole": 0}
    ),
    Entry("square_output", Configuration({"BLOCK_T": 128, "BLOCK_N": 64}, 8, 2), bits=16),
    Entry("square_output", Configuration({"BLOCK_T": 64, "BLOCK_N": 16}, 8, 1)),
    # With eight warps ptxas waits for every dot product (Triton 3.6).
    Entry(
        "output",
        Configuration({"BLOCK_T": 64, "BLOCK_N": 64, "BLOCK_M": 64, "BLOCK_INNER": 256}, 4, 2),
        *(HOPPER, 16, {"h": 64}),
    ),
    Entry("output", Configuration({"BLOCK_T": 128, "BLOCK_N": 64, "BLOCK_M": 64, "BLOCK_INNER": 256}, 8, 2), bits=16),
    Entry("output", Configuration({"BLOCK_T": 64, "BLOCK_N": 16, "BLOCK_M": 32, "BLOCK_INNER": 32}, 8, 1)),
    Entry("divide", Configuration({"BLOCK_T": 64}, 4, 1)),
    Entry("square_gradient", Configuration({"BLOCK_T": 128}, 4, 3), bits=16, at_most={"h": 64, "r": 64}),
    Entry("square_gradient", Configuration({"BLOCK_T": 64}, 8, 2), NEWER, 16),
    Entry("square_gradient", Configuration({"BLOCK_T": 128}, 8, 2), bits=16),
    Entry("square_gradient", Configuration({"BLOCK_T": 64}, 8, 1)),
    Entry("gradient", Configuration({"BLOCK_T": 128, "BLOCK_M": 64}, 4, 2), bits=16),
    Entry("gradient", Configuration({"BLOCK_T": 64, "BLOCK_M": 32}, 8, 1)),
    # Several small blocks on a multiprocessor: while one waits for a dot product, another one runs.
    Entry("intra_chunk_query", Configuration({"BLOCK_T": 64, "BLOCK_N": 64}, 4, 2), HOPPER, 16, SMALL),
    Entry("intra_chunk_query", Configuration({"BLOCK_T": 128, "BLOCK_N": 64}, 8, 3), ANY, 16, SMALL),
    Entry("intra_chunk_query", Configuration({"BLOCK_T": 128, "BLOCK_N": 64}, 8, 2), bits=16),
    Entry("intra_chunk_query", Configuration({"BLOCK_T": 32, "BLOCK_N": 32}, 8, 1)),
    Entry("intra_chunk_key", Configuration({"BLOCK_T": 64, "BLOCK_N": 64}, 4, 2), HOPPER, 16, SMALL),
    Entry("intra_chunk_key", Configuration({"BLOCK_T": 32, "BLOCK_N": 128}, 8, 2, 255), NEWER, 16),
    Entry("intra_chunk_key", Configuration({"BLOCK_T": 32, "BLOCK_N": 128}, 8, 2), bits=16),
    Entry("intra_chunk_key", Configuration({"BLOCK_T": 16, "BLOCK_N": 32}, 8, 1)),
)


def chosen(kernel: str, x: Tensor, **dims: int) -> Configuration:
    """The tiles of a kernel for tensors like x; `dims` are sizes that the table names."""
    return launching.configuration(ROWS, kernel, x, **dims)


def why_unsupported(query: Tensor, features: int, block_size: int | None, degree: int) -> str | None:
    """Why the kernels do not take queries like these, this number of features or block_size; None if they do."""
    head_dim = query.shape[-1]
    if block_size is not None and block_size < SHORTEST:
        return f"the kernels take a block_size of at least {SHORTEST}, this is {block_size}"
    if (reason := why_not_among("head_dim", head_dim, COLUMNS)) is not None:
        return reason
    if degree == 2 and features not in COLUMNS:
        return f"the kernels square {', '.join(map(str, COLUMNS))} features, not {features}"
    widest = max(features, head_dim) if degree == 2 and query.element_size() == 4 else 0
    if widest > WIDEST_FLOAT32 and launching.architecture(query.device) in launching.SMALL_SHARED_MEMORY:
        return f"this GPU's shared memory takes {WIDEST_FLOAT32} columns of float32, not {widest}"
    return None


def default_block_size(seq_len: int, features: int, degree: int) -> int:
    """The rows of a chunk where they change only the speed: the whole sequence if that is fewer multiplications."""
    if degree == 1:
        return max(128, min(512, padded(features)))
    return seq_len if seq_len <= QUADRATIC[features] else BLOCKS[features]


def padded(columns: int) -> int:
    """`columns` rounded up to what the tiles have; the rest is filled with zeros."""
    unit = PART if columns > WIDEST else max(16, 1 << (columns - 1).bit_length())
    return -(-columns // unit) * unit
