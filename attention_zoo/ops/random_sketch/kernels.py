"""Triton kernels for a level of a random sketch: every number is read once and written once."""

import triton
import triton.language as tl

from attention_zoo.ops.kernels import affine, pull_back, rows_at, standardised


@triton.jit
def _inputs(
    x, y, weight, bias, eps, heads, seq_len, x_batch, x_head, x_row, y_batch, y_head, y_row,
    WIDTH: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """A program's head and rows, both inputs of these, and what the layer norm of the first was made of."""
    tiles = tl.cdiv(seq_len, BLOCK_T)
    head, rows = tl.program_id(0) // tiles, tl.program_id(0) % tiles * BLOCK_T + tl.arange(0, BLOCK_T)
    d, visible = tl.arange(0, WIDTH), (rows < seq_len)[:, None]
    first = tl.load(rows_at(x, head, heads, rows, x_batch, x_head, x_row) + d[None, :], visible, 0.0)
    unit, rate = first, first  # without a norm nobody reads them; Triton 3.6 returns no None
    if weight is not None:
        unit, rate = standardised(first.to(tl.float32), eps, WIDTH)
        first = affine(unit, weight, bias, WIDTH).to(first.dtype)
    second = first
    if y is not None:
        second = tl.load(rows_at(y, head, heads, rows, y_batch, y_head, y_row) + d[None, :], visible, 0.0)
    return head, rows, first, second, unit, rate


@triton.jit
def sketch_kernel(
    x,  # (batch, heads, n, width), of any strides but the last
    y,  # the same; None is x
    weight,  # (width,), of the layer norm; None is without
    bias,
    matrices,  # (groups, width, 2, r)
    out,  # (batch * heads, n, r)
    factor, eps, heads, seq_len, stride_group, stride_x_batch, stride_x_head, stride_x_row, stride_y_batch,
    stride_y_head, stride_y_row,
    WIDTH: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """`factor (x G1) o (y G2)` of a tile of rows."""
    head, rows, first, second, _, _ = _inputs(
        *(x, y, weight, bias, eps, heads, seq_len, stride_x_batch, stride_x_head, stride_x_row),
        *(stride_y_batch, stride_y_head, stride_y_row, WIDTH, BLOCK_T),
    )
    d, r, visible = tl.arange(0, WIDTH), tl.arange(0, R), (rows < seq_len)[:, None]
    matrix = matrices + head % heads * stride_group + d[:, None] * 2 * R + r[None, :]
    left = tl.dot(first, tl.load(matrix), input_precision=PRECISION)
    right = tl.dot(second, tl.load(matrix + R), input_precision=PRECISION)
    place = out + (head.to(tl.int64) * seq_len + rows[:, None]) * R + r[None, :]
    tl.store(place, (left * right * factor).to(out.dtype.element_ty), visible)


@triton.jit
def sketch_gradient_kernel(
    x, y, weight, bias, matrices,
    grad,  # (batch, heads, n, r), of any strides but the last
    d_x,  # (batch * heads, n, width)
    d_y,  # the same, or None
    d_weight,  # (programs, width), or None
    d_bias, factor, eps, heads, seq_len, stride_group, stride_x_batch, stride_x_head, stride_x_row, stride_y_batch,
    stride_y_head, stride_y_row, stride_grad_batch, stride_grad_head, stride_grad_row,
    WIDTH: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of rows, and its share of those of the layer norm's parameters."""
    head, rows, first, second, unit, rate = _inputs(
        *(x, y, weight, bias, eps, heads, seq_len, stride_x_batch, stride_x_head, stride_x_row),
        *(stride_y_batch, stride_y_head, stride_y_row, WIDTH, BLOCK_T),
    )
    d, r, visible = tl.arange(0, WIDTH), tl.arange(0, R), (rows < seq_len)[:, None]
    matrix = matrices + head % heads * stride_group + d[:, None] * 2 * R + r[None, :]
    left_matrix, right_matrix = tl.load(matrix), tl.load(matrix + R)
    left = tl.dot(first, left_matrix, input_precision=PRECISION)
    right = tl.dot(second, right_matrix, input_precision=PRECISION)
    place = rows_at(grad, head, heads, rows, stride_grad_batch, stride_grad_head, stride_grad_row)
    upstream = tl.load(place + r[None, :], visible, 0.0).to(tl.float32) * factor
    of_left, of_right = (upstream * right).to(first.dtype), (upstream * left).to(first.dtype)
    d_first = tl.dot(of_left, tl.trans(left_matrix), input_precision=PRECISION)
    of_head = (head.to(tl.int64) * seq_len + rows[:, None]) * WIDTH + d[None, :]
    if y is not None:
        d_second = tl.dot(of_right, tl.trans(right_matrix), input_precision=PRECISION)
        tl.store(d_y + of_head, d_second.to(d_y.dtype.element_ty), visible)
    else:
        d_first = tl.dot(of_right, tl.trans(right_matrix), d_first, input_precision=PRECISION)
    if weight is not None:
        d_first = pull_back(d_first, unit, rate, weight, d_weight, d_bias, WIDTH)
    tl.store(d_x + of_head, d_first.to(d_x.dtype.element_ty), visible)
