"""Linear attention over features, causal or not, in chunks: the PyTorch reference. `w_ij = <left_i, right_j>^degree`.

The causal form is block lower-triangular multiplication (PolySketchFormer, ICML version, section 3.1): with blocks
of `block_size` rows, `out_l = lt(w_ll) V_l + phi(left_l) Z_l` where `Z_l = sum_{j<l} phi(right_j)^T V_j`. Both passes
have the weights and features of one block in memory, and one state Z: never the n x n weights or n x r^2 features.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention_zoo.ops.feature_product.feature_maps import add_product, at_least_float32
from attention_zoo.ops.gradients import once_differentiable
from attention_zoo.ops.masking import denominator, power_
from attention_zoo.ops.operators import current_autocast


class LocalInputs(NamedTuple):
    """What the exact weights `<query_i, key_j>^degree` inside diagonal blocks are computed from.

    `query` and `key` are `(batch, heads, seq_len, head_dim)`.
    """

    query: Tensor
    key: Tensor
    degree: int


CPU_CACHE_BYTES = 2**21
Three = tuple[Tensor, Tensor, Tensor]
# The rows of each block in order, with its scales.
Blocks = list[tuple[slice, "BlockScales | None"]]


def default_block_size(device: torch.device, *, causal: bool, degree: int = 1) -> int:
    """The fastest block size: on a CPU blocks that stay in its cache, on a GPU few and large kernels.

    The work inside a causal block grows with its square. Non-causal blocks have none of it, and are longer; so are
    blocks of degree 2, whose state costs more.
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
    block_size: int,
    degree: int = 1,
    local: LocalInputs | None = None,
    log_scale: Tensor | None = None,
) -> Tensor:
    """`out_i = sum_j <left_i, right_j>^degree value_j` over all j, or over j <= i if `causal`.

    Args:
        left: `(batch, heads, queries, r)` features of the queries.
        right: `(batch, heads, keys, r)` features of the keys.
        value: `(batch, heads, keys, k)`.
        causal: needs as many keys as queries.
        block_size: rows that are computed together; without `local` it changes the speed, not the result.
        degree: 1, or 2 for self-tensored features.
        local: exact weights for the diagonal blocks (causal only).
        log_scale: `(batch, heads, keys)` t, causal only: weights become `w_ij exp(t_j - T_i)` with the running
            maximum `T_i = max_{j<=i} t_j`, so that nothing overflows and no later key has an effect. T is a
            constant for the gradient: it cancels in a ratio of two such products.

    Returns:
        `(batch, heads, queries, k)` in the dtype of `value`, in float32 for a 16-bit `value`.
    """
    local_query, local_key, local_degree = local or (None, None, 1)
    settings = causal, block_size, degree, local_degree
    tensors = left, right, value, local_query, local_key, log_scale
    flat = [x if x is None else x.flatten(0, 1) for x in tensors]
    outs = [
        _FeatureProduct.apply(settings, *(x if x is None else x[heads] for x in flat))
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
    return summed[..., :-1] / denominator(summed[..., -1:], bias)


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
    slab: int | None = None,
    skips_future: bool = False,
) -> int:
    """FLOPs of `feature_product` for one head: writing and reading the state, and the causal diagonal blocks.

    Args:
        seq_len: n, of queries and keys.
        features: r.
        columns: of the value, with the column of the normaliser.
        causal: as in `feature_product`; so are `block_size` and `degree`.
        inner: the dimension of `local` queries and keys; None without `local`.
        width: number of distinct features (`x_a x_b` and `x_b x_a` counted once) that the state has; the normaliser
            still has features^degree. None is features^degree for both.
        slab: the parallel form: every weight, no state; in a block, `slab` queries at a time and, if `causal`, the
            keys up to the last of them. None is the form with a state.
        skips_future: only half of the weights inside blocks are computed.
    """
    if slab is not None:
        blocks = [(rows.start, rows.stop - rows.start) for rows in slices(seq_len, block_size)]
        own = sum(slab_weights(size, size, slab, causal=causal) for _, size in blocks)
        before = sum(start * size for start, size in blocks)
        return 2 * (own * ((inner or features) + columns) + before * (features + columns))
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


