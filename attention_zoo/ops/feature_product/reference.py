"""Products with implicit weights `w_ij = <left_i, right_j>^degree`, block by block.

The causal form is block lower-triangular multiplication (PolySketchFormer, ICML version, section 3.1): with blocks
of `block_size` rows, `out_l = lt(w_ll) V_l + phi(left_l) Z_l` where `Z_l = sum_{j<l} phi(right_j)^T V_j`. Neither the
n x n weights nor the n x r^2 features are ever in memory, forward or backward: one block's are, and one state Z.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attention_zoo.ops.powers import power_


class Local(NamedTuple):
    """Exact weights `<query_i, key_j>^degree` that replace the implicit ones inside diagonal blocks.

    `query` and `key` are `(batch, heads, seq_len, head_dim)`.
    """

    query: Tensor
    key: Tensor
    degree: int


CPU_CACHE_BYTES = 2**21


def default_block_size(device: torch.device, *, causal: bool, degree: int = 1) -> int:
    """The fastest where it is free: a CPU likes blocks that stay in its cache, a GPU few and large kernels.

    A causal block costs its square: where a state of squares costs more, and without one, blocks are longer.
    """
    if device.type != "cpu" or (not causal and degree == 1):
        return 512
    return 128 if degree == 1 else 256


def feature_product(
    left: Tensor,
    right: Tensor,
    value: Tensor,
    *,
    causal: bool,
    block_size: int | None = None,
    degree: int = 1,
    local: Local | None = None,
    log_scale: Tensor | None = None,
) -> Tensor:
    """`out_i = sum_j <left_i, right_j>^degree value_j` over all j, or over j <= i if `causal`.

    Args:
        left: `(batch, heads, queries, r)` features of the queries.
        right: `(batch, heads, keys, r)` features of the keys.
        value: `(batch, heads, keys, k)`.
        causal: needs as many keys as queries.
        block_size: rows that are treated together; without `local` it changes the speed and not the result. None is
            `default_block_size`.
        degree: 1, or 2 for self-tensored features.
        local: exact weights for the diagonal blocks (causal only).
        log_scale: `(batch, heads, keys)` t, causal only: weights become `w_ij exp(t_j - T_i)` with the running
            maximum `T_i = max_{j<=i} t_j`, so that nothing overflows and nothing of the future is seen. T is a
            constant for the gradient: it cancels in a ratio of two such products.

    Returns:
        `(batch, heads, queries, k)` in the dtype of `value`, in float32 for a 16-bit `value`.
    """
    block_size = block_size or default_block_size(left.device, causal=causal, degree=degree)
    local_query, local_key, local_degree = local or (None, None, 1)
    tensors = (left, right, value, local_query, local_key, log_scale)
    flat = [x if x is None else x.flatten(0, 1) for x in tensors]
    outs = [
        _FeatureProduct.apply(*(x if x is None else x[heads] for x in flat), causal, block_size, degree, local_degree)
        for heads in slices(left.shape[0] * left.shape[1], _heads_at_once(left, block_size, degree))
    ]
    return (outs[0] if len(outs) == 1 else torch.cat(outs)).unflatten(0, left.shape[:2])


def normalised_feature_product(left: Tensor, right: Tensor, value: Tensor, *, bias: float, **options: Any) -> Tensor:
    """`sum_j w_ij value_j / (bias + sum_j w_ij)` with the weights and options of `feature_product`.

    A row whose denominator is zero becomes zeros.
    """
    summed = feature_product(left, right, torch.cat([value, torch.ones_like(value[..., :1])], -1), **options)
    return divide_by_last(summed, bias).to(value.dtype)


def divide_by_last(summed: Tensor, bias: float) -> Tensor:
    """`summed / (bias + its last column)` without that column; a row whose denominator is zero becomes zeros."""
    total = bias + summed[..., -1:]
    return summed[..., :-1] / total.masked_fill(total == 0, 1)


def product_flops(
    seq_len: int,
    features: int,
    columns: int,
    *,
    causal: bool,
    block_size: int,
    degree: int = 1,
    inner: int | None = None,
    width: int | None = None,
    quadratic: bool = False,
    skips_future: bool = False,
) -> int:
    """FLOPs of `feature_product` for one head: writing and reading the state, and the causal diagonal blocks.

    Args:
        seq_len: n, of queries and keys.
        features: r.
        columns: of the value, the normaliser's included.
        causal: as in `feature_product`; so are `block_size` and `degree`.
        inner: the dimension of `local` queries and keys; None without.
        width: how many features there are where equal ones are one, but in the normaliser; None is features^degree.
        quadratic: every weight is computed, and no state.
        skips_future: of the weights inside blocks half are computed.
    """
    if quadratic:
        return 2 * seq_len**2 * ((inner or features) + columns)
    state = features**degree * columns
    if width is not None:
        state = width * (columns - 1) + features**degree
    total = 4 * seq_len * state
    if causal:
        widths = [rows.stop - rows.start for rows in slices(seq_len, block_size)]
        of_blocks = sum(2 * width**2 * ((inner or features) + columns) for width in widths)
        total += of_blocks // 2 if skips_future else of_blocks
        # The first block reads no state and the last one writes none.
        total -= 2 * state * (widths[0] + widths[-1])
    return total


def _heads_at_once(left: Tensor, block_size: int, degree: int) -> int:
    """All of them on a GPU; on a CPU as many as keep a block's features in the cache."""
    if left.device.type != "cpu":
        return left.shape[:2].numel()
    rows = min(block_size, left.shape[2])
    return max(1, CPU_CACHE_BYTES // (rows * left.shape[3] ** degree * left.element_size()))


def expand(x: Tensor, degree: int) -> Tensor:
    """The features `x^{tensor degree}` of one block, `(..., rows, r^degree)`."""
    return x if degree == 1 else (x[..., :, None] * x[..., None, :]).flatten(-2)


def _pull_back(state: Tensor, x: Tensor, grad: Tensor, degree: int) -> Tensor:
    """The gradient with respect to x of `<expand(x), state @ grad>`, with `state` symmetric in its tensor factors."""
    if degree == 1:
        return grad @ state.mT
    r = x.shape[-1]
    by_factor = state.unflatten(1, (r, r)).mT.flatten(1, 2)
    return 2 * ((x[..., :, None] * grad[..., None, :]).flatten(-2) @ by_factor)


class _Block(NamedTuple):
    """One block of rows, its scales relative to the state before (`query`) and after it (`key`, `decay`).

    `key_scales` are those of each key for each query inside the block.
    """

    rows: slice
    query_scale: Tensor | None
    key_scale: Tensor | None
    decay: Tensor | None
    key_scales: Tensor | None


class _FeatureProduct(torch.autograd.Function):
    """Saves its inputs only; the backward pass recomputes the states, forward in time for left, reversed for right."""

    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        value: Tensor,
        local_query: Tensor | None,
        local_key: Tensor | None,
        log_scale: Tensor | None,
        causal: bool,
        block_size: int,
        degree: int,
        local_degree: int,
    ) -> Tensor:
        ctx.save_for_backward(left, right, value, local_query, local_key, log_scale)
        ctx.settings = causal, block_size, degree, local_degree
        state = _new_state(right, value, degree)
        out = value.new_zeros(*left.shape[:2], value.shape[-1], dtype=state.dtype)
        if not causal:
            for rows in slices(right.shape[1], block_size):
                state += expand(right[:, rows], degree).mT @ value[:, rows]
            for rows in slices(left.shape[1], block_size):
                out[:, rows] = expand(left[:, rows], degree) @ state.to(left.dtype)
            return out
        for block in _blocks(left.shape[1], block_size, log_scale):
            rows = block.rows
            if rows.start:
                out[:, rows] = _scaled(expand(left[:, rows], degree), block.query_scale) @ state.to(left.dtype)
            if local_query is None or local_key is None:
                weights = power_(left[:, rows] @ right[:, rows].mT, degree)
            else:
                weights = power_(local_query[:, rows] @ local_key[:, rows].mT, local_degree)
            out[:, rows] += _visible(weights, block.key_scales) @ value[:, rows]
            if rows.stop < left.shape[1]:
                _advance(state, right[:, rows], value[:, rows], block, degree)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        left, right, value, local_query, local_key, log_scale = ctx.saved_tensors
        causal, block_size, degree, local_degree = ctx.settings
        grad = grads[0].to(value.dtype)
        if not causal:
            return *_full_gradients(left, right, value, grad, block_size, degree), *[None] * 7
        d_scale = None if log_scale is None else torch.zeros_like(log_scale)
        blocks = list(_blocks(left.shape[1], block_size, log_scale))
        is_local = local_query is not None
        exact = (local_query, local_key, local_degree) if is_local else (left, right, degree)
        d_value, d_query, d_key = _intra_chunk_gradients(*exact, value, grad, blocks, d_scale)
        d_left, d_right = (torch.zeros_like(left), torch.zeros_like(right)) if is_local else (d_query, d_key)
        _add_inter_chunk_gradients(left, right, value, grad, blocks, degree, d_left, d_right, d_value, d_scale)
        return d_left, d_right, d_value, *((d_query, d_key) if is_local else (None, None)), d_scale, *[None] * 4


