"""A compiled kernel: its resources, and how many of its blocks fit on a multiprocessor."""

from dataclasses import dataclass

from attention_zoo.ops.launching import Configuration
from tools.kernels.call import Call

# A multiprocessor of sm_80, sm_90 and sm_100: partitions, 32-bit registers and warps of each partition; most blocks.
PARTS, REGISTERS, WARPS, BLOCKS = 4, 16384, 16, 32
# Bytes of shared memory, bytes of it reserved per block, columns of tensor memory (sm_100).
SHARED = {80: 164 * 1024, 90: 228 * 1024, 100: 228 * 1024}
RESERVED = 1024
COLUMNS = 512


@dataclass(frozen=True)
class Compiled:
    """One kernel that a call launches, compiled for `sm_<target>`.

    `version` numbers the kernels of one `function` in the call; `registers` are per thread; `spill_bytes` is what
    ptxas spills to memory; `columns` are of tensor memory; `warnings` are ptxas' warnings about performance.
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
    cubin: bytes

    @property
    def kernel(self) -> str:
        """The name of the function, followed by the version from the second one on."""
        return self.function if self.version == 1 else f"{self.function} {self.version}"

    @property
    def serialised(self) -> bool:
        """Whether ptxas waits after every asynchronous product of the kernel."""
        return any("serialized" in warning for warning in self.warnings)

    @property
    def blocks(self) -> int:
        """How many blocks fit on a multiprocessor at once, by registers, warps, shared and tensor memory."""
        # Registers are allocated to a warp in units of 256.
        of_a_warp = -(-self.registers // 8) * 8 * 32
        warps = PARTS * min(WARPS, REGISTERS // of_a_warp)
        by_shared = SHARED[self.target] // (self.shared_bytes + RESERVED)
        by_columns = COLUMNS // self.columns if self.columns else BLOCKS
        return min(warps // self.warps, by_shared, by_columns, BLOCKS)