def slab_weights(queries: int, keys: int, slab: int, *, causal: bool) -> int:
    """How many weights are computed, `slab` queries at a time, if `causal` with the keys up to the last of them."""
    return sum((rows.stop - rows.start) * (rows.stop if causal else keys) for rows in slices(queries, slab))


def _heads_at_once(left: Tensor, block_size: int, degree: int) -> int:
    """The heads that are computed together: all on a GPU; on a CPU as many as keep a block's features in the cache."""
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


class _FeatureProduct(torch.autograd.Function):
    """Saves its inputs only; the backward pass recomputes the states, forward in time for left, reversed for right."""

    @staticmethod
    def forward(ctx: Any, settings: tuple[bool, int, int, int], *inputs: Any) -> Tensor:
        ctx.save_for_backward(*inputs)
        ctx.settings = causal, block_size, degree, local_degree = settings
        ctx.autocast = current_autocast(inputs[0].device)
        left, right, value, local_query, local_key, log_scale = inputs
        state = _new_state(right, value, degree)
        out = value.new_zeros(*left.shape[:2], value.shape[-1], dtype=state.dtype)
        if not causal:
            for rows in slices(right.shape[1], block_size):
                state += expand(right[:, rows], degree).mT @ value[:, rows]
            for rows in slices(left.shape[1], block_size):
                out[:, rows] = expand(left[:, rows], degree) @ state.to(left.dtype)
            return out
        query, key, power = (left, right, degree) if local_query is None else (local_query, local_key, local_degree)
        for rows, scales in _blocks(left.shape[1], block_size, log_scale):
            if rows.start:
                out[:, rows] = scaled(expand(left[:, rows], degree), scales and scales.query) @ state.to(left.dtype)
            out[:, rows] += (
                visible(power_(query[:, rows] @ key[:, rows].mT, power), scales and scales.intra_block, True)
                @ value[:, rows]
            )
            if rows.stop < left.shape[1]:
                _advance(state, right[:, rows], value[:, rows], scales, degree)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(*ctx.autocast):
            return _FeatureProduct._gradients(ctx, grads[0])

    @staticmethod
    def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        left, right, value, local_query, local_key, log_scale = ctx.saved_tensors
        causal, block_size, degree, local_degree = ctx.settings
        grad = grad.to(value.dtype)
        if not causal:
            return None, *_full_gradients(left, right, value, grad, block_size, degree), None, None, None
        d_scale = None if log_scale is None else torch.zeros_like(log_scale)
        blocks = list(_blocks(left.shape[1], block_size, log_scale))
        is_local = local_query is not None
        exact = (local_query, local_key, local_degree) if is_local else (left, right, degree)
        d_value, d_query, d_key = _intra_chunk_gradients(*exact, value, grad, blocks, d_scale)
        d_left, d_right = (torch.zeros_like(left), torch.zeros_like(right)) if is_local else (d_query, d_key)
        _add_inter_chunk_gradients((left, right, value), grad, blocks, degree, (d_left, d_right, d_value), d_scale)
        return None, d_left, d_right, d_value, *((d_query, d_key) if is_local else (None, None)), d_scale


def _full_gradients(left: Tensor, right: Tensor, value: Tensor, grad: Tensor, block_size: int, degree: int) -> Three:
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
    query: Tensor, key: Tensor, degree: int, value: Tensor, grad: Tensor, blocks: Blocks, d_scale: Tensor | None
) -> Three:
    """The gradients of value, query and key from the weights `<query, key>^degree` in blocks; adds to `d_scale`."""
    d_value, d_query, d_key = (torch.zeros_like(x) for x in (value, query, key))
    for rows, scales in blocks:
        intra_block, scores = scales and scales.intra_block, query[:, rows] @ key[:, rows].mT
        weights = visible(power_(scores.clone(), degree), intra_block, True)
        d_weights = grad[:, rows] @ value[:, rows].mT
        if d_scale is not None:
            d_scale[:, rows] += (d_weights * weights).sum(-2)
        slope = degree * power_(scores, degree - 1) if degree > 1 else 1
        d_scores = visible(d_weights * slope, intra_block, True)
        d_query[:, rows], d_key[:, rows] = d_scores @ key[:, rows], d_scores.mT @ query[:, rows]
        d_value[:, rows] = weights.mT @ grad[:, rows]
    return d_value, d_query, d_key


