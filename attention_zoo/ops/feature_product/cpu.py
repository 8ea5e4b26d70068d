"""The normalised `feature_product` on a CPU: what is used together stays in its cache.

As in the reference, blocks of rows read the keys before them through sums. The differences are

- self-tensored features: of `x_a x_b = x_b x_a` one is kept (`Squares`), 5/8 of the products where r is 32;
- the denominators: `sum_j <l_i, r_j>^2 = l_i^T (sum_j r_j r_j^T) l_i` instead of one more column of the values;
- the features of queries and keys: they are computed block by block, and again in the backward pass. Self-tensored
  ones are written into a buffer that is reused, positions last.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attention_zoo.ops.feature_product.blocks import (
    Block,
    Chunk,
    Features,
    Inputs,
    Settings,
    Sums,
    form_of,
    relative,
    slabs,
    weight_factors,
)
from attention_zoo.ops.feature_product.feature_maps import add_product, at_least_float32
from attention_zoo.ops.feature_product.reference import BlockScales, LocalInputs, next_scales, scaled, visible
from attention_zoo.ops.gradients import once_differentiable
from attention_zoo.ops.masking import denominator, power_
from attention_zoo.ops.operators import current_autocast

# Elements of the features of a block; twice that stays in the caches of a few cores.
ENTRIES = 2**20
# Elements of the features of a chunk, before they are tensored: a call for several blocks costs as much as for one.
CHUNK = 2**18


def why_unsupported(query: Tensor) -> str | None:
    """Why this path does not take the input; None if it does."""
    return None if query.device.type == "cpu" else f"its blocks are made for a CPU, the input is on {query.device.type}"


def normalised_block_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    features: Features,
    padding: Tensor | None,
    bias: float,
    causal: bool,
    block_size: int | None,
    degree: int = 1,
    local: LocalInputs | None = None,
) -> tuple[Tensor, str]:
    """`sum_j w_ij value_j / (bias + sum_j w_ij)`, `w_ij = <features(query_i), features(key_j)>^degree` of visible keys.

    Args:
        query: `(batch, heads, queries, h)`.
        key: `(batch, heads, keys, h)`; so is `value`.
        features: how to compute them. With log scales (degree 1 only) the features are `exp(log scale) features`, kept
            relative to the largest scale so far. The log scales of queries cancel.
        padding: `(batch, keys)` bool, True at padding.
        bias: as in `normalised_feature_product`; so are `causal`, `block_size`, `degree` and `local`.

    Returns:
        The result, and its form: `blocks`, or `quadratic` where every weight was computed.
    """
    batch, heads = query.shape[:2]
    local_query, local_key, local_degree = local or (None, None, 1)
    if padding is not None:
        padding = padding[:, None].expand(-1, heads, -1)
    tensors = (query, key, value, local_query, local_key, padding)
    flat = [x if x is None else x.flatten(0, 1) for x in tensors]
    one, _ = features.function(query[:1, :, :1].detach(), features.parameters)
    form = form_of(
        *(query.shape[2], key.shape[2], one.shape[-1], value.shape[3]),
        causal=causal,
        block_size=block_size,
        degree=degree,
        inner=None if local is None else local.query.shape[3],
    )
    chunk_size = form.block_size * max(1, CHUNK // (form.block_size * heads * one.shape[-1]))
    settings = Settings(
        *(features.function, features.closed_form, one.shape[-1], at_least_float32(one), heads, degree, bias, causal),
        *(form.quadratic, form.block_size, chunk_size, local_degree),
    )
    columns = key.shape[2] if form.quadratic else form.width
    at_once = heads * max(1, ENTRIES // (heads * columns * min(form.block_size, query.shape[2])))
    if at_once >= batch * heads:  # a slice of everything would still be copied in the backward pass
        out = _BlockProduct.apply(settings, *flat, *features.parameters)
    else:
        parts = zip(*(itertools.repeat(None) if x is None else x.split(at_once) for x in flat), strict=False)
        out = torch.cat([_BlockProduct.apply(settings, *part, *features.parameters) for part in parts])
    return out.unflatten(0, (batch, heads)), "quadratic" if form.quadratic else "blocks"


class _BlockProduct(torch.autograd.Function):
    """Saves its inputs, the output and the denominators; the backward pass recomputes features and sums."""

    @staticmethod
    def forward(ctx: Any, settings: Settings, *tensors: Any) -> Tensor:
        inputs = Inputs(*tensors[:6], tensors[6:])  # type: ignore[call-arg]
        product = _Product(settings, inputs)
        residuals: tuple[Tensor | None, ...] = ()
        if settings.quadratic:
            product.quadratic()
        elif settings.causal:
            product.causal()
        else:
            residuals = product.full()
        ctx.settings, ctx.num_residuals = settings, len(residuals)
        ctx.autocast = current_autocast(inputs.query.device)
        ctx.save_for_backward(*residuals, *inputs[:-1], product.out, product.total, *inputs.parameters)
        return product.out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors  # once: checkpointing computes them again at each access
        residuals, saved = tensors[: ctx.num_residuals], tensors[ctx.num_residuals :]
        inputs, settings = Inputs(*saved[:6], saved[8:]), ctx.settings  # type: ignore[call-arg]
        out, total = saved[6:8]
        with torch.autocast(*ctx.autocast):
            grad = (grads[0] / denominator(total, settings.bias)).to(inputs.value.dtype)
            d_total = -(grad * out).sum(-1, keepdim=True).masked_fill_(total + settings.bias == 0, 0)
            gradients = Gradients(settings, inputs, grad, d_total)
            if settings.quadratic:
                gradients.of_quadratic()
            elif settings.causal:
                gradients.of_causal()
            else:
                gradients.of_full(residuals)
        return None, *gradients.all


class _Product:
    """The forward pass: fills `out` and the denominators `total`, `(heads, queries, h)` and `(heads, queries, 1)`."""

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        self.settings, self.inputs, value = settings, inputs, inputs.value
        queries = inputs.query.shape[:2]
        self.out = value.new_empty(*queries, value.shape[2])
        self.total = value.new_empty(*queries, 1, dtype=at_least_float32(value))

    def quadratic(self) -> None:
        """Every weight is computed."""
        left, right = (Chunk(self.settings, self.inputs, None, keys=which).whole for which in (False, True))
        for queries, keys, scales, before in slabs(self.settings, left, right):
            summed, total = self._weigh(queries, keys, scales)
            if before is not None:
                more, of_more = self._weigh(queries, before, None, is_own=False)
                summed, total = summed.add_(more), total.add_(of_more)
            self._divide(queries.rows, summed, total)

    def full(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Every query sees every key; returns the total and the norm of the keys, and their largest log scale."""
        sums, largest = self._sums_of_keys()
        for rows in self.settings.chunks(self.inputs.query):
            for block in Chunk(self.settings, self.inputs, rows, keys=False).blocks():
                summed = sums.read(block.features, doubled=False)
                self._divide(block.rows, summed, sums.read_norm(block.features))
        return sums.total, sums.norm, largest

    def causal(self) -> None:
        """Every query sees the keys up to its own position."""
        sums, scales = Sums(self.settings, self.inputs), None
        for rows in self.settings.chunks(self.inputs.query):
            queries, keys = (Chunk(self.settings, self.inputs, rows, keys=which) for which in (False, True))
            for left, right in zip(queries.blocks(), keys.blocks(), strict=True):
                scales = next_scales(right.log_scale, scales)
                self._add_causal(left, right, scales, sums)

    def _sums_of_keys(self) -> tuple[Sums, Tensor | None]:
        sums, largest = Sums(self.settings, self.inputs), None
        for rows in self.settings.chunks(self.inputs.key):
            for block in Chunk(self.settings, self.inputs, rows, keys=True).blocks():
                if block.log_scale is not None:
                    before = block.log_scale[:, :1] if largest is None else largest
                    largest = torch.maximum(before, block.log_scale.amax(-1, keepdim=True))
                    sums.decay((before - largest).exp_()[..., None])
                scale = relative(block.log_scale, largest)
                sums.add(block.features, scaled(self.inputs.value[:, block.rows], scale), doubled=True, weights=scale)
        return sums, largest

    def _add_causal(self, left: Block, right: Block, scales: BlockScales | None, sums: Sums) -> None:
        """Let a block of queries see its own keys and the sums, then add its keys to the sums."""
        rows, values = right.rows, self.inputs.value[:, right.rows]
        summed, total = self._weigh(left, right, scales and scales.intra_block)
        if rows.start:
            scale = scales and scales.query
            summed += scaled(sums.read(left.features, doubled=False), scale)
            total = total + scaled(sums.read_norm(left.features), scale)
        self._divide(rows, summed, total)
        if rows.stop < self.inputs.query.shape[1]:
            sums.advance(right.features, values, scales)

    def _weigh(self, left: Block, right: Block, scales: Tensor | None, *, is_own: bool = True) -> tuple[Tensor, Tensor]:
        """The weighted values of the queries' own block, or of the keys before it, and the sums of the weights."""
        queries, keys, degree = weight_factors(self.settings, self.inputs, left, right, is_own=is_own)
        weights = visible(power_(queries @ keys.mT, degree), scales, self.settings.causal and is_own)
        return weights @ self.inputs.value[:, right.rows], weights.sum(-1, keepdim=True)

    def _divide(self, rows: slice, summed: Tensor, total: Tensor) -> None:
        self.total[:, rows] = total
        self.out[:, rows] = summed.div_(denominator(self.total[:, rows], self.settings.bias).to(summed.dtype))


