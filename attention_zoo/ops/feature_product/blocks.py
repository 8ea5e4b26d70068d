"""Features of queries and keys, some blocks of them at a time, and sums over blocks, which others read instead."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attention_zoo.ops.feature_product.feature_maps import Plain, Squares, add_product, at_least_float32
from attention_zoo.ops.feature_product.reference import (
    Scales,
    default_block_size,
    next_scales,
    scaled,
    slab_weights,
    slices,
)

# Of padding: finite, and below that of any key.
LEAST = -1e30
# Weights of a head: more of them take longer to come from memory than sums over blocks to be multiplied.
LARGEST_QUADRATIC = 2**20
# Queries whose weights are computed together where every weight is, or, if causal, those of the keys up to them.
SLAB = 128

# Features `(batch, heads, rows, r)`, and log scales `(batch, heads, rows)` or None.
Featured = tuple[Tensor, Tensor | None]
# Of rows `(batch, heads, rows, h)` and parameters.
Function = Callable[[Tensor, Sequence[Tensor]], Featured]
# From the gradients of features and log scales, or None, to those of the rows, and of the parameters that have one.
Pull = Callable[[Tensor, Tensor | None], Sequence[Tensor]]
# Its pull is called once, and may write over the features.
ClosedForm = Callable[[Tensor, Sequence[Tensor]], tuple[Tensor, Tensor | None, Pull]]


class Features(NamedTuple):
    """What makes features of queries or keys, each of them by itself."""

    function: Function
    parameters: Sequence[Tensor] = ()
    """What features depend on; it must not change before the backward pass."""
    closed_form: ClosedForm | None = None
    """The function with its gradient, where no parameter has one; None leaves it to autograd."""


def _as_they_are(x: Tensor, _: Sequence[Tensor]) -> tuple[Tensor, None, Pull]:
    return x, None, lambda d_features, _: (d_features,)


# Of queries and keys that are features already.
AS_THEY_ARE = Features(lambda x, _: (x, None), closed_form=_as_they_are)


class Inputs(NamedTuple):
    """What goes along the sequence, `(batch * heads, n, ...)`, and the parameters of the features."""

    query: Tensor
    key: Tensor
    value: Tensor
    local_query: Tensor | None
    local_key: Tensor | None
    padding: Tensor | None
    parameters: Sequence[Tensor]


class Form(NamedTuple):
    """How the product is computed: block by block, or from every weight, which is one block."""

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
    """The form with fewer products; exact weights (`inner`) are those of blocks of this size in either."""
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
    """What does not change along the sequence."""

    function: Function
    closed_form: ClosedForm | None
    heads: int
    degree: int
    bias: float
    causal: bool
    quadratic: bool
    block_size: int
    chunk_size: int
    local_degree: int

    def maps(self, x: Tensor) -> Plain | Squares:
        """What makes the features of a weight of vectors like x."""
        return Squares(x.shape[-1]) if self.degree == 2 else Plain(x.shape[-1])

    def chunks(self, x: Tensor) -> list[slice]:
        """The rows of x `(heads, n, ...)` whose features are computed together: some blocks."""
        return list(slices(x.shape[1], self.chunk_size))

    def features(
        self, x: Tensor, inputs: Inputs, rows: slice, *, with_pull: bool
    ) -> tuple[Tensor, Tensor | None, Pull]:
        """Of some queries or keys x, `(heads, rows, r)` and `(heads, rows)`.

        With `pull`, from the gradients of both, those of the rows and of the parameters that have one.
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
    """The features of one block's queries or keys, `(heads, rows, r)`, its keys' log scales, and the gradient."""

    rows: slice
    features: Tensor
    log_scale: Tensor | None
    grad: Tensor
    """To be filled; where nothing is pulled back, no memory of its own."""

    def part(self, some: slice) -> "Block":
        """Of some of its rows, counted from its first."""
        rows = slice(self.rows.start + some.start, self.rows.start + some.stop)
        log_scale = None if self.log_scale is None else self.log_scale[:, some]
        return Block(rows, self.features[:, some], log_scale, self.grad[:, some])


class Chunk:
    """The features of some blocks of rows; of queries there are no log scales, which cancel.

    Args:
        settings: say what makes them.
        inputs: of all rows.
        rows: which.
        keys: whether of keys, else of queries.
        with_pull: whether gradients will be put into the blocks, and pulled back.
    """

    def __init__(self, settings: Settings, inputs: Inputs, rows: slice, *, keys: bool, with_pull: bool = False) -> None:
        self.rows, self._block_size = rows, settings.block_size
        padding = inputs.padding if keys else None
        self._hidden = None if padding is None else padding[:, rows]
        x = inputs.key if keys else inputs.query
        features, log_scale, self._pull = settings.features(x, inputs, rows, with_pull=with_pull)
        self.features, self.log_scale = features, log_scale if keys else None
        self.grad = torch.empty_like(features) if with_pull else features
        if self._hidden is not None:
            self.features = features.masked_fill(self._hidden[..., None], 0)
            self.log_scale = None if log_scale is None else log_scale.masked_fill(self._hidden, LEAST)

    @classmethod
    def of_all(cls, settings: Settings, inputs: Inputs, *, keys: bool, with_pull: bool = False) -> "Chunk":
        """Of every query or key."""
        rows = slice(0, (inputs.key if keys else inputs.query).shape[1])
        return cls(settings, inputs, rows, keys=keys, with_pull=with_pull)

    @property
    def whole(self) -> Block:
        """As one block."""
        return Block(self.rows, self.features, self.log_scale, self.grad)

    def blocks(self) -> list[Block]:
        """In their order."""
        return [self.whole.part(here) for here in slices(self.rows.stop - self.rows.start, self._block_size)]

    def pull(self) -> Sequence[Tensor]:
        """From the blocks' gradients to that of their rows, and of each parameter that has one."""
        d_scale = None
        if self.log_scale is not None:
            d_scale = (self.grad * self.features).sum(-1, dtype=self.log_scale.dtype)
        if self._hidden is not None:
            self.grad.masked_fill_(self._hidden[..., None], 0)
        return self._pull(self.grad, d_scale)


