"""The CPU path's features of queries and keys, a few blocks at a time, and the sums over blocks that others read."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attention_zoo.ops.feature_product.feature_maps import Plain, Squares, add_product, at_least_float32
from attention_zoo.ops.feature_product.reference import (
    BlockScales,
    default_block_size,
    next_scales,
    scaled,
    slab_weights,
    slices,
)

# The log scale of padding: finite, and below the log scale of any key.
LEAST = -1e30
# The most weights of a head that are all computed: to load more from memory takes longer than sums over blocks.
LARGEST_QUADRATIC = 2**20
# Queries in a slab, whose weights are computed together; a causal slab has the keys up to its last query.
SLAB = 128

# Features `(batch, heads, rows, r)`, and log scales `(batch, heads, rows)` or None.
Featured = tuple[Tensor, Tensor | None]
# Takes rows `(batch, heads, rows, h)` and parameters.
Function = Callable[[Tensor, Sequence[Tensor]], Featured]
# Takes the gradients of features and of log scales (or None); returns those of the rows and of trained parameters.
Pull = Callable[[Tensor, Tensor | None], Sequence[Tensor]]
# Its `Pull` is called once, and may write over the features.
ClosedForm = Callable[[Tensor, Sequence[Tensor]], tuple[Tensor, Tensor | None, Pull]]


class Features(NamedTuple):
    """How to compute the features of queries or keys, each row by itself."""

    function: Function
    parameters: Sequence[Tensor] = ()
    """What features depend on; must not change before the backward pass."""
    closed_form: ClosedForm | None = None
    """The function with its backward pass, used if no parameter is trained; None leaves it to autograd."""


def _as_they_are(x: Tensor, _: Sequence[Tensor]) -> tuple[Tensor, None, Pull]:
    return x, None, lambda d_features, _: (d_features,)


# For queries and keys that are features already.
AS_THEY_ARE = Features(lambda x, _: (x, None), closed_form=_as_they_are)


class Inputs(NamedTuple):
    """The tensors with a sequence dimension, `(batch * heads, n, ...)`, and the parameters of the features."""

    query: Tensor
    key: Tensor
    value: Tensor
    local_query: Tensor | None
    local_key: Tensor | None
    padding: Tensor | None
    parameters: Sequence[Tensor]


class Form(NamedTuple):
    """How the product is computed: block by block, or, if `quadratic`, from every weight (the parallel form)."""

    quadratic: bool
    block_size: int
    width: int


def form_of(
    queries: int,
    keys: int,
    features: int,
    head_dim: int,
    *,
    causal: bool,
    block_size: int | None,
    degree: int = 1,
    inner: int | None = None,
) -> Form:
    """The form with fewer multiplications; exact weights (`inner`) are inside blocks of `block_size` in both forms."""
    width = Squares(features).width if degree == 2 else features
    rows = block_size or default_block_size(torch.device("cpu"), causal=causal, degree=degree)
    if causal and queries <= rows:
        return Form(True, rows, width)
    sums, weight = width * head_dim, features + head_dim
    if causal:
        seen = slab_weights(queries, keys, SLAB if inner is None else rows, causal=True) / queries
        cheaper = seen * weight <= rows * weight + 2 * sums * (1 - rows / queries)
        cheaper = cheaper and (block_size is None or inner is not None)
    else:
        cheaper = queries * keys * weight <= (queries + keys) * sums
    quadratic = cheaper and queries * keys <= LARGEST_QUADRATIC
    return Form(quadratic, max(queries, keys) if quadratic and inner is None else rows, width)


class Settings(NamedTuple):
    """The settings of a product, the same for all blocks."""

    function: Function
    closed_form: ClosedForm | None
    num_features: int
    norm_dtype: torch.dtype
    """Of the sums for the denominators."""
    heads: int
    degree: int
    bias: float
    causal: bool
    quadratic: bool
    block_size: int
    chunk_size: int
    local_degree: int

    def chunks(self, x: Tensor) -> list[slice]:
        """The chunks of x `(heads, n, ...)`, each of a few blocks, whose features are computed together."""
        return list(slices(x.shape[1], self.chunk_size))

    def features(
        self, x: Tensor, inputs: Inputs, rows: slice, *, with_pull: bool
    ) -> tuple[Tensor, Tensor | None, Pull]:
        """Features `(heads, rows, r)` and log scales `(heads, rows)` of some rows of x, and their `Pull`.

        The `Pull` takes the gradients of both, and must not be called without `with_pull`.
        """
        some, pull_back = x[:, rows].unflatten(0, (-1, self.heads)), None
        if not with_pull:
            features, log_scale = self.function(some, inputs.parameters)
        elif self.closed_form is None or any(p.requires_grad for p in inputs.parameters):
            features, log_scale, pull_back = _by_autograd(self.function, some, inputs.parameters)
        else:
            features, log_scale, pull_back = self.closed_form(some, inputs.parameters)

        def pull(grad: Tensor, d_scale: Tensor | None) -> Sequence[Tensor]:
            assert pull_back is not None
            d_x, *d_parameters = pull_back(
                grad.view(features.shape), None if d_scale is None else d_scale.view(features.shape[:-1])
            )
            return d_x.flatten(0, 1), *d_parameters

        return features.flatten(0, 1), None if log_scale is None else log_scale.flatten(0, 1), pull


class Block(NamedTuple):
    """The features of one block of queries or keys, `(heads, rows, r)`, the keys' log scales, and the gradient."""

    rows: slice
    features: Tensor
    log_scale: Tensor | None
    grad: Tensor
    """Of the features, to be filled; without a backward pass it is the features' own memory."""

    def part(self, some: slice) -> "Block":
        """The block of some of its rows, counted from its first."""
        rows = slice(self.rows.start + some.start, self.rows.start + some.stop)
        log_scale = None if self.log_scale is None else self.log_scale[:, some]
        return Block(rows, self.features[:, some], log_scale, self.grad[:, some])