class Gradients:
    """The gradients of the inputs, filled block by block.

    Args:
        settings: of the forward pass.
        inputs: of the forward pass.
        grad: gradient of the weighted sums of values, `(heads, queries, h)`.
        d_total: gradient of the denominators, `(heads, queries, 1)`.
    """

    def __init__(self, settings: Settings, inputs: Inputs, grad: Tensor, d_total: Tensor) -> None:
        self.settings, self.inputs, self.grad, self.d_total = settings, inputs, grad, d_total
        # Zeros, because several slabs of queries add to the gradients of the same keys.
        self.query, self.key, self.value = (torch.zeros_like(x) for x in inputs[:3])
        self.local_query, self.local_key = (None if x is None else torch.zeros_like(x) for x in inputs[3:5])
        self.parameters = [torch.zeros_like(p) if p.requires_grad else None for p in inputs.parameters]

    @property
    def all(self) -> tuple[Tensor | None, ...]:
        """The gradients in the order of the inputs."""
        return self.query, self.key, self.value, self.local_query, self.local_key, None, *self.parameters

    def of_quadratic(self) -> None:
        """Every weight is computed."""
        queries, keys = (Chunk(self.settings, self.inputs, None, keys=which, with_pull=True) for which in (False, True))
        keys.grad.zero_()
        for some, seen, scales, before in slabs(self.settings, queries.whole, keys.whole):
            some.grad[:] = self._weigh(some, seen, scales, seen.grad)
            if before is not None:
                some.grad.add_(self._weigh(some, before, None, before.grad, is_own=False))
        self._pull(queries, self.query)
        self._pull(keys, self.key)

    def of_full(self, residuals: Sequence[Tensor | None]) -> None:
        """Every query sees every key; `residuals` are what `_Product.full` returned."""
        of_queries = self._of_full_queries(*residuals[:2])
        for rows in self.settings.chunks(self.inputs.key):
            chunk = Chunk(self.settings, self.inputs, rows, keys=True, with_pull=True)
            for block in chunk.blocks():
                scale = relative(block.log_scale, residuals[2])
                self.value[:, block.rows] = self._from_queries(of_queries, block, scale)
            self._pull(chunk, self.key)

    def of_causal(self) -> None:
        """Every query sees the keys up to its own position."""
        residuals, of_queries = self._of_causal_queries(), Sums(self.settings, self.inputs)
        for rows in reversed(self.settings.chunks(self.inputs.key)):
            queries = Chunk(self.settings, self.inputs, rows, keys=False)
            chunk = Chunk(self.settings, self.inputs, rows, keys=True, with_pull=True)
            for left, right in zip(reversed(queries.blocks()), reversed(chunk.blocks()), strict=True):
                self._causal_keys(left, right, *residuals.pop(), of_queries)
            self._pull(chunk, self.key)

    def _of_full_queries(self, total: Tensor | None, norm: Tensor | None) -> Sums:
        of_keys, of_queries = Sums(self.settings, self.inputs, total, norm), Sums(self.settings, self.inputs)
        for rows in self.settings.chunks(self.inputs.query):
            chunk = Chunk(self.settings, self.inputs, rows, keys=False, with_pull=True)
            for block in chunk.blocks():
                self._from_keys(of_keys, block, None)
                grad, weights = self._upstream(block, None)
                of_queries.add(block.features, grad, doubled=False, weights=weights)
            self._pull(chunk, self.query)
        return of_queries

    def _of_causal_queries(self) -> list[tuple[BlockScales | None, Tensor]]:
        """Each block's scales, and the gradient of its keys' features from the weights inside it."""
        sums, scales = Sums(self.settings, self.inputs), None
        residuals: list[tuple[BlockScales | None, Tensor]] = []
        for rows in self.settings.chunks(self.inputs.query):
            chunk = Chunk(self.settings, self.inputs, rows, keys=False, with_pull=True)
            keys = Chunk(self.settings, self.inputs, rows, keys=True)
            for left, right in zip(chunk.blocks(), keys.blocks(), strict=True):
                scales = next_scales(right.log_scale, scales)
                to_right = torch.zeros_like(right.features)
                to_left = self._weigh(left, right, scales and scales.intra_block, to_right)
                residuals.append((scales and scales._replace(intra_block=None), to_right))
                if left.rows.start:
                    self._from_keys(sums, left, scales and scales.query)
                    left.grad.add_(to_left)
                else:
                    left.grad.copy_(to_left)
                if left.rows.stop < self.inputs.query.shape[1]:
                    sums.advance(right.features, self.inputs.value[:, left.rows], scales)
            self._pull(chunk, self.query)
        return residuals

    def _causal_keys(
        self, left: Block, right: Block, scales: BlockScales | None, to_keys: Tensor, of_queries: Sums
    ) -> None:
        """The gradients of a block of keys from later queries; adds its own queries to the sums for earlier keys."""
        rows = left.rows
        if rows.stop == self.inputs.key.shape[1]:
            right.grad.copy_(to_keys)
        else:
            self.value[:, rows] += self._from_queries(of_queries, right, scales and scales.key)
            right.grad.add_(to_keys)
            if scales is not None:
                of_queries.decay(scales.decay)
        if rows.start:
            grad, weights = self._upstream(left, scales and scales.query)
            of_queries.add(left.features, grad, doubled=False, weights=weights)

    def _weigh(
        self, left: Block, right: Block, scales: Tensor | None, to_keys: Tensor, *, is_own: bool = True
    ) -> Tensor:
        """The backward pass of `_Product._weigh`: fills the gradients of values and of local queries and keys.

        The gradient of the keys' features is added to `to_keys`, that of the queries' features is returned.
        """
        queries, keys, degree = weight_factors(self.settings, self.inputs, left, right, is_own=is_own)
        scores, grad, causal = queries @ keys.mT, self.grad[:, left.rows], self.settings.causal and is_own
        weights = power_(scores.square(), degree // 2) if degree % 2 == 0 else power_(scores.clone(), degree)
        add_product(self.value[:, right.rows], visible(weights, scales, causal).mT, grad)
        d_scores = (degree * grad) @ self.inputs.value[:, right.rows].mT
        d_scores.add_(degree * self.d_total[:, left.rows])
        if degree > 1:
            d_scores.mul_(power_(scores, degree - 1))
        d_scores = visible(d_scores, scales, causal)
        if self.local_query is None or self.local_key is None or not is_own:
            add_product(to_keys, d_scores.mT, queries)
            return d_scores @ keys
        self.local_query[:, left.rows] = d_scores @ keys
        add_product(self.local_key[:, right.rows], d_scores.mT, queries)
        return grad.new_zeros(())

    def _from_keys(self, of_keys: Sums, left: Block, scale: Tensor | None) -> None:
        """Write the gradient of a query block's features, from the sums over keys."""
        grad, weights = self._upstream(left, scale)
        of_keys.pull(left.grad, left.features, grad, doubled=False, weights=weights)

    def _upstream(self, left: Block, scale: Tensor | None) -> tuple[Tensor, Tensor]:
        """The gradients of what a block of queries reads from the sums: of the values, and of the denominators."""
        return scaled(self.grad[:, left.rows], scale), scaled(self.d_total[:, left.rows], scale)

    def _from_queries(self, of_queries: Sums, right: Block, scale: Tensor | None) -> Tensor:
        """Write the gradient of a key block's features, from the sums over queries, and return that of its values."""
        values = scaled(self.inputs.value[:, right.rows], scale)
        of_queries.pull(right.grad, right.features, values, doubled=True, weights=scale)
        return scaled(of_queries.read(right.features, doubled=True), scale)

    def _pull(self, chunk: Chunk, whole: Tensor) -> None:
        """Backpropagate a chunk's features to its rows of `whole`, and to the parameters."""
        whole[:, chunk.rows], *of_parameters = chunk.pull()
        for total, part in zip((p for p in self.parameters if p is not None), of_parameters, strict=True):
            total += part
