"""How the kernels split a sequence into chunks, and group chunks into parts that run in parallel."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Warps that scan sequences on one multiprocessor at once, and the multiprocessors to assume without a GPU: an H100's.
WARPS, MULTIPROCESSORS = 8, 132
# The most parts of a sequence.
MOST_PARTS = 12
# The block of a running maximum: a GPU scans one long row slowly.
SCAN_BLOCK = 128
# The most columns that one tile has, and the columns of each tile where there are more.
WIDEST, PART = 128, 64


@dataclass(frozen=True)
class Chunks:
    """How a sequence is split, and which chunks read sums: those from `first_reader` to `last_reader`."""

    size: int
    count: int
    first_reader: int = 0
    last_reader: int = 0

    @classmethod
    def of(cls, seq_len: int, size: int) -> Chunks:
        """Chunks of a causal product: all but the first read the sums of the chunks before them."""
        count = -(-seq_len // size)
        return cls(size, count, 1, count - 1)

    @property
    def reversed(self) -> Chunks:
        """The same chunks in the backward pass: all but the last read the sums of the chunks after them."""
        return Chunks(self.size, self.count, 0, self.count - 2)

    def tiles(self, seq_len: int, block: int) -> int:
        """The number of tiles of `block` rows, where no tile has rows of two chunks."""
        return -(-seq_len // self.size) * -(-self.size // block)

    def overlap(self, block: int) -> bool:
        """Whether a tile of `block` rows may reach into the next chunk."""
        return self.count > 1 and self.size % block != 0

    @property
    def arguments(self) -> tuple[int, int, int, int]:
        """The fields in the order of the kernels' arguments."""
        return self.size, self.count, self.first_reader, self.last_reader


class Scales(NamedTuple):
    """Log scales of keys, and factors that keep sums relative to the largest scale so far, or of all if not causal.

    `key` multiplies what a row adds to the sums, `query` what a row reads of them, `decay` the sums at each chunk.
    """

    log: Tensor
    key: Tensor
    running: Tensor | None = None
    query: Tensor | None = None
    decay: Tensor | None = None


class IntraChunk(NamedTuple):
    """The inputs of the weights inside a chunk, `<query, key>^(2^log_degree)`, and the values."""

    query: Tensor
    key: Tensor
    value: Tensor
    log_degree: int

    def width(self, widest: int) -> int:
        """Columns of queries and keys in a tile: all if they are a power of two up to `widest`, else `PART`."""
        inner = self.query.shape[-1]
        return inner if inner <= widest and inner & (inner - 1) == 0 else PART


@functools.cache
def programs_at_once(device: torch.device, num_warps: int) -> int:
    """How many programs of `num_warps` warps scan sequences at once."""
    is_gpu = device.type == "cuda"
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count if is_gpu else MULTIPROCESSORS
    return WARPS // num_warps * multiprocessors


def steps_of_a_part(programs: int, chunks: int, at_once: int) -> int:
    """The chunks in each part of a sequence. Parts run in parallel, because few programs leave a device idle.

    A first pass sums every part but one: from these sums each part starts. Programs run in waves, and each wave
    takes as long as a part.
    """

    def time(steps: int) -> int:
        parts = -(-chunks // steps)
        return steps * sum(-(-programs * each // at_once) for each in (parts, parts - 1))

    most = max(1, min(MOST_PARTS, chunks // 2))
    return min((-(-chunks // parts) for parts in range(1, most + 1)), key=time)


def packed_products(r: int) -> int:
    """How many products of r numbers are stored: those of the 16 x 16 blocks on and above the diagonal."""
    return 256 * (r // 16 * (r // 16 + 1) // 2)


def running_maximum(x: Tensor) -> Tensor:
    """The maximum up to each position of the last dimension, computed in blocks."""
    length = x.shape[-1]
    blocks = F.pad(x, (0, -length % SCAN_BLOCK), value=-torch.inf).unflatten(-1, (-1, SCAN_BLOCK))
    within = blocks.cummax(-1).values
    before = F.pad(within[..., -1].cummax(-1).values[..., :-1], (1, 0), value=-torch.inf)
    return torch.maximum(within, before[..., None]).flatten(-2)[..., :length]