class Chunk:
    """The features of a few blocks of rows; queries have no log scales, because these cancel.

    Args:
        settings: how the features are computed.
        inputs: those of all rows.
        rows: the rows of this chunk; None is all of them.
        keys: whether they are keys, else queries.
        with_pull: whether gradients will be put into the blocks, and `pull` called.
    """

    def __init__(
        self, settings: Settings, inputs: Inputs, rows: slice | None, *, keys: bool, with_pull: bool = False
    ) -> None:
        x, padding = (inputs.key, inputs.padding) if keys else (inputs.query, None)
        self.rows = rows = rows or slice(0, x.shape[1])
        self._block_size = settings.block_size
        self._hidden = None if padding is None else padding[:, rows]
        features, log_scale, self._pull = settings.features(x, inputs, rows, with_pull=with_pull)
        self.features, self.log_scale = features, log_scale if keys else None
        self.grad = torch.empty_like(features) if with_pull else features
        if self._hidden is not None:
            self.features = features.masked_fill(self._hidden[..., None], 0)
            self.log_scale = None if log_scale is None else log_scale.masked_fill(self._hidden, LEAST)

    @property
    def whole(self) -> Block:
        """The chunk as one block."""
        return Block(self.rows, self.features, self.log_scale, self.grad)

    def blocks(self) -> list[Block]:
        """The blocks in order."""
        return [self.whole.part(here) for here in slices(self.rows.stop - self.rows.start, self._block_size)]

    def pull(self) -> Sequence[Tensor]:
        """The gradients of the rows and of each trained parameter, from the gradients in the blocks."""
        d_scale = None
        if self.log_scale is not None:
            d_scale = (self.grad * self.features).sum(-1, dtype=self.log_scale.dtype)
        if self._hidden is not None:
            self.grad.masked_fill_(self._hidden[..., None], 0)
        return self._pull(self.grad, d_scale)