def _add_inter_chunk_gradients(
    inputs: Three, grad: Tensor, blocks: Blocks, degree: int, gradients: Three, d_scale: Tensor | None
) -> None:
    """Add the gradients that come through the states: forward in time for left, in reverse for right and value."""
    (left, right, value), (d_left, d_right, d_value) = inputs, gradients
    state = _new_state(right, value, degree)
    for rows, scales in blocks:
        scaled_grad = scaled(grad[:, rows], scales and scales.query)
        d_left[:, rows] += _pull_back(state.to(left.dtype), left[:, rows], scaled_grad, degree)
        _advance(state, right[:, rows], value[:, rows], scales, degree)
    state.zero_()
    for rows, scales in reversed(blocks):
        of_query, of_key, decay = (scales.query, scales.key, scales.decay) if scales else (None, None, None)
        current = state.to(right.dtype)
        d_right[:, rows] += scaled(_pull_back(current, right[:, rows], value[:, rows], degree), of_key)
        d_read = scaled(expand(right[:, rows], degree), of_key) @ current
        d_value[:, rows] += d_read
        if d_scale is not None:
            d_scale[:, rows] += (d_read * value[:, rows]).sum(-1)
        if decay is not None:
            state *= decay
        state += scaled(expand(left[:, rows], degree), of_query).mT @ grad[:, rows]


def slices(length: int, size: int) -> Iterator[slice]:
    """`length` rows, `size` at a time."""
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


class BlockScales(NamedTuple):
    """The scales of a block's rows, relative to the sums before (`query`) and after it (`key`, `decay`).

    Only degree 1 has scales, so that a fast path can scale the values, which have fewer columns than the features.
    """

    query: Tensor  # (heads, rows, 1)
    key: Tensor  # (heads, rows, 1)
    decay: Tensor  # (heads, 1, 1)
    largest: Tensor  # (heads, 1), of all rows so far
    intra_block: Tensor | None  # (heads, rows, rows), of each key for each query


def next_scales(log_scale: Tensor | None, before: BlockScales | None) -> BlockScales | None:
    """The scales of the next block of keys, from their log scales `(heads, rows)`; None without log scales."""
    if log_scale is None:
        return None
    largest = log_scale[:, :1] if before is None else before.largest
    running = torch.maximum(log_scale.cummax(-1).values, largest)
    after = running[:, -1:]
    # Exponents of later keys may be positive, and would overflow before the causal mask hides them.
    intra_block = (log_scale[:, None] - running[..., None]).clamp_(max=0).exp_()
    query, key = (largest - running).exp()[..., None], (log_scale - after).exp()[..., None]
    return BlockScales(query, key, (largest - after).exp()[..., None], after, intra_block)


def scaled(x: Tensor, scale: Tensor | None) -> Tensor:
    """`x * scale` in the dtype of x."""
    return x if scale is None else x * scale.to(x.dtype)


def visible(weights: Tensor, intra_block: Tensor | None, causal: bool) -> Tensor:
    """Scale the weights and, if `causal`, mask later keys, in place; the last row and the last column are one token."""
    weights = weights if intra_block is None else weights.mul_(intra_block.to(weights.dtype))
    return weights.tril_(weights.shape[-1] - weights.shape[-2]) if causal else weights


def _blocks(length: int, size: int, log_scale: Tensor | None) -> Iterator[tuple[slice, BlockScales | None]]:
    scales = None
    for rows in slices(length, size):
        scales = next_scales(None if log_scale is None else log_scale[:, rows], scales)
        yield rows, scales


def _new_state(features: Tensor, value: Tensor, degree: int) -> Tensor:
    return value.new_zeros(
        *(len(features), features.shape[-1] ** degree, value.shape[-1]), dtype=at_least_float32(value)
    )


def _advance(state: Tensor, right: Tensor, value: Tensor, scales: BlockScales | None, degree: int) -> None:
    if scales is not None:
        state *= scales.decay
    add_product(state, scaled(expand(right, degree), scales and scales.key).mT, value)
