"""What Triton kernels of several folders share."""

import triton
import triton.language as tl


@triton.jit
def rows_of(x, head, heads, rows, stride_batch, stride_head, stride_row):
    """The first number of each of some rows of a head of x `(batch, heads, n, width)`, `(rows, 1)`.

    Heads are counted through the batch; sizes are of 64 bits.
    """
    first = x + (head // heads).to(tl.int64) * stride_batch + (head % heads).to(tl.int64) * stride_head
    return first + rows[:, None].to(tl.int64) * stride_row
