"""The networks of one level of a learned sketch, and the gradients of their parts, in Triton's language.

A network is two blocks: `hat(u) = (u - mean) / std` of a row, `z = hat W_in + bias`, `gelu(z) W_out`. Hidden units are
computed in tiles and never written to memory. Rows are the tokens of all sequences, grouped by group of networks.
Networks are stacked: `w_in` is `(2, groups, width, hidden)`, `bias` `(2, groups, hidden)`, `w_out`
`(2, groups, hidden, r)`, all contiguous.
"""

import triton
import triton.language as tl

from attention_zoo.ops.kernels import pull_back, standardised

# gelu(z) = z (1 + tanh(z (C0 + C1 z^2))) / 2
C0 = tl.constexpr(0.7978845608028654)
C1 = tl.constexpr(0.044715 * 0.7978845608028654)


@triton.jit
def _doubled_gelu(z, bias):
    """`2 gelu(z + bias)` of a float32 z and a float16 bias, in float16: two elements per instruction."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 z, s, c0, c1;
        mov.b32 c0, 0x3A623A62;
        mov.b32 c1, 0x28912891;
        cvt.rn.f16x2.f32 z, $2, $1;
        add.rn.f16x2 z, z, $3;
        mul.rn.f16x2 s, z, z;
        fma.rn.f16x2 s, s, c1, c0;
        mul.rn.f16x2 s, z, s;
        tanh.approx.f16x2 s, s;
        fma.rn.f16x2 $0, z, s, z;
        }
        """,
        "=r,r,r,r",
        [z, bias],
        dtype=tl.float16,
        is_pure=True,
        pack=2,
    )


@triton.jit
def _tanh(u, FAST: tl.constexpr):
    if FAST:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [u], tl.float32, is_pure=True, pack=1)
    return 2 * tl.sigmoid(2 * u) - 1


@triton.jit
def _inner_tanh(z, FAST: tl.constexpr):
    """The tanh of `2 gelu(z) = z + z tanh`."""
    return _tanh(z * (C0 + C1 * z * z), FAST)


@triton.jit
def _doubled_slope(z, tanh):
    """Twice the derivative of gelu at z, whose `_inner_tanh` is `tanh`."""
    return 1 + (tanh + (1 - tanh * tanh) * (z * (C0 + 3 * C1 * z * z)))


