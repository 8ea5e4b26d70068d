"""The tiles of each Triton kernel by device and shape, found by measuring offline; nothing is tuned at run time.

A kernel's first row that fits is used, so the particular ones come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Configuration(NamedTuple):
    """Sizes of the tiles by the kernel's names for them, and what the compiler is told.

    `num_warps` work on a tile together, loads run `num_stages` ahead; `registers` caps those of a thread.
    """

    tiles: Mapping[str, int]
    num_warps: int
    num_stages: int
    registers: int | None = None

    @property
    def name(self) -> str:
        """Such as `block_m128_block_n64_w4_s3`."""
        tiles = "_".join(f"{tile.lower()}{size}" for tile, size in self.tiles.items())
        return f"{tiles}_w{self.num_warps}_s{self.num_stages}"


class Row(NamedTuple):
    """What a kernel uses, and where: `arch` and `bits` of a number, and the most that each size may be."""

    kernel: str
    configuration: Configuration
    arch: tuple[int, int] = (0, 999)
    bits: int | None = None
    at_most: Mapping[str, int] = {}  # noqa: RUF012

    def fits(self, arch: int, bits: int, dims: Mapping[str, int]) -> bool:
        """Whether this is a row for such a device and such tensors."""
        first, last = self.arch
        fitting = all(dims[name] <= most for name, most in self.at_most.items())
        return first <= arch <= last and self.bits in (None, bits) and fitting


TABLE: tuple[Row, ...] = ()
