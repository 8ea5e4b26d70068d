"""Exponentials and nothing else: what the special function units of a GPU reach. PyTorch's kernel waits for memory."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def exponentials_kernel(out, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """From numbers of their own, so that no two chains are one; each goes to 0.64 as `x = 2^-x` does."""
    offsets = tl.arange(0, BLOCK)
    x = offsets.to(tl.float32) / BLOCK
    for _ in range(ROUNDS):
        x = tl.exp2(-x)
    tl.store(out + tl.program_id(0) * BLOCK + offsets, x)


def exponentials(out: Tensor, rounds: int) -> Tensor:
    """`rounds` exponentials one after the other for each of `out`, float32, of a multiple of `BLOCK` numbers."""
    exponentials_kernel[(out.numel() // BLOCK,)](out, ROUNDS=rounds, BLOCK=BLOCK, num_warps=4)
    return out
