"""What Triton kernels of several folders share: where rows are, and the layer norm of rows and its gradients."""

import triton
import triton.language as tl


@triton.jit
def rows_at(x, head, heads, rows, stride_batch, stride_head, stride_row):
    """To the first number of each of some rows of a head of x `(batch, heads, n, width)`: `(rows, 1)`.

    Heads are counted through the batch; sizes are of 64 bits.
    """
    first = x + (head // heads).to(tl.int64) * stride_batch + (head % heads).to(tl.int64) * stride_head
    return first + rows[:, None].to(tl.int64) * stride_row


@triton.jit
def first_of_rows(x, head, heads, rows):
    """`rows_at` of x as `launching.Rows`."""
    return rows_at(x.data, head, heads, rows, x.batch_stride, x.head_stride, x.row_stride)


@triton.jit
def standardised(x, eps, WIDTH: tl.constexpr):
    """Rows less their mean over their deviation, and one over the deviation."""
    x = x - tl.sum(x, 1)[:, None] / WIDTH
    rate = tl.rsqrt(tl.sum(x * x, 1) / WIDTH + eps)
    return x * rate[:, None], rate


@triton.jit
def affine(x, weight, bias, WIDTH: tl.constexpr):
    """Rows times the weight plus the bias, `(WIDTH,)`; None is none."""
    d = tl.arange(0, WIDTH)
    if weight is not None:
        x = x * tl.load(weight + d)[None, :]
    if bias is not None:
        x = x + tl.load(bias + d)[None, :]
    return x


@triton.jit
def pull_back(d_y, unit, rate, weight, d_weight, d_bias, WIDTH: tl.constexpr):
    """The gradient of rows that became `unit` and `rate`, and this program's row of those of weight and bias.

    `d_weight` and `d_bias` are `(programs, WIDTH)`, of a program for each tile.
    """
    d = tl.arange(0, WIDTH)
    if weight is not None:
        of_program = tl.program_id(0).to(tl.int64) * WIDTH + d
        tl.store(d_weight + of_program, tl.sum(d_y * unit, 0))
        tl.store(d_bias + of_program, tl.sum(d_y, 0))
        d_y = d_y * tl.load(weight + d)[None, :]
    along = tl.sum(d_y * unit, 1)[:, None] / WIDTH
    return (d_y - tl.sum(d_y, 1)[:, None] / WIDTH - unit * along) * rate[:, None]
