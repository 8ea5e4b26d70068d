"""Only exponentials: the peak rate of a GPU's special function units. PyTorch's kernel waits for memory."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def exponentials_kernel(out, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Each chain starts from a different number, so that none can be shared; `x = 2^-x` converges to 0.64."""
    offsets = tl.arange(0, BLOCK)
    x = offsets.to(tl.float32) / BLOCK
    for _ in range(ROUNDS):
        x = tl.exp2(-x)
    tl.store(out + tl.program_id(0) * BLOCK + offsets, x)


def exponentials(out: Tensor, rounds: int) -> Tensor:
    """`rounds` successive exponentials for each entry of `out`, float32, whose size is a multiple of `BLOCK`."""
    exponentials_kernel[(out.numel() // BLOCK,)](out, ROUNDS=rounds, BLOCK=BLOCK, num_warps=4)
    return out
