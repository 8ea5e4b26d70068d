"""The normalised `feature_product` as fast as a CPU multiplies: what is in memory together stays in its cache.

As there, blocks of rows meet the keys before them by a state. Different are

- self-tensored features: of `x_a x_b = x_b x_a` one is kept (`Squares`), which is 5/8 of the products;
- the denominators: `sum_j <l_i, r_j>^2 = l_i^T (sum_j r_j r_j^T) l_i` instead of a column more in a product of few;
- the features of queries and keys, which are computed block by block, and self-tensored ones written along the
  positions into memory that is reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attention_zoo.ops.feature_product import Local
from attention_zoo.ops.powers import power_

# Numbers of the features of a block; twice that stays in the caches of a few cores.
ENTRIES = 2**20
GROUP = 8
# Of padding: finite, and below that of any key.
LEAST_LOG_SCALE = -1e30

# Of `(batch, heads, rows, h)` and parameters: features `(batch, heads, rows, r)`, log scales `(batch, heads, rows)` or
# None. The parameters are those of the call, where there are none those of the module.
Features = Callable[[Tensor, Sequence[Tensor] | None], tuple[Tensor, Tensor | None]]


class Plain:
    """Features as they are."""

    def __init__(self, r: int) -> None:
        self.width = r

    def expand(self, x: Tensor, buffer: Tensor, *, doubled: bool) -> Tensor:
        """The features of `x` `(heads, rows, r)`, `(heads, width, rows)`."""
        return x.mT

    def pull_back(self, x: Tensor, grad: Tensor, *, doubled: bool) -> Tensor:
        """The gradient of x from that of its features."""
        return grad.mT

    def new_norm(self, x: Tensor) -> Tensor:
        """The state of the denominators."""
        return x.new_zeros(len(x), self.width, 1, dtype=_precision(x))

    def add_norm(self, norm: Tensor, x: Tensor, weights: Tensor | None = None) -> None:
        """Add the rows of x, each with its weight `(heads, rows, 1)`."""
        norm += x.sum(1, dtype=norm.dtype)[..., None] if weights is None else (x.mT @ weights).to(norm.dtype)

    def read_norm(self, norm: Tensor, x: Tensor) -> Tensor:
        """`(heads, rows, 1)`."""
        return x @ norm.to(x.dtype)

    def pull_norm(self, norm: Tensor, x: Tensor, weights: Tensor | float = 1.0) -> Tensor:
        """The gradient of x from `sum_i weights_i read_norm_i`."""
        return norm.to(x.dtype).mT * weights


class Squares:
    """The products `x_a x_b` of a vector with itself: of groups of `GROUP` numbers with themselves and those after.

    What stands for two equal products is doubled on one side of a weight.
    """

    def __init__(self, r: int) -> None:
        self.groups = [slice(start, min(start + GROUP, r)) for start in range(0, r, GROUP)]
        self.starts = [0]
        for group in self.groups:
            self.starts.append(self.starts[-1] + (group.stop - group.start) * (r - group.start))
        self.width = self.starts[-1]

    def _blocks(self, features: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Each group with its features, `(heads, numbers of the group, it and those after, rows)`."""
        for group, start, stop in zip(self.groups, self.starts, self.starts[1:], strict=False):
            yield group, features[:, start:stop].unflatten(1, (group.stop - group.start, -1))

    def expand(self, x: Tensor, buffer: Tensor, *, doubled: bool) -> Tensor:
        """The features of `x` `(heads, rows, r)`, `(heads, width, rows)`, written into `buffer`."""
        features, x = buffer[:, :, : x.shape[1]], x.mT.contiguous()
        twice = x * 2 if doubled else x
        for group, block in self._blocks(features):
            own = x[:, group, None]
            size = group.stop - group.start
            _multiply(own, x[:, None, group], block[:, :, :size])
            _multiply(own, twice[:, None, group.stop :], block[:, :, size:])
        return features

    def pull_back(self, x: Tensor, grad: Tensor, *, doubled: bool) -> Tensor:
        """The gradient of x from that of its features."""
        x = x.mT.contiguous()
        total = torch.zeros_like(x)
        for group, block in self._blocks(grad):
            if doubled:
                block[:, :, group.stop - group.start :] *= 2
            total[:, group] += (block * x[:, None, group.start :]).sum(2)
            total[:, group.start :] += (block * x[:, group, None]).sum(1)
        return total.mT

    def new_norm(self, x: Tensor) -> Tensor:
        """The state of the denominators."""
        return x.new_zeros(len(x), x.shape[2], x.shape[2], dtype=_precision(x))

    def add_norm(self, norm: Tensor, x: Tensor, weights: Tensor | None = None) -> None:
        """Add the rows of x, each with its weight `(heads, rows, 1)`."""
        _add_product(norm, x.mT, x if weights is None else x * weights)

    def read_norm(self, norm: Tensor, x: Tensor) -> Tensor:
        """`(heads, rows, 1)`."""
        return ((x @ norm.to(x.dtype)) * x).sum(-1, keepdim=True)

    def pull_norm(self, norm: Tensor, x: Tensor, weights: Tensor | float = 1.0) -> Tensor:
        """The gradient of x from `sum_i weights_i read_norm_i`."""
        return (x @ norm.to(x.dtype)) * 2 * weights