class Sums:
    """Sums over rows: of features times the values (or gradients) beside them, and of the denominators' features.

    Args:
        settings: which feature map it is.
        inputs: the sequence that is summed over.
        total: a sum to start from, with its `norm`; None starts from zero.
        norm: the sum for the denominators.
    """

    def __init__(
        self, settings: Settings, inputs: Inputs, total: Tensor | None = None, norm: Tensor | None = None
    ) -> None:
        self.maps: Plain | Squares = (Squares if settings.degree == 2 else Plain)(settings.num_features)
        value, heads = inputs.value, len(inputs.value)
        sizes = heads, self.maps.width, value.shape[2]
        self.total = value.new_zeros(sizes, dtype=at_least_float32(value)) if total is None else total
        self.norm = value.new_zeros(heads, *self.maps.norm_size, dtype=settings.norm_dtype) if norm is None else norm

    def add(self, x: Tensor, beside: Tensor, *, doubled: bool, weights: Tensor | None = None) -> None:
        """Add rows; `weights` `(heads, rows, 1)` are those in the denominators."""
        add_product(self.total, self.maps.expand(x, doubled=doubled), beside)
        self.maps.add_norm(self.norm, x, None if weights is None else weights.to(x.dtype))

    def advance(self, x: Tensor, beside: Tensor, scales: BlockScales | None) -> None:
        """Decay the sums, and add a block of keys."""
        if scales is not None:
            self.decay(scales.decay)
        scale = scales and scales.key
        self.add(x, scaled(beside, scale), doubled=True, weights=scale)

    def decay(self, factor: Tensor) -> None:
        """Multiply the sums so far by `factor`."""
        self.total.mul_(factor)
        self.norm.mul_(factor)

    def read(self, x: Tensor, *, doubled: bool) -> Tensor:
        """What the rows of x get from the sums, `(heads, rows, h)`."""
        return self.maps.expand(x, doubled=doubled).mT @ self.total.to(x.dtype)

    def read_norm(self, x: Tensor) -> Tensor:
        """The denominators of the rows of x, `(heads, rows, 1)`."""
        return self.maps.read_norm(self.norm, x)

    def pull(self, out: Tensor, x: Tensor, grad: Tensor, *, doubled: bool, weights: Tensor | None) -> None:
        """Write the gradient of x from `sum_i <grad_i, read_i> + weights_i read_norm_i`."""
        self.maps.pull_back(out, x, self.total.to(x.dtype), grad, doubled=doubled)
        self.maps.pull_norm(out, self.norm, x, weights)


def slabs(settings: Settings, left: Block, right: Block) -> Iterator[tuple[Block, Block, Tensor | None, Block | None]]:
    """Some queries at a time, what they see of their own block of keys, its scales, and the keys before that block.

    The scales are broadcastable to `(heads, queries, keys)`. Causal slabs leave out most weights of later keys, which
    are half of all weights.
    """
    causal, keys = settings.causal, right.features.shape[1]
    of_all = _scales_inside_block(right.log_scale, causal)
    for block in slices(left.features.shape[1], settings.block_size):
        before = right.part(slice(0, block.start)) if block.start else None
        for some in slices(block.stop - block.start, SLAB):
            rows = slice(block.start + some.start, block.start + some.stop)
            seen = slice(block.start, rows.stop if causal else keys)
            scales = None if of_all is None else of_all[:, rows if causal else slice(None), seen]
            yield left.part(rows), right.part(seen), scales, before


def _scales_inside_block(log_scale: Tensor | None, causal: bool) -> Tensor | None:
    """The scale of each key for each query if all are in one block, broadcastable to `(heads, queries, keys)`."""
    if causal or log_scale is None:
        scales = next_scales(log_scale, None)
        return scales and scales.intra_block
    return (log_scale - log_scale.amax(-1, keepdim=True)).exp()[:, None]


def relative(log_scale: Tensor | None, largest: Tensor | None) -> Tensor | None:
    """The scale of each row `(heads, rows, 1)` relative to the largest, `(heads, 1)`."""
    return None if log_scale is None or largest is None else (log_scale - largest).exp_()[..., None]


def weight_factors(
    settings: Settings, inputs: Inputs, left: Block, right: Block, *, is_own: bool
) -> tuple[Tensor, Tensor, int]:
    """The two factors of the weights, and their degree: features, or local queries and keys in the own block."""
    if inputs.local_query is None or inputs.local_key is None or not is_own:
        return left.features, right.features, settings.degree
    return inputs.local_query[:, left.rows], inputs.local_key[:, right.rows], settings.local_degree


def _by_autograd(function: Function, x: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, Pull]:
    trained = [p for p in parameters if p.requires_grad]

    def of(x: Tensor, *trained: Tensor) -> tuple[Tensor, ...]:
        parts = iter(trained)
        results = function(x, [next(parts) if p.requires_grad else p for p in parameters])
        return tuple(result for result in results if result is not None)

    if torch.compiler.is_compiling():  # it takes no autograd inside a backward pass
        results, pull_back = torch.func.vjp(of, x, *trained)[:2]
    else:
        leaves = [tensor.detach().requires_grad_() for tensor in (x, *trained)]
        with torch.enable_grad():
            graph = of(*leaves)
        results = tuple(result.detach() for result in graph)

        def pull_back(upstream: tuple[Tensor, ...]) -> Sequence[Tensor]:
            return torch.autograd.grad(graph, leaves, upstream)

    def pull(d_features: Tensor, d_scale: Tensor | None) -> Sequence[Tensor]:
        if len(results) == 1:
            return pull_back((d_features,))
        return pull_back((d_features, torch.zeros_like(results[1]) if d_scale is None else d_scale))

    return results[0], results[1] if len(results) > 1 else None, pull
