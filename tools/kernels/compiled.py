"""A kernel as a compiler leaves it: what it takes of a multiprocessor, and how many of its blocks fit there."""

from dataclasses import dataclass

from attention_zoo.ops.launching import Configuration
from tools.kernels.call import Call

# Of a multiprocessor of sm_80, sm_90 and sm_100: 32-bit registers and warps of each of its four parts, blocks.
PARTS, REGISTERS, WARPS, BLOCKS = 4, 16384, 16, 32
# Bytes of its shared memory, and what of it each block costs beside its own; columns of tensor memory (sm_100).
SHARED = {80: 164 * 1024, 90: 228 * 1024, 100: 228 * 1024}
RESERVED = 1024
COLUMNS = 512


@dataclass(frozen=True)
class Compiled:
    """One kernel that a call launches, compiled for `sm_<target>`.

    `version` counts those of one `function` that the call launches, `registers` are of a thread, `spill_bytes` what
    ptxas keeps of them in memory, `columns` are of tensor memory, `warnings` what ptxas says of performance lost.
    """

    call: Call
    function: str
    version: int
    target: int
    configuration: Configuration
    warps: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    columns: int
    warnings: tuple[str, ...]
    ptx: str
    cubin: bytes

    @property
    def kernel(self) -> str:
        """The function, from its second version on with a number behind it."""
        return self.function if self.version == 1 else f"{self.function} {self.version}"

    @property
    def serialised(self) -> bool:
        """Whether ptxas waits after every asynchronous product of the kernel."""
        return any("serialized" in warning for warning in self.warnings)

    @property
    def blocks(self) -> int:
        """How many blocks a multiprocessor takes at once, by registers, warps, shared and tensor memory."""
        # Registers are given to a warp in pieces of 256.
        of_a_warp = -(-self.registers // 8) * 8 * 32
        warps = PARTS * min(WARPS, REGISTERS // of_a_warp)
        by_shared = SHARED[self.target] // (self.shared_bytes + RESERVED)
        by_columns = COLUMNS // self.columns if self.columns else BLOCKS
        return min(warps // self.warps, by_shared, by_columns, BLOCKS)