class Settings(NamedTuple):
    """What does not change along the sequence; tensors are flattened over batch and heads."""

    function: Features
    heads: int
    degree: int
    bias: float
    causal: bool
    block_size: int
    local_degree: int

    def features(self, x: Tensor, parameters: Sequence[Tensor] | None = None) -> tuple[Tensor, Tensor | None]:
        """The features of `(batch * heads, rows, h)`, and log scales where there are some."""
        features, log_scale = self.function(x.unflatten(0, (-1, self.heads)), parameters)
        return features.flatten(0, 1), None if log_scale is None else log_scale.flatten(0, 1)

    def maps(self, features: Tensor) -> Plain | Squares:
        """What makes the features of a weight of `features`."""
        return Squares(features.shape[-1]) if self.degree == 2 else Plain(features.shape[-1])


class Scales(NamedTuple):
    """The scales of a block's rows, relative to the state before (`query`) and after it (`key`, `decay`)."""

    query: Tensor  # (heads, rows, 1)
    key: Tensor  # (heads, rows, 1)
    decay: Tensor  # (heads, 1, 1)
    within: Tensor  # (heads, rows, rows)


def refusal_of(query: Tensor) -> str | None:
    """Why such an input is not for this; None if it is."""
    return None if query.device.type == "cpu" else f"its blocks are made for a CPU, the input is on {query.device.type}"


