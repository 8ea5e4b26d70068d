"""The machine code of a kernel: its loops over tensor-core products, and its problems.

A hot loop is an innermost backward branch whose range has products and no EXIT. (Spin loops on a barrier are placed
behind the EXIT and branch back, so their range contains a whole loop and the EXIT.)
"""

import functools
import re
import subprocess
import tempfile
from collections import Counter
from typing import NamedTuple

from tools.kernels.compiled import Compiled

INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
PRODUCT = re.compile(r"HGMMA|HMMA|UTC\w*MMA")
# The architecture whose asynchronous products (wgmma) ptxas may serialise, and that also has slower ones (mma.sync).
HOPPER = 90


class Instruction(NamedTuple):
    """One line of machine code, such as `HGMMA.64x64x16.F32.BF16 R56, gdesc[UR4].tnspB, R56` at byte 0x0cb0."""

    address: int
    name: str
    operands: str

    @property
    def opcode(self) -> str:
        """The name up to the first dot."""
        return self.name.partition(".")[0]

    @property
    def in_registers(self) -> bool:
        """Whether it is an asynchronous product with its left operand in registers (RS), not in shared memory (SS)."""
        return self.opcode == "HGMMA" and self.operands.split(",")[1].strip().startswith("R")

    @property
    def pending(self) -> int | None:
        """How many groups of products may still run after this wait; None if it is not a wait for products."""
        return int(self.operands.split(",")[1], 16) if self.name.startswith("WARPGROUP.DEPBAR") else None


class Loop(NamedTuple):
    """The instructions of a loop."""

    body: tuple[Instruction, ...]

    def count(self, opcode: str) -> int:
        """How many instructions have exactly this opcode: STS does not count STSM."""
        return sum(instruction.opcode == opcode for instruction in self.body)

    @property
    def in_registers(self) -> int:
        """Number of products with the left operand in registers."""
        return sum(instruction.in_registers for instruction in self.body)

    @property
    def waits(self) -> tuple[int, ...]:
        """For each wait for asynchronous products, how many groups may still run after it."""
        return tuple(i.pending for i in self.body if i.pending is not None)

    @property
    def streams(self) -> bool:
        """Whether all products are asynchronous with the left operand in registers, as for features made on the fly."""
        return 0 < self.in_registers == sum(bool(PRODUCT.fullmatch(i.opcode)) for i in self.body)

    def __str__(self) -> str:
        """`171 instructions: 16 HGMMA (16 RS), 4 LDS; waits 1,1`, for example."""
        counts = Counter(instruction.opcode for instruction in self.body)
        shown = [f"{n} {name}" for name, n in sorted(counts.items()) if PRODUCT.fullmatch(name) and name != "HGMMA"]
        if counts["HGMMA"]:
            shown.insert(0, f"{counts['HGMMA']} HGMMA ({self.in_registers} RS)")
        shown += [f"{counts[name]} {name}" for name in ("STS", "LDS", "LDG", "MUFU", "SHFL") if counts[name]]
        waits = f"; waits {','.join(map(str, self.waits))}" if self.waits else ""
        return f"{len(self.body)} instructions: {', '.join(shown)}{waits}"


@functools.lru_cache(maxsize=64)
def instructions(cubin: bytes) -> tuple[Instruction, ...]:
    """The instructions of a kernel, sorted by address."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-sass", file.name]
        return parsed(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def parsed(listing: str) -> tuple[Instruction, ...]:
    """The instructions that `cuobjdump -sass` lists."""
    found = INSTRUCTION.findall(listing)
    return tuple(Instruction(int(address, 16), name, operands.strip()) for address, name, operands in found)


def hot_loops(code: tuple[Instruction, ...]) -> list[Loop]:
    """The innermost loops over products, sorted by address."""
    ends: dict[int, int] = {}
    for instruction in code:
        target = re.search(r"\b0x([0-9a-f]+)$", instruction.operands)
        if instruction.opcode == "BRA" and target and int(target[1], 16) < instruction.address:
            ends[int(target[1], 16)] = instruction.address
    spans = [(start, end) for start, end in ends.items() if _over_products(_range(code, start, end))]
    innermost = [(start, end) for start, end in spans if not any(start < a and b <= end for a, b in spans)]
    return [Loop(_range(code, *span)) for span in sorted(innermost)]


def _range(code: tuple[Instruction, ...], start: int, end: int) -> tuple[Instruction, ...]:
    return tuple(instruction for instruction in code if start <= instruction.address <= end)


def _over_products(body: tuple[Instruction, ...]) -> bool:
    products = any(PRODUCT.fullmatch(instruction.opcode) for instruction in body)
    return products and not any(instruction.opcode == "EXIT" for instruction in body)


def problems(compiled: Compiled) -> list[str]:
    """The problems of a kernel, in texts without numbers, so that they can be compared; empty if there are none."""
    code = instructions(compiled.cubin)
    opcodes = {instruction.opcode for instruction in code}
    found = {
        "spills registers": compiled.spill_bytes > 0,
        "is serialised": compiled.serialised,
        "does not fit on a multiprocessor": compiled.blocks == 0,
        "is a trap, the compiler gave up": "EXIT" not in opcodes,
    }
    if compiled.target == HOPPER and compiled.call.dtype.itemsize == 2:
        found["has products that are not wgmma (HMMA)"] = "HMMA" in opcodes
        if compiled.function in compiled.call.streaming:
            found |= _of_streaming(hot_loops(code))
    return [problem for problem, there in found.items() if there]


def _of_streaming(loops: list[Loop]) -> dict[str, bool]:
    """Problems -> whether the loops of a streaming kernel have them (see `Call.streaming`)."""
    streaming = [loop for loop in loops if loop.streams]
    return {
        "has no loop with all left operands in registers": not streaming,
        "waits for all products in a loop": any(0 in loop.waits for loop in streaming),
        "stores to shared memory in a loop (STS)": any(loop.count("STS") for loop in streaming),
        "waits for loads in a loop (LDG)": any(loop.count("LDG") for loop in streaming),
    }