@triton.jit
def _block(
    hat, w_in, bias, w_out,
    HIDDEN: tl.constexpr, R: tl.constexpr, BLOCK_HIDDEN: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`gelu(hat W_in + bias) W_out`, `(rows, r)`."""
    features = tl.arange(0, hat.shape[1])
    columns = tl.arange(0, R)
    out = tl.zeros([hat.shape[0], R], tl.float32)
    for first in range(0, HIDDEN, BLOCK_HIDDEN):
        units = first + tl.arange(0, BLOCK_HIDDEN)
        into = tl.load(w_in + features[:, None] * HIDDEN + units[None, :])
        onto = tl.load(w_out + units[:, None] * R + columns[None, :])
        added = tl.load(bias + units)[None, :]
        z = tl.dot(hat, into, input_precision=PRECISION)
        if FAST:
            hidden = _doubled_gelu(z, added.to(tl.float16))
        else:
            z += added
            hidden = (z + z * _inner_tanh(z, False)).to(hat.dtype)
        out = tl.dot(hidden, onto, out, input_precision=PRECISION)
    return 0.5 * out


@triton.jit
def networks(
    x_ptr, y_ptr, w1_ptr, b1_ptr, w2_ptr, w3_ptr, b3_ptr, w4_ptr, out_ptr, d_out_ptr, hats_ptr, rstds_ptr,
    inner_hats_ptr, inner_rstds_ptr, d_networks_ptr, x_outer, x_inner, x_row, y_outer, y_inner, y_row, inner, rows,
    total, groups, eps,
    WIDTH: tl.constexpr, R: tl.constexpr, HIDDEN: tl.constexpr, DISTINCT: tl.constexpr, RECOMPUTE: tl.constexpr,
    FAST: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_HIDDEN: tl.constexpr,
):  # fmt: skip
    """`sqrt(r) tanh(f1(x) f2(y) / sqrt(r))`; or, if `RECOMPUTE`, what the gradients of its blocks need.

    That is both `hat`s of each network, one over their standard deviations, and the gradients of f1 and f2. If
    `DISTINCT` is 1, x is y, and the first `hat` is stored once.
    """
    tiles = tl.cdiv(rows, BLOCK_M)
    sequence = (tl.program_id(0) // tiles).to(tl.int64)
    first = (tl.program_id(0) % tiles) * BLOCK_M
    in_tile = tl.arange(0, BLOCK_M)
    inside = first + in_tile < rows
    row = sequence * rows + first + in_tile
    of_a_network = tl.cast(total, tl.int64)  # an argument of 1 becomes a constant, which has no `to`
    group = tl.where(groups > 1, sequence // inner, 0)
    features = tl.arange(0, WIDTH)
    columns = tl.arange(0, R)
    kind = w1_ptr.dtype.element_ty
    f1 = tl.zeros([BLOCK_M, R], tl.float32)
    f2 = tl.zeros([BLOCK_M, R], tl.float32)
    for network in range(2):
        if network == 0:
            u_ptr = x_ptr + (sequence // inner) * x_outer + (sequence % inner) * x_inner + first.to(tl.int64) * x_row
            u_row = x_row
        else:
            u_ptr = y_ptr + (sequence // inner) * y_outer + (sequence % inner) * y_inner + first.to(tl.int64) * y_row
            u_row = y_row
        u = tl.load(u_ptr + in_tile[:, None] * u_row + features[None, :], mask=inside[:, None], other=0)
        which = network * groups + group
        hat, rstd = standardised(u.to(tl.float32), eps, WIDTH)
        if RECOMPUTE:
            if network < DISTINCT:
                at = network * of_a_network + row
                tl.store(hats_ptr + at[:, None] * WIDTH + features[None, :], hat, mask=inside[:, None])
                tl.store(rstds_ptr + at, rstd, mask=inside)
        f1 = f2
        w_in, bias, w_out = w1_ptr + which * WIDTH * HIDDEN, b1_ptr + which * HIDDEN, w2_ptr + which * HIDDEN * R
        between = _block(hat.to(kind), w_in, bias, w_out, HIDDEN, R, BLOCK_HIDDEN, FAST, PRECISION)
        hat, rstd = standardised(between, eps, R)
        if RECOMPUTE:
            at = network * of_a_network + row
            tl.store(inner_hats_ptr + at[:, None] * R + columns[None, :], hat, mask=inside[:, None])
            tl.store(inner_rstds_ptr + at, rstd, mask=inside)
        w_in, bias, w_out = w3_ptr + which * R * HIDDEN, b3_ptr + which * HIDDEN, w4_ptr + which * HIDDEN * R
        f2 = _block(hat.to(kind), w_in, bias, w_out, HIDDEN, R, BLOCK_HIDDEN, FAST, PRECISION)
    root: tl.constexpr = R**0.5
    bounded = _tanh(f1 * f2 / root, False)
    at = row[:, None] * R + columns[None, :]
    if RECOMPUTE:
        d_out = tl.load(d_out_ptr + at, mask=inside[:, None], other=0).to(tl.float32)
        d_product = d_out * (1 - bounded * bounded)
        tl.store(d_networks_ptr + at, d_product * f2, mask=inside[:, None])
        tl.store(d_networks_ptr + of_a_network * R + at, d_product * f1, mask=inside[:, None])
    else:
        tl.store(out_ptr + at, root * bounded, mask=inside[:, None])


@triton.jit
def input_gradient(
    hats_ptr, rstds_ptr, d_out_ptr, w_in_ptr, bias_ptr, w_out_ptr, d_in_ptr, rows, groups,
    WIDTH: tl.constexpr, R: tl.constexpr, HIDDEN: tl.constexpr, DISTINCT: tl.constexpr, FAST: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_HIDDEN: tl.constexpr,
):  # fmt: skip
    """The gradient of a block's input, from hats `(DISTINCT, groups, rows, WIDTH)`, gradients `(2, groups, rows, R)`.

    The gradients of both networks are added if they have the same input.
    """
    tiles = tl.cdiv(rows, BLOCK_M)
    of_group = tl.program_id(0) // tiles  # (first network, group)
    in_group = (tl.program_id(0) % tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = in_group < rows
    row = of_group.to(tl.int64) * rows + in_group
    features = tl.arange(0, WIDTH)
    columns = tl.arange(0, R)
    hat = tl.load(hats_ptr + row[:, None] * WIDTH + features[None, :], mask=inside[:, None], other=0)
    d_hat = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    for other in range(0, 2 * groups, DISTINCT * groups):
        which = of_group + other
        d_out_row = which.to(tl.int64) * rows + in_group
        d_out = tl.load(d_out_ptr + d_out_row[:, None] * R + columns[None, :], mask=inside[:, None], other=0)
        w_in, bias = w_in_ptr + which * WIDTH * HIDDEN, bias_ptr + which * HIDDEN
        w_out = w_out_ptr + which * HIDDEN * R
        for first in range(0, HIDDEN, BLOCK_HIDDEN):
            units = first + tl.arange(0, BLOCK_HIDDEN)
            into = tl.load(w_in + features[:, None] * HIDDEN + units[None, :])
            onto = tl.load(w_out + units[:, None] * R + columns[None, :])
            added = tl.load(bias + units)[None, :]
            z = tl.dot(hat, into, input_precision=PRECISION) + added
            d_z = tl.dot(d_out, tl.trans(onto), input_precision=PRECISION) * _doubled_slope(z, _inner_tanh(z, FAST))
            d_hat = tl.dot(d_z.to(hat.dtype), tl.trans(into), d_hat, input_precision=PRECISION)
    rstd = tl.load(rstds_ptr + row, mask=inside, other=0)
    d_in = pull_back(0.5 * d_hat, hat.to(tl.float32), rstd, None, None, None, WIDTH)
    tl.store(d_in_ptr + row[:, None] * WIDTH + features[None, :], d_in, mask=inside[:, None])


@triton.jit
def weight_gradients(
    hats_ptr, d_out_ptr, w_in_ptr, bias_ptr, w_out_ptr, d_in_ptr, d_bias_ptr, d_out_weights_ptr, rows, groups, share,
    WIDTH: tl.constexpr, R: tl.constexpr, HIDDEN: tl.constexpr, DISTINCT: tl.constexpr, FAST: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_HIDDEN: tl.constexpr,
):  # fmt: skip
    """The gradients of a block's weights for a tile of hidden units, over `share` rows of a group.

    They are stored as `(splits, 2, groups, HIDDEN, WIDTH)`, `(splits, 2, groups, HIDDEN)` and
    `(splits, 2, groups, HIDDEN, R)`. Hidden units are the rows of all products, so that they stay in registers.
    """
    tiles: tl.constexpr = HIDDEN // BLOCK_HIDDEN
    units = (tl.program_id(0) % tiles) * BLOCK_HIDDEN + tl.arange(0, BLOCK_HIDDEN)
    split = tl.program_id(0) // tiles // (2 * groups)
    which = tl.program_id(0) // tiles % (2 * groups)
    of_input = which % (DISTINCT * groups)
    features = tl.arange(0, WIDTH)
    columns = tl.arange(0, R)
    into = tl.load(w_in_ptr + which * WIDTH * HIDDEN + units[:, None] + features[None, :] * HIDDEN)
    onto = tl.load(w_out_ptr + which * HIDDEN * R + units[:, None] * R + columns[None, :])
    added = tl.load(bias_ptr + which * HIDDEN + units)[:, None]
    hats = hats_ptr + of_input.to(tl.int64) * rows * WIDTH
    d_outs = d_out_ptr + which.to(tl.int64) * rows * R
    d_into = tl.zeros([BLOCK_HIDDEN, WIDTH], tl.float32)
    d_onto = tl.zeros([BLOCK_HIDDEN, R], tl.float32)
    d_added = tl.zeros([BLOCK_HIDDEN], tl.float32)
    for first in range(split * share, tl.minimum((split + 1) * share, rows), BLOCK_M):
        row = first + tl.arange(0, BLOCK_M)
        at = row.to(tl.int64)[:, None]
        hat = tl.load(hats + at * WIDTH + features[None, :], mask=row[:, None] < rows, other=0)
        d_out = tl.load(d_outs + at * R + columns[None, :], mask=row[:, None] < rows, other=0)
        z = tl.dot(into, tl.trans(hat), input_precision=PRECISION) + added
        tanh = _inner_tanh(z, FAST)
        d_z = tl.dot(onto, tl.trans(d_out), input_precision=PRECISION) * _doubled_slope(z, tanh)
        d_into = tl.dot(d_z.to(hat.dtype), hat, d_into, input_precision=PRECISION)
        d_onto = tl.dot((z + z * tanh).to(hat.dtype), d_out, d_onto, input_precision=PRECISION)
        d_added += tl.sum(d_z, 1)
    unit = (split * 2 * groups + which).to(tl.int64) * HIDDEN + units
    tl.store(d_in_ptr + unit[:, None] * WIDTH + features[None, :], 0.5 * d_into)
    tl.store(d_out_weights_ptr + unit[:, None] * R + columns[None, :], 0.5 * d_onto)
    tl.store(d_bias_ptr + unit, 0.5 * d_added)
