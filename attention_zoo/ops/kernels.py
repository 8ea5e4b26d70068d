"""What Triton kernels of several folders share: pointers to rows, and the layer norm of rows with its gradients."""

import triton
import triton.language as tl


@triton.jit
def first_of_rows(x, head, heads, rows):
    """Pointers `(rows, 1)` to the first element of some rows of a head of x, `Strided` `(batch, heads, n, width)`.

    `head` counts through the whole batch; offsets have 64 bits.
    """
    first = x.data + (head // heads).to(tl.int64) * x.batch_stride + (head % heads).to(tl.int64) * x.head_stride
    return first + rows[:, None].to(tl.int64) * x.row_stride


@triton.jit
def own_rows(x, heads, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr):
    """A program's head, the indices of its rows of x, and these rows."""
    tiles = tl.cdiv(x.rows, BLOCK_T)
    head, rows = tl.program_id(0) // tiles, tl.program_id(0) % tiles * BLOCK_T + tl.arange(0, BLOCK_T)
    source = first_of_rows(x, head, heads, rows) + tl.arange(0, WIDTH)[None, :]
    return head, rows, tl.load(source, (rows < x.rows)[:, None], 0.0)


@triton.jit
def standardised(x, eps, WIDTH: tl.constexpr):
    """Rows normalised to mean 0 and variance 1, and one over their standard deviation."""
    x = x - tl.sum(x, 1)[:, None] / WIDTH
    rate = tl.rsqrt(tl.sum(x * x, 1) / WIDTH + eps)
    return x * rate[:, None], rate


@triton.jit
def affine(x, weight, bias, WIDTH: tl.constexpr):
    """Rows times the weight plus the bias, both `(WIDTH,)` or None."""
    d = tl.arange(0, WIDTH)
    if weight is not None:
        x = x * tl.load(weight + d)[None, :]
    if bias is not None:
        x = x + tl.load(bias + d)[None, :]
    return x


@triton.jit
def pull_back(d_y, unit, rate, weight, d_weight, d_bias, WIDTH: tl.constexpr):
    """The gradient of rows before a layer norm (`unit, rate = standardised(rows)`), from that of its output.

    Stores this program's row of `d_weight` and `d_bias`, `(programs, WIDTH)`, one program per tile.
    """
    d = tl.arange(0, WIDTH)
    if weight is not None:
        of_program = tl.program_id(0).to(tl.int64) * WIDTH + d
        tl.store(d_weight + of_program, tl.sum(d_y * unit, 0))
        tl.store(d_bias + of_program, tl.sum(d_y, 0))
        d_y = d_y * tl.load(weight + d)[None, :]
    along = tl.sum(d_y * unit, 1)[:, None] / WIDTH
    return (d_y - tl.sum(d_y, 1)[:, None] / WIDTH - unit * along) * rate[:, None]
