"""What a call has to do, launch by launch, and what its kernels were compiled to when that was predicted.

The sizes of tiles and the loops are those of `results/predictions/machine_code.csv`, for sm_90. Here are exact
attention, the learned sketch's networks and a decoding step; `product_work` has the feature products. Why the formulas
are as they are is in `docs/kernel_model.md`.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tools.kernels.clocks import Code, Kernel, Loop

FOLDER = Path(__file__).parents[2] / "results" / "predictions"
MACHINE_CODE = FOLDER / "machine_code.csv"
COLUMNS = ("call", "kernel", "configuration", "registers", "shared_bytes", "blocks", "instructions", "loops")
SM = 90
# Dimensions of a head, of values and of queries.
H = 64
# The loop of a decoding step, which multiplies nothing on tensor cores: so it is not in the table, but was read.
STEP = Code(instructions=330)


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


def polynomial(heads: int, n: int, p: int, code: Codes, *, backward: bool) -> Work:
    """A causal forward pass, and the backward pass with it; its speed is given as that of softmax is, 2 h n FLOPs."""
    rows, call = heads * n, f"p{p} h64 causal bfloat16"
    how = {name: code[f"polynomial forward {call}", name] for name in ("prepare_keys", "prepare_queries", "forward")}
    kernels = [
        # A tensor in and one out, norms, units.
        _by_rows(how["prepare_keys"], "prepare_keys", rows, 4 * H + 4),
        _by_rows(how["prepare_queries"], "prepare_queries", rows, 4 * H + 8),
        _exact(how["forward"], "forward", rows, n, flops=2 * H, outputs=H, order=(0, 1)),
    ]
    flops = 2.0 * rows * n * H
    if not backward:
        return Work(kernels, Operations(0, 0.0), flops)
    names = "prepare_gradients", "backward_keys", "backward_queries", "pull_norm"
    how = {name: code[f"polynomial backward {call}", name] for name in names}
    kernels += [
        _by_rows(how["prepare_gradients"], "prepare_gradients", rows, 10 * H + 8, descriptors=5),
        _exact(how["backward_keys"], "backward_keys", rows, n, flops=4 * H, outputs=2 * H, order=(1, 0)),
        _exact(how["backward_queries"], "backward_queries", rows, n, flops=3 * H, outputs=H, order=(0, 1)),
        *(_by_rows(how["pull_norm"], f"pull_norm of {x}", rows, 6 * H) for x in ("queries", "keys")),
    ]
    # Sums of the norm's gradients, and autograd's own.
    return Work(kernels, Operations(6, 0.0), 3.5 * flops)


def _by_rows(how: Compiled, name: str, rows: int, moved: int, descriptors: int = 0) -> Kernel:
    """A kernel that reads and writes so many bytes of each row once."""
    blocks = rows // how.tiles["block_m"]
    return Kernel(name, blocks, how.warps, how.resident, float(rows * moved), edges=how.edges, descriptors=descriptors)


def _exact(how: Compiled, name: str, rows: int, n: int, *, flops: int, outputs: int, order: tuple[int, int]) -> Kernel:
    """A kernel over tiles of the lower triangle; `order` is where the loops without and with a mask stand."""
    block_m, block_n = how.tiles["block_m"], how.tiles["block_n"]
    own, other = (block_n, block_m) if name == "backward_keys" else (block_m, block_n)
    before, diagonal = (n / own - 1) / 2 * own / other, max(1.0, own / other)
    per_tile, loaded = 2.0 * block_m * block_n * flops, 2.0 * other * 2 * H
    whole, masked = (how.loops[index] for index in order)
    return Kernel(
        name,
        blocks=rows // own,
        warps=how.warps,
        resident=how.resident,
        hbm_bytes=rows * 2.0 * (4 * H + outputs),
        loops=[Loop(whole, before, per_tile, loaded), Loop(masked, diagonal, per_tile, loaded)],
        edges=how.edges,
        longest=2.0,
        # Queries, keys, values and gradients, and what comes out.
        descriptors={"backward_keys": 6, "backward_queries": 5}.get(name, 4),
    )


def tutorial(heads: int, n: int) -> Work:
    """Triton's tutorial of softmax attention, causal, h = 64: what `ISSUE_ALONE` is set by.

    About nine instructions and one exponential a score (read in its machine code), 128 x 64 scores of four warps.
    """
    loop = Code(instructions=9 * 64, products=16, in_registers=8, drains=1, specials=64)
    how = Compiled({"block_m": 128, "block_n": 64}, 4, 2, 3 * 9 * 64, (loop, loop))
    kernel = _exact(how, "softmax", heads * n, n, flops=2 * H, outputs=H, order=(0, 1))
    return Work([kernel], Operations(0, 0.0), 2.0 * heads * n * n * H)


def networks(rows: int, r: int, code: Codes, *, backward: bool) -> Work:
    """Both networks of one level, of queries or keys: LayerNorm, Dense to 8 r hidden units, gelu, Dense, twice."""
    forward = 2 * 2.0 * 8 * r * (H + 3 * r) * rows
    kernels = [_networks(rows, r, code[f"sketch networks forward r{r} h64", "networks"], "networks", 2 * (H + r))]
    if not backward:
        return Work(kernels, Operations(8, 0.0), forward)
    of_pass = f"sketch networks backward r{r} h64"
    # Its inputs, their gradients, and what stands between the blocks.
    kernels.append(_networks(rows, r, code[of_pass, "networks"], "networks again", 2 * (H + r) + 2 * (H + 4 * r) + 12))
    for version, width in (("", r), (" 2", H)):
        how = code[of_pass, f"input_gradient{version}"]
        kernels.append(_of_units(rows, r, width, how, f"input_gradient{version}", over_rows=False))
    for version, width in (("", H), (" 2", r)):
        how = code[of_pass, f"weight_gradients{version}"]
        kernels.append(_of_units(rows, r, width, how, f"weight_gradients{version}", over_rows=True))
    return Work(kernels, Operations(30, 0.0), 3 * forward)


def _networks(rows: int, r: int, how: Compiled, name: str, bytes_of_row: float) -> Kernel:
    block_m, hidden = how.tiles["block_m"], how.tiles["block_hidden"]
    steps = 2 * 8 * r / hidden  # of both networks
    loops = [
        Loop(code, steps / 2, 2.0 * block_m * hidden * (width + r), 2.0 * hidden * (width + r), times=2)
        for code, width in zip(how.loops, (H, r), strict=True)
    ]
    edges = 2 * how.edges
    return Kernel(name, rows // block_m, how.warps, how.resident, rows * bytes_of_row, loops, edges)


def _of_units(rows: int, r: int, width: int, how: Compiled, name: str, *, over_rows: bool) -> Kernel:
    """A gradient: of inputs, by programs of rows that walk over hidden units; of weights, the other way round."""
    block_m, hidden, units = how.tiles["block_m"], how.tiles["block_hidden"], 8 * r
    distinct = 1 if width == H else 2
    per_tile = 2.0 * block_m * hidden * (2 * width + r + (r if over_rows else 0))
    if over_rows:
        blocks = 512  # of both networks, each with a share of the rows
        steps = rows / block_m * 2 * units / hidden / blocks
        loop = Loop(how.loops[0], steps, per_tile, 2.0 * block_m * (width + r))
    else:
        blocks = distinct * rows // block_m
        loop = Loop(how.loops[0], units / hidden, per_tile, 2.0 * hidden * (width + r), times=2 / distinct)
    moved = rows * 2.0 * (distinct * width * (1 if over_rows else 2) + 2 * r)
    return Kernel(name, blocks, how.warps, how.resident, moved, [loop], how.edges)


def decoding(heads: int, r: int, code: Codes) -> Work:
    """A step with a gaussian sketch of degree 4: the state is read and written once, in float32."""
    how = code[f"decoding polysketch r{r} h64", "sketched_step"]
    features, rows = r * (r + 1) // 2, 16
    parts = H // rows
    state = heads * parts * (rows + 1) * features * 4.0
    loop = Loop(STEP, features / how.tiles["block"], 0.0, 0.0)
    kernel = Kernel("sketched_step", heads * parts, how.warps, how.resident, 2 * state, [loop], how.edges)
    return Work([kernel], Operations(0, 0.0), 4.0 * heads * features * H)