def _full_gradients(
    left: Tensor, right: Tensor, value: Tensor, grad: Tensor, block_size: int, degree: int
) -> tuple[Tensor, Tensor, Tensor]:
    d_left, d_right, d_value = (torch.zeros_like(x) for x in (left, right, value))
    state, grad_state = _new_state(right, value, degree), _new_state(left, grad, degree)
    for rows in slices(right.shape[1], block_size):
        state += expand(right[:, rows], degree).mT @ value[:, rows]
    for rows in slices(left.shape[1], block_size):
        grad_state += expand(left[:, rows], degree).mT @ grad[:, rows]
        d_left[:, rows] = _pull_back(state.to(left.dtype), left[:, rows], grad[:, rows], degree)
    grad_state = grad_state.to(right.dtype)
    for rows in slices(right.shape[1], block_size):
        d_right[:, rows] = _pull_back(grad_state, right[:, rows], value[:, rows], degree)
        d_value[:, rows] = expand(right[:, rows], degree) @ grad_state
    return d_left, d_right, d_value


def _intra_chunk_gradients(
    query: Tensor,
    key: Tensor,
    degree: int,
    value: Tensor,
    grad: Tensor,
    blocks: list[_Block],
    d_scale: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of value, query and key, from the weights `<query, key>^degree` inside blocks; adds to `d_scale`."""
    d_value, d_query, d_key = (torch.zeros_like(x) for x in (value, query, key))
    for block in blocks:
        rows = block.rows
        scores = query[:, rows] @ key[:, rows].mT
        weights = _visible(power_(scores.clone(), degree), block.key_scales)
        d_weights = grad[:, rows] @ value[:, rows].mT
        if d_scale is not None:
            d_scale[:, rows] += (d_weights * weights).sum(-2)
        slope = degree * power_(scores, degree - 1) if degree > 1 else 1
        d_scores = _visible(d_weights * slope, block.key_scales)
        d_query[:, rows], d_key[:, rows] = d_scores @ key[:, rows], d_scores.mT @ query[:, rows]
        d_value[:, rows] = weights.mT @ grad[:, rows]
    return d_value, d_query, d_key


def _add_inter_chunk_gradients(
    left: Tensor,
    right: Tensor,
    value: Tensor,
    grad: Tensor,
    blocks: list[_Block],
    degree: int,
    d_left: Tensor,
    d_right: Tensor,
    d_value: Tensor,
    d_scale: Tensor | None,
) -> None:
    """Add what comes through the states: forward in time for left, reversed for right and value."""
    state = _new_state(right, value, degree)
    for block in blocks:
        rows = block.rows
        scaled_grad = _scaled(grad[:, rows], block.query_scale)
        d_left[:, rows] += _pull_back(state.to(left.dtype), left[:, rows], scaled_grad, degree)
        _advance(state, right[:, rows], value[:, rows], block, degree)
    state.zero_()
    for block in reversed(blocks):
        rows, current = block.rows, state.to(right.dtype)
        pulled = _pull_back(current, right[:, rows], value[:, rows], degree)
        d_right[:, rows] += _scaled(pulled, block.key_scale)
        d_read = _scaled(expand(right[:, rows], degree), block.key_scale) @ current
        d_value[:, rows] += d_read
        if d_scale is not None:
            d_scale[:, rows] += (d_read * value[:, rows]).sum(-1)
        if block.decay is not None:
            state *= block.decay[:, None, None]
        state += _scaled(expand(left[:, rows], degree), block.query_scale).mT @ grad[:, rows]


def slices(length: int, size: int) -> Iterator[slice]:
    """`length` rows, `size` at a time."""
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def _blocks(length: int, size: int, log_scale: Tensor | None) -> Iterator[_Block]:
    if log_scale is None:
        yield from (_Block(rows, None, None, None, None) for rows in slices(length, size))
        return
    running = log_scale.cummax(-1).values
    before = running[:, 0]
    for rows in slices(length, size):
        after = running[:, rows.stop - 1]
        # The exponents of the future are positive and would overflow before the triangle hides them.
        key_scales = (log_scale[:, None, rows] - running[:, rows, None]).clamp(max=0).exp()
        yield _Block(
            rows,
            query_scale=(before[:, None] - running[:, rows]).exp(),
            key_scale=(log_scale[:, rows] - after[:, None]).exp(),
            decay=(before - after).exp(),
            key_scales=key_scales,
        )
        before = after


def _new_state(features: Tensor, value: Tensor, degree: int) -> Tensor:
    size = features.shape[-1] ** degree
    precision = torch.promote_types(value.dtype, torch.float32)
    return value.new_zeros(len(features), size, value.shape[-1], dtype=precision)


def _advance(state: Tensor, right: Tensor, value: Tensor, block: _Block, degree: int) -> None:
    if block.decay is not None:
        state *= block.decay[:, None, None]
    features = _scaled(expand(right, degree), block.key_scale)
    if features.dtype == state.dtype:
        state.baddbmm_(features.mT, value)
    else:
        state += features.mT @ value


def _scaled(x: Tensor, scale: Tensor | None) -> Tensor:
    return x if scale is None else x * scale[..., None].to(x.dtype)


def _visible(weights: Tensor, key_scales: Tensor | None) -> Tensor:
    return (weights if key_scales is None else weights * key_scales.to(weights.dtype)).tril()
