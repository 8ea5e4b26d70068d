"""The time of a kernel on paper, from what one of its blocks does on a multiprocessor, loop by loop.

`docs/kernel_model.md` has the reasoning. Nothing here is fitted to a measurement of these kernels: constants are what
somebody published or measured of the device, or judgements, and each says which.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# --- Arithmetic of a multiprocessor (SM) of sm_90, NVIDIA's H100 whitepaper ---------------------------

SMS = 132
# 16-bit FLOPs a clock: a product m64n64k16 takes 32 clocks.
TENSOR_FLOPS = 4096
# Each issues one instruction of a warp (32 threads) a clock.
SCHEDULERS = 4
SHARED_BYTES = 128
# Numbers that an instruction of the special function unit (exp, tanh) makes a clock, of all warps.
SPECIAL = 16

# --- Judgements: correct them after the first measurement ---------------------------------------------

# Published rates of the L2 cache are 5.5 to 7 TB/s: 24 to 31 bytes a clock for each SM.
L2_BYTES = 28.0
# A clock under load; the most is 1.98e9, and 798 TFLOP/s are the tensor cores always busy at 1.48e9.
CLOCK_HZ = 1.7e9
# Clocks from one instruction of a warp to its next while it has the scheduler for itself. The one constant that a
# measurement has set, of another kernel: `tutorial` below gets the speed that was published of it.
ISSUE_ALONE = 3.5
# Clocks until the first tiles of a loop are there, which nothing of the same block hides.
FILL = 1250.0
# Clocks of a wait for all products that are under way, beyond the products themselves.
DRAIN = 60.0
# Shared memory that products wait for is busy at most so much of the time: without this the model had 751 TFLOP/s for
# a kernel that it bounds, of which 450 to 560 are credible.
SUSTAINED = 0.7
# Products of the generation before (HMMA) reach this part of the tensor cores.
OLD_PRODUCTS = 0.6
# Seconds from the end of a kernel to the first work of the next in a full queue.
NEXT_KERNEL_S = 1.5e-6
# Seconds of the host to launch an operation of PyTorch, a Triton kernel, and to make a descriptor for it: 847
# operations took 6.5 ms, launches by Triton 3.6.0 over a stub of the driver 22 µs and with four descriptors 80 to 100.
OPERATION_S, TRITON_S, DESCRIPTOR_S = 7.7e-6, 22e-6, 17e-6
# Seconds that a caller waits beside them: the first launch to reach the device, the device's end to reach the host.
WAIT_S = 10e-6


class Device(NamedTuple):
    """What one device was measured to do at most."""

    name: str
    product_flops: float
    """FLOP/s of a large bfloat16 product."""
    copy_bytes: float
    """Bytes a second of a large copy, what is read and what is written."""


# Measured by large products and copies of PyTorch, no kernel of this repository.
DEVICES = (Device("H100 SXM", 798e12, 3.0e12), Device("H200", 790e12, 4.3e12))


class Code(NamedTuple):
    """What a loop compiled to, a warp's share: instructions, asynchronous products, how the loop waits for them."""

    instructions: int
    products: int = 0
    in_registers: int = 0
    """Products that take the left operand from registers and not from shared memory."""
    drains: int = 0
    """Waits for all products that are under way."""
    old_products: int = 0
    specials: int = 0
    """Instructions for the special function unit."""


@dataclass(frozen=True)
class Loop:
    """A loop of a block: `iterations` is the mean of all blocks, `times` how often it begins, the rest of an iteration.

    `flops` are those of the tensor cores, masked ones included, `l2_bytes` what is loaded from the cache.
    """

    code: Code
    iterations: float
    flops: float
    l2_bytes: float
    times: float = 1.0


@dataclass(frozen=True)
class Kernel:
    """A launch: its blocks, all alike but for the longest, and what all of them move.

    `resident` blocks fit on a multiprocessor; `edges` are the instructions of a warp outside of the loops; `longest` is
    the longest block's work over the mean; `hbm_bytes` are what is read and written once; `descriptors` are the tensors
    that it loads and stores by tiles.
    """

    name: str
    blocks: int
    warps: int
    resident: int
    hbm_bytes: float
    loops: Sequence[Loop] = ()
    edges: float = 0.0
    longest: float = 1.0
    descriptors: int = 0


