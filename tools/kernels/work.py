"""What a call has to do, launch by launch, and what its kernels were compiled to when that was predicted.

The sizes of tiles and the loops are those of `results/predictions/machine_code.csv`, for sm_90. The formulas are in
`exact_work`, `product_work` and `network_work`, and in `docs/kernel_model.md`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tools.kernels.clocks import Code, Kernel

FOLDER = Path(__file__).parents[2] / "results" / "predictions"
MACHINE_CODE = FOLDER / "machine_code.csv"
COLUMNS = ("call", "kernel", "configuration", "registers", "shared_bytes", "blocks", "instructions", "loops")
SM = 90
# Dimensions of a head, of values and of queries.
H = 64


class Compiled(NamedTuple):
    """A kernel as it was compiled: tiles by name, warps, blocks on a multiprocessor, instructions, its hot loops."""

    tiles: dict[str, int]
    warps: int
    resident: int
    instructions: int
    loops: tuple[Code, ...]

    @property
    def edges(self) -> float:
        """Instructions outside of the hot loops."""
        return self.instructions - sum(loop.instructions for loop in self.loops)


Codes = Mapping[tuple[str, str], Compiled]


class Operations(NamedTuple):
    """Operations of PyTorch around the kernels: each reads and writes memory once, `hbm_bytes` all of them together."""

    number: int
    hbm_bytes: float


@dataclass(frozen=True)
class Work:
    """All launches of one call, and what it is for: FLOPs by the formula that a speed is given in."""

    kernels: Sequence[Kernel]
    operations: Operations
    flops: float


def compiled(file: Path = MACHINE_CODE) -> Codes:
    """The table, by call and kernel."""
    with file.open(newline="") as lines:
        return {(row["call"], row["kernel"]): _parsed(row) for row in csv.DictReader(lines)}


def compile_again(file: Path = MACHINE_CODE) -> None:
    """Compile the calls of the table as the kernels are now, and write it: that takes a minute, and no GPU."""
    from tools.kernels import machine_code
    from tools.kernels.ahead_of_time import compile_call
    from tools.kernels.call import catalogue
    from tools.kernels.recorded import row

    with file.open(newline="") as lines:
        names = dict.fromkeys(line["call"] for line in csv.DictReader(lines))
    calls = {call.name: call for calls in catalogue().values() for call in calls}
    with file.open("w", newline="") as target:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(COLUMNS)
        for kernel in (kernel for name in names for kernel in compile_call(calls[name], SM)):
            told = row(kernel)._asdict() | {"instructions": len(machine_code.instructions(kernel.cubin))}
            writer.writerow([told[column] for column in COLUMNS])


def _parsed(row: dict[str, str]) -> Compiled:
    tiles = {name: int(size) for name, size in re.findall(r"(block(?:_[a-z]+)?)(\d+)", row["configuration"])}
    (warps,) = re.findall(r"_w(\d+)_", row["configuration"])
    loops = tuple(_code(text) for text in row["loops"].split(" / ") if text)
    return Compiled(tiles, int(warps), int(row["blocks"]), int(row["instructions"]), loops)


def _code(text: str) -> Code:
    """Of a text such as `171 instructions: 16 HGMMA (16 RS), 4 LDS; waits 1,1`."""

    def count(what: str) -> int:
        found = re.search(rf"(\d+) {what}\b", text)
        return int(found[1]) if found else 0

    waits = text.partition("waits ")[2]
    return Code(
        instructions=count("instructions"),
        products=count("HGMMA"),
        in_registers=count("RS"),
        drains=waits.split(",").count("0"),
        old_products=count("HMMA"),
        specials=count("MUFU"),
    )