class Sums:
    """Of some rows: the sum of their features by what is beside them, and that of the denominators' features.

    Args:
        settings: say what makes features, and how many rows a block has.
        x: vectors that features are made of, `(heads, rows, r)`.
        inputs: whose sequence is summed over.
        total: a sum that is there already, with its `norm`; None is of nothing.
        norm: that of the denominators.
    """

    def __init__(
        self, settings: Settings, x: Tensor, inputs: Inputs, total: Tensor | None = None, norm: Tensor | None = None
    ) -> None:
        self.maps, value = settings.maps(x), inputs.value
        sizes = len(value), self.maps.width, value.shape[2]
        self.total = value.new_zeros(sizes, dtype=at_least_float32(value)) if total is None else total
        self.norm = self.maps.new_norm(x) if norm is None else norm

    def add(self, x: Tensor, beside: Tensor, *, doubled: bool, weights: Tensor | None = None) -> None:
        """Add rows; `weights` `(heads, rows, 1)` are those in the denominators."""
        add_product(self.total, self.maps.expand(x, doubled=doubled), beside)
        self.maps.add_norm(self.norm, x, None if weights is None else weights.to(x.dtype))

    def advance(self, x: Tensor, beside: Tensor, scales: Scales | None) -> None:
        """Add a block of keys."""
        if scales is not None:
            self.decay(scales.decay)
        scale = scales and scales.key
        self.add(x, scaled(beside, scale), doubled=True, weights=scale)

    def decay(self, factor: Tensor) -> None:
        """Let what was added count less."""
        self.total.mul_(factor)
        self.norm.mul_(factor)

    def read(self, x: Tensor, *, doubled: bool) -> Tensor:
        """`(heads, rows, h)`."""
        return self.maps.expand(x, doubled=doubled).mT @ self.total.to(x.dtype)

    def read_norm(self, x: Tensor) -> Tensor:
        """`(heads, rows, 1)`."""
        return self.maps.read_norm(self.norm, x)

    def pull(self, out: Tensor, x: Tensor, grad: Tensor, *, doubled: bool, weights: Tensor | None) -> None:
        """Write the gradient of x from `sum_i <grad_i, read_i> + weights_i read_norm_i`."""
        self.maps.pull_back(out, x, self.total.to(x.dtype), grad, doubled=doubled)
        self.maps.pull_norm(out, self.norm, x, weights)


class Own(NamedTuple):
    """The keys of some queries' own block, and their scales, broadcastable to `(heads, queries, keys)`."""

    keys: Block
    scales: Tensor | None


def slabs(settings: Settings, left: Block, right: Block) -> Iterator[tuple[Block, Own, Block | None]]:
    """Of all queries and keys some queries at a time, what they see of their own block, and the keys before it.

    Where it is causal, half of the weights are of the future.
    """
    causal, keys, of_all = (
        settings.causal,
        right.features.shape[1],
        _scales_inside_block(right.log_scale, settings.causal),
    )
    for block in slices(left.features.shape[1], settings.block_size):
        before = right.part(slice(0, block.start)) if block.start else None
        for some in slices(block.stop - block.start, SLAB):
            rows = slice(block.start + some.start, block.start + some.stop)
            seen = slice(block.start, rows.stop if causal else keys)
            scales = None if of_all is None else of_all[:, rows if causal else slice(None), seen]
            yield left.part(rows), Own(right.part(seen), scales), before


def _scales_inside_block(log_scale: Tensor | None, causal: bool) -> Tensor | None:
    """Of each key for each query where all are in one block, broadcastable to `(heads, queries, keys)`."""
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
    """Whose products, to which degree, are the weights: the features', or, of a block's own keys, exact ones."""
    if inputs.local_query is None or inputs.local_key is None or not is_own:
        return left.features, right.features, settings.degree
    return inputs.local_query[:, left.rows], inputs.local_key[:, right.rows], settings.local_degree


def _by_autograd(function: Function, x: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, Pull]:
    trained = [p for p in parameters if p.requires_grad]

    def of(x: Tensor, *trained: Tensor) -> tuple[Tensor, ...]:
        parts = iter(trained)
        results = function(x, [next(parts) if p.requires_grad else p for p in parameters])
        return tuple(result for result in results if result is not None)

    if torch.compiler.is_compiling():  # no autograd inside its backward passes
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