class Predicted(NamedTuple):
    """Seconds of a kernel that is alone on the device, and what takes them."""

    seconds: float
    bound: str


def seconds(kernel: Kernel, device: Device) -> Predicted:
    """The longest of what the multiprocessors do, and what all together multiply and move.

    The blocks of a multiprocessor overlap: `share` of them one after another keep its busiest part busy, or each takes
    as long as it takes alone and `resident` run side by side.
    """
    share = kernel.blocks / SMS
    if kernel.longest == 1.0:  # equal blocks come in waves; of unequal ones the long come first and the short fill up
        share = math.ceil(share)
    parts = {name: share * clocks for name, clocks in busy(kernel).items()}
    parts["shared memory"] /= SUSTAINED
    side_by_side = max(1, min(kernel.resident, math.ceil(share)))
    rounds = max(1.0, share / side_by_side if kernel.longest != 1.0 else math.ceil(share / side_by_side))
    parts["latency"] = max(rounds, kernel.longest) * alone(kernel)
    times = {name: clocks / CLOCK_HZ for name, clocks in parts.items()}
    times["product rate"] = (
        kernel.blocks * sum(_total(loop, loop.flops) for loop in kernel.loops) / device.product_flops
    )
    times["memory"] = kernel.hbm_bytes / device.copy_bytes
    bound = max(times, key=times.__getitem__)
    return Predicted(times[bound] + NEXT_KERNEL_S, bound)


def busy(kernel: Kernel) -> dict[str, float]:
    """Clocks that one block keeps each part of its multiprocessor busy."""
    per_scheduler = kernel.warps / SCHEDULERS
    parts = {
        "tensor cores": 0.0,
        "issue": kernel.edges * per_scheduler,
        "shared memory": 0.0,
        "L2": 0.0,
        "special": 0.0,
    }
    for loop in kernel.loops:
        for name, clocks in _step(loop, kernel.warps).items():
            parts[name] += _total(loop, clocks)
    return parts


def alone(kernel: Kernel) -> float:
    """Clocks of a block that has a multiprocessor for itself."""
    pace = max(ISSUE_ALONE, kernel.warps / SCHEDULERS)
    begun = sum(loop.times for loop in kernel.loops)
    clocks = kernel.edges * pace + max(1.0, begun) * FILL
    for loop in kernel.loops:
        step = _step(loop, kernel.warps)
        issue, others = loop.code.instructions * pace, max(step["L2"], step["special"])
        products = max(step["tensor cores"], step["shared memory"])
        # Behind a wait for all products nothing overlaps them but loads, which run ahead.
        work = products + issue + loop.code.drains * DRAIN if loop.code.drains else max(products, issue)
        clocks += _total(loop, max(work, others))
    return clocks


def _step(loop: Loop, warps: int) -> dict[str, float]:
    """Clocks that an iteration keeps each part busy."""
    code = loop.code
    rate = TENSOR_FLOPS * (OLD_PRODUCTS if code.old_products else 1.0)
    # Of a product of 64 x 16 numbers with 16 x N: 2,048 bytes of a left operand in shared memory, 32 N of the right.
    left = warps / 4 * (code.products - code.in_registers) * 2048
    right = loop.flops / 64 if code.products else 0.0
    return {
        "tensor cores": loop.flops / rate,
        "issue": code.instructions * warps / SCHEDULERS,
        "shared memory": (left + right + loop.l2_bytes) / SHARED_BYTES,
        "L2": loop.l2_bytes / L2_BYTES,
        "special": code.specials * warps * 32 / SPECIAL,
    }


def _total(loop: Loop, of_an_iteration: float) -> float:
    return loop.times * loop.iterations * of_an_iteration


def eager_seconds(on_device: float, operations: int, kernels: Sequence[Kernel]) -> float:
    """What a caller waits: for the host or for the device, whichever is longer, and for the way there and back."""
    launches = sum(TRITON_S + kernel.descriptors * DESCRIPTOR_S for kernel in kernels)
    return max(on_device, operations * OPERATION_S + launches) + WAIT_S
