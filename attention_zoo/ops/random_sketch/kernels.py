"""Triton kernels for a level of a random sketch: every number is read once and written once."""

import triton
import triton.language as tl

from attention_zoo.ops.kernels import affine, first_of_rows, own_rows, pull_back, standardised


@triton.jit
def _inputs(x, y, weight, bias, eps, heads, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr):
    """A program's head and rows, both inputs of these, and what the layer norm of the first was made of."""
    head, rows, first = own_rows(x, heads, WIDTH, BLOCK_T)
    unit, rate = first, first  # without a norm nobody reads them; Triton 3.6 returns no None
    if weight is not None:
        unit, rate = standardised(first.to(tl.float32), eps, WIDTH)
        first = affine(unit, weight, bias, WIDTH).to(first.dtype)
    second = first
    if y is not None:
        _, _, second = own_rows(y, heads, WIDTH, BLOCK_T)
    return head, rows, first, second, unit, rate


@triton.jit
def sketch_kernel(
    x,  # Rows (batch, heads, n, width)
    y,  # the same; None is x
    weight,  # (width,), of the layer norm; None is without
    bias,
    matrices,  # (groups, width, 2, r)
    out,  # (batch * heads, n, r)
    factor, eps, heads, stride_group,
    WIDTH: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """`factor (x G1) o (y G2)` of a tile of rows."""
    head, rows, first, second, _, _ = _inputs(x, y, weight, bias, eps, heads, WIDTH, BLOCK_T)
    d, r, visible = tl.arange(0, WIDTH), tl.arange(0, R), (rows < x.rows)[:, None]
    matrix = matrices + head % heads * stride_group + d[:, None] * 2 * R + r[None, :]
    left = tl.dot(first, tl.load(matrix), input_precision=PRECISION)
    right = tl.dot(second, tl.load(matrix + R), input_precision=PRECISION)
    place = out + (head.to(tl.int64) * x.rows + rows[:, None]) * R + r[None, :]
    tl.store(place, (left * right * factor).to(out.dtype.element_ty), visible)


@triton.jit
def sketch_gradient_kernel(
    x, y, weight, bias, matrices,
    grad,  # Rows (batch, heads, n, r)
    d_x,  # (batch * heads, n, width)
    d_y,  # the same, or None
    d_weight,  # (programs, width), or None
    d_bias,
    factor, eps, heads, stride_group,
    WIDTH: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of rows, and its share of those of the layer norm's parameters."""
    head, rows, first, second, unit, rate = _inputs(x, y, weight, bias, eps, heads, WIDTH, BLOCK_T)
    d, r, visible = tl.arange(0, WIDTH), tl.arange(0, R), (rows < x.rows)[:, None]
    matrix = matrices + head % heads * stride_group + d[:, None] * 2 * R + r[None, :]
    left_matrix, right_matrix = tl.load(matrix), tl.load(matrix + R)
    left = tl.dot(first, left_matrix, input_precision=PRECISION)
    right = tl.dot(second, right_matrix, input_precision=PRECISION)
    upstream = tl.load(first_of_rows(grad, head, heads, rows) + r[None, :], visible, 0.0).to(tl.float32) * factor
    of_left, of_right = (upstream * right).to(first.dtype), (upstream * left).to(first.dtype)
    d_first = tl.dot(of_left, tl.trans(left_matrix), input_precision=PRECISION)
    of_head = (head.to(tl.int64) * x.rows + rows[:, None]) * WIDTH + d[None, :]
    if y is not None:
        d_second = tl.dot(of_right, tl.trans(right_matrix), input_precision=PRECISION)
        tl.store(d_y + of_head, d_second.to(d_y.dtype.element_ty), visible)
    else:
        d_first = tl.dot(of_right, tl.trans(right_matrix), d_first, input_precision=PRECISION)
    if weight is not None:
        d_first = pull_back(d_first, unit, rate, weight, d_weight, d_bias, WIDTH)
    tl.store(d_x + of_head, d_first.to(d_x.dtype.element_ty), visible)