def normalised_block_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    features: Features,
    parameters: Sequence[Tensor] = (),
    padding: Tensor | None,
    bias: float,
    causal: bool,
    block_size: int,
    degree: int = 1,
    local: Local | None = None,
) -> Tensor:
    """`sum_j w_ij value_j / (bias + sum_j w_ij)`, `w_ij = <features(query_i), features(key_j)>^degree` of visible keys.

    Args:
        query: `(batch, heads, queries, h)`.
        key: `(batch, heads, keys, h)`; so is `value`.
        features: of some rows; with log scales (degree 1 only) the weights are those of `exp(log scale) features`, kept
            relative to the largest scale so far. Those of queries cancel.
        parameters: the tensors that the features depend on; they must not change before the backward pass.
        padding: `(batch, keys)` bool, True at padding.
        bias: as in `normalised_feature_product`; so are `causal`, `block_size`, `degree` and `local`.
    """
    batch, heads = query.shape[:2]
    local_query, local_key, local_degree = local or (None, None, 1)
    if padding is not None:
        padding = padding[:, None].expand(-1, heads, -1)
    tensors = (query, key, value, local_query, local_key, padding)
    flat = [x if x is None else x.flatten(0, 1) for x in tensors]
    settings = Settings(features, heads, degree, bias, causal, block_size, local_degree)
    width = settings.maps(features(query[:1, :, :1].detach(), None)[0]).width
    at_once = heads * max(1, ENTRIES // (heads * width * min(block_size, query.shape[2])))
    outs = [
        _BlockProduct.apply(settings, *(x if x is None else x[some : some + at_once] for x in flat), *parameters)
        for some in range(0, batch * heads, at_once)
    ]
    return (outs[0] if len(outs) == 1 else torch.cat(outs)).unflatten(0, (batch, heads))


class _BlockProduct(torch.autograd.Function):
    """Saves its inputs, the output and the denominators; the backward pass recomputes features and states."""

    @staticmethod
    def forward(
        ctx: Any,
        settings: Settings,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        local_query: Tensor | None,
        local_key: Tensor | None,
        padding: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        out = value.new_empty(*query.shape[:2], value.shape[2])
        total = value.new_empty(*query.shape[:2], 1, dtype=_precision(value))
        if settings.causal:
            _causal(settings, query, key, value, local_query, local_key, padding, out, total)
        else:
            _full(settings, query, key, value, padding, out, total)
        ctx.settings = settings
        ctx.save_for_backward(query, key, value, local_query, local_key, padding, out, total, *parameters)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, local_query, local_key, padding, out, total, *parameters = ctx.saved_tensors
        settings = ctx.settings
        grad = (grads[0] / _denominator(total, settings.bias)).to(value.dtype)
        d_total = -(grad * out).sum(-1, keepdim=True).masked_fill_(total + settings.bias == 0, 0)
        left, _ = _all_features(settings, query, None, parameters)
        right, log_scale = _all_features(settings, key, padding, parameters)
        given = Given(left, right, value, local_query, local_key, log_scale, grad, d_total)
        found = Gradients(*(torch.zeros_like(x) for x in given[:3]), *_zeros_like(local_query, local_key))
        if settings.causal:
            _near_gradients(settings, given, found)
            _gradients_of_left(settings, given, found)
            _gradients_of_right(settings, given, found)
        else:
            _gradients_of_full(settings, given, found)
        d_scale = None if log_scale is None else (found.right * right).sum(-1, dtype=log_scale.dtype)
        d_query, d_key, *d_parameters = (torch.zeros_like(x) for x in (query, key, *parameters))
        _pull_features(settings, query, parameters, found.left, None, None, [d_query, *d_parameters])
        _pull_features(settings, key, parameters, found.right, d_scale, padding, [d_key, *d_parameters])
        return None, d_query, d_key, found.value, found.local_query, found.local_key, None, *d_parameters


def _zeros_like(*tensors: Tensor | None) -> Iterator[Tensor | None]:
    return (None if x is None else torch.zeros_like(x) for x in tensors)


def _full(
    settings: Settings,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    padding: Tensor | None,
    out: Tensor,
    total: Tensor,
) -> None:
    """Every query sees every key."""
    state, norm, largest = None, None, None
    for rows in _slices(key.shape[1], settings.block_size):
        right, log_scale = _features(settings, key[:, rows], _of_rows(padding, rows))
        if state is None or norm is None:
            maps = settings.maps(right)
            state, norm, buffer = _new_state(maps, value), maps.new_norm(right), _new_buffer(settings, maps, right)
        if log_scale is not None:
            before = log_scale.new_full((len(key), 1), -torch.inf) if largest is None else largest
            largest = torch.maximum(before, log_scale.amax(-1, keepdim=True))
            decay = (before - largest).exp_()[..., None]
            state, norm = state.mul_(decay), norm.mul_(decay)
            right = _scaled(right, (log_scale - largest).exp_()[..., None])
        _add_product(state, maps.expand(right, buffer, doubled=True), value[:, rows])
        maps.add_norm(norm, right)
    assert state is not None and norm is not None
    for rows in _slices(query.shape[1], settings.block_size):
        left, _ = settings.features(query[:, rows])
        total[:, rows] = maps.read_norm(norm, left)
        summed = maps.expand(left, buffer, doubled=False).mT @ state.to(left.dtype)
        _divide(summed, total[:, rows], settings.bias, out[:, rows])


def _causal(
    settings: Settings,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    local_query: Tensor | None,
    local_key: Tensor | None,
    padding: Tensor | None,
    out: Tensor,
    total: Tensor,
) -> None:
    """Every query sees the keys up to its own position."""
    state, norm, before = None, None, None
    for rows in _slices(query.shape[1], settings.block_size):
        left, _ = settings.features(query[:, rows])
        right, log_scale = _features(settings, key[:, rows], _of_rows(padding, rows))
        values = value[:, rows]
        scales, before = _scales(log_scale, before)
        if local_query is None or local_key is None:
            weights = power_(left @ right.mT, settings.degree)
        else:
            weights = power_(local_query[:, rows] @ local_key[:, rows].mT, settings.local_degree)
        weights = _visible(weights, scales)
        summed, sums = weights @ values, weights.sum(-1, keepdim=True)
        if state is None or norm is None:
            maps = settings.maps(right)
            state, norm, buffer = _new_state(maps, value), maps.new_norm(right), _new_buffer(settings, maps, right)
        else:
            left = _scaled(left, scales and scales.query)
            _add_product(summed, maps.expand(left, buffer, doubled=False).mT, state.to(left.dtype))
            sums = sums + maps.read_norm(norm, left)
        total[:, rows] = sums
        _divide(summed, sums, settings.bias, out[:, rows])
        if rows.stop < query.shape[1]:
            _advance(state, norm, maps, right, values, scales, buffer)


class Given(NamedTuple):
    """What gradients are computed from: features of all rows, values, the gradients of sums and of denominators."""

    left: Tensor
    right: Tensor
    value: Tensor
    local_query: Tensor | None
    local_key: Tensor | None
    log_scale: Tensor | None
    grad: Tensor
    d_total: Tensor

    def blocks(self, size: int) -> Iterator[tuple[slice, Scales | None]]:
        """Rows and their scales, block by block."""
        before = None
        for rows in _slices(self.left.shape[1], size):
            scales, before = _scales(None if self.log_scale is None else self.log_scale[:, rows], before)
            yield rows, scales


class Gradients(NamedTuple):
    """To be added to."""

    left: Tensor
    right: Tensor
    value: Tensor
    local_query: Tensor | None
    local_key: Tensor | None


def _gradients_of_full(settings: Settings, given: Given, found: Gradients) -> None:
    maps, size = settings.maps(given.left), settings.block_size
    state, grad_state = _new_state(maps, given.value), _new_state(maps, given.value)
    norm, grad_norm = maps.new_norm(given.right), maps.new_norm(given.right)
    buffer = _new_buffer(settings, maps, given.right)
    scale = None
    if given.log_scale is not None:
        scale = (given.log_scale - given.log_scale.amax(-1, keepdim=True)).exp()[..., None]
    for rows in _slices(given.right.shape[1], size):
        right = _scaled(given.right[:, rows], None if scale is None else scale[:, rows])
        _add_product(state, maps.expand(right, buffer, doubled=True), given.value[:, rows])
        maps.add_norm(norm, right)
    for rows in _slices(given.left.shape[1], size):
        left, grad, d_total = given.left[:, rows], given.grad[:, rows], given.d_total[:, rows]
        pulled = maps.pull_back(left, state.to(left.dtype) @ grad.mT, doubled=False)
        found.left[:, rows] = pulled + maps.pull_norm(norm, left, d_total)
        _add_product(grad_state, maps.expand(left, buffer, doubled=False), grad)
        maps.add_norm(grad_norm, left, d_total)
    for rows in _slices(given.right.shape[1], size):
        here = None if scale is None else scale[:, rows]
        right, current = _scaled(given.right[:, rows], here), grad_state.to(given.right.dtype)
        pulled = maps.pull_back(right, current @ given.value[:, rows].mT, doubled=True)
        found.right[:, rows] = _scaled(pulled + maps.pull_norm(grad_norm, right), here)
        found.value[:, rows] = maps.expand(right, buffer, doubled=True).mT @ current


def _near_gradients(settings: Settings, given: Given, found: Gradients) -> None:
    """From the diagonal blocks."""
    left, right, degree, to_left, to_right = given.left, given.right, settings.degree, found.left, found.right
    if given.local_query is not None and given.local_key is not None:
        left, right, degree = given.local_query, given.local_key, settings.local_degree
        assert found.local_query is not None and found.local_key is not None
        to_left, to_right = found.local_query, found.local_key
    for rows, scales in given.blocks(settings.block_size):
        scores, grad = left[:, rows] @ right[:, rows].mT, given.grad[:, rows]
        weights = _visible(power_(scores.clone(), degree), scales)
        found.value[:, rows] += weights.mT @ grad
        d_weights = grad @ given.value[:, rows].mT + given.d_total[:, rows].to(grad.dtype)
        slope = degree * power_(scores, degree - 1) if degree > 1 else 1
        d_scores = _visible(d_weights * slope, scales)
        to_left[:, rows] += d_scores @ right[:, rows]
        to_right[:, rows] += d_scores.mT @ left[:, rows]


def _gradients_of_left(settings: Settings, given: Given, found: Gradients) -> None:
    """From the keys before the block."""
    maps = settings.maps(given.left)
    state, norm = _new_state(maps, given.value), maps.new_norm(given.right)
    buffer = _new_buffer(settings, maps, given.right)
    for rows, scales in given.blocks(settings.block_size):
        if rows.start:
            scale = scales and scales.query
            left, d_total = _scaled(given.left[:, rows], scale), given.d_total[:, rows]
            pulled = maps.pull_back(left, state.to(left.dtype) @ given.grad[:, rows].mT, doubled=False)
            found.left[:, rows] += _scaled(pulled + maps.pull_norm(norm, left, d_total), scale)
        if rows.stop < given.left.shape[1]:
            _advance(state, norm, maps, given.right[:, rows], given.value[:, rows], scales, buffer)


def _gradients_of_right(settings: Settings, given: Given, found: Gradients) -> None:
    """From the queries after the block."""
    maps = settings.maps(given.left)
    state, norm = _new_state(maps, given.value), maps.new_norm(given.right)
    buffer = _new_buffer(settings, maps, given.right)
    for rows, scales in reversed(list(given.blocks(settings.block_size))):
        if rows.stop < given.left.shape[1]:
            scale = scales and scales.key
            right, current = _scaled(given.right[:, rows], scale), state.to(given.right.dtype)
            pulled = maps.pull_back(right, current @ given.value[:, rows].mT, doubled=True)
            found.right[:, rows] += _scaled(pulled + maps.pull_norm(norm, right), scale)
            found.value[:, rows] += maps.expand(right, buffer, doubled=True).mT @ current
        if scales is not None:
            state, norm = state.mul_(scales.decay), norm.mul_(scales.decay)
        if rows.start:
            left = _scaled(given.left[:, rows], scales and scales.query)
            _add_product(state, maps.expand(left, buffer, doubled=False), given.grad[:, rows])
            maps.add_norm(norm, left, given.d_total[:, rows].to(left.dtype))


def _features(
    settings: Settings, x: Tensor, padding: Tensor | None, parameters: Sequence[Tensor] | None = None
) -> tuple[Tensor, Tensor | None]:
    """The features of some keys, and their log scales; padding has zeros, and a scale below all others."""
    features, log_scale = settings.features(x, parameters)
    if padding is not None:
        features = features.masked_fill(padding[..., None], 0)
        log_scale = None if log_scale is None else log_scale.masked_fill(padding, LEAST_LOG_SCALE)
    return features, log_scale


def _of_rows(x: Tensor | None, rows: slice) -> Tensor | None:
    return None if x is None else x[:, rows]


def _all_features(
    settings: Settings, x: Tensor, padding: Tensor | None, parameters: Sequence[Tensor]
) -> tuple[Tensor, Tensor | None]:
    """The features of all rows, computed some at a time."""
    pieces = [
        _features(settings, x[:, rows], _of_rows(padding, rows), parameters)
        for rows in _slices(x.shape[1], settings.block_size)
    ]
    scales = [log_scale for _, log_scale in pieces if log_scale is not None]
    return torch.cat([features for features, _ in pieces], 1), torch.cat(scales, 1) if scales else None


def _pull_features(
    settings: Settings,
    x: Tensor,
    parameters: Sequence[Tensor],
    d_features: Tensor,
    d_scale: Tensor | None,
    padding: Tensor | None,
    totals: Sequence[Tensor],
) -> None:
    """Add the gradients of x and of the parameters from those of the features, some rows at a time."""
    for rows in _slices(x.shape[1], settings.block_size):
        hidden = _of_rows(padding, rows)

        def of(some: Tensor, *given: Tensor, hidden: Tensor | None = hidden) -> tuple[Tensor, ...]:
            features, log_scale = _features(settings, some, hidden, given)
            return (features,) if d_scale is None or log_scale is None else (features, log_scale)

        upstream = (d_features[:, rows],) if d_scale is None else (d_features[:, rows], d_scale[:, rows])
        of_x, *of_parameters = torch.func.vjp(of, x[:, rows], *parameters)[1](upstream)
        totals[0][:, rows] = of_x
        for whole, part in zip(totals[1:], of_parameters, strict=True):
            whole += part


def _scales(log_scale: Tensor | None, before: Tensor | None) -> tuple[Scales | None, Tensor | None]:
    """The scales of a block of keys, and the largest so far, `(heads, 1)`."""
    if log_scale is None:
        return None, None
    if before is None:
        before = log_scale[:, :1]
    running = torch.maximum(log_scale.cummax(-1).values, before)
    after = running[:, -1:]
    # The exponents of the future are positive and would overflow before the triangle hides them.
    within = (log_scale[:, None] - running[..., None]).clamp_(max=0).exp_()
    query, key = (before - running).exp()[..., None], (log_scale - after).exp()[..., None]
    return Scales(query, key, (before - after).exp()[..., None], within), after


def _visible(weights: Tensor, scales: Scales | None) -> Tensor:
    return (weights if scales is None else weights.mul_(scales.within.to(weights.dtype))).tril_()


def _advance(
    state: Tensor,
    norm: Tensor,
    maps: Plain | Squares,
    right: Tensor,
    values: Tensor,
    scales: Scales | None,
    buffer: Tensor,
) -> None:
    """Add a block of keys to the states."""
    if scales is not None:
        state, norm = state.mul_(scales.decay), norm.mul_(scales.decay)
        right = _scaled(right, scales.key)
    _add_product(state, maps.expand(right, buffer, doubled=True), values)
    maps.add_norm(norm, right)


def _slices(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def _new_state(maps: Plain | Squares, value: Tensor) -> Tensor:
    return value.new_zeros(len(value), maps.width, value.shape[-1], dtype=_precision(value))


def _new_buffer(settings: Settings, maps: Plain | Squares, features: Tensor) -> Tensor:
    return features.new_empty(len(features), maps.width, settings.block_size)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """`total += left @ right`, in the precision of the total."""
    if left.dtype == right.dtype == total.dtype:
        total.baddbmm_(left, right)
    else:
        total += left @ right


def _multiply(x: Tensor, y: Tensor, out: Tensor) -> None:
    """`out = x * y`; TorchDynamo takes no `out` that is part of another tensor."""
    if torch.compiler.is_compiling():
        out.copy_(x * y)
    else:
        torch.mul(x, y, out=out)


def _scaled(x: Tensor, scale: Tensor | None) -> Tensor:
    return x if scale is None else x * scale.to(x.dtype)


def _denominator(total: Tensor, bias: float) -> Tensor:
    biased = total + bias
    return biased.masked_fill_(biased == 0, 1)


def _divide(summed: Tensor, total: Tensor, bias: float, out: Tensor) -> None:
    out.copy_(summed.div_(_denominator(total, bias).to(summed.dtype)))


def _precision(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
