"""Features of queries and keys, some blocks of them at a time, and how their gradients are pulled back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention_zoo.ops.feature_product.feature_maps import Plain, Squares
from attention_zoo.ops.feature_product.reference import default_block_size, product_flops, slices

# Of padding: finite, and below that of any key.
LEAST = -1e30
# Weights of a head: more of them take longer to come from memory than sums over blocks to be multiplied.
LARGEST_QUADRATIC = 2**20

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
    """The form with fewer products; with exact weights in its blocks (`inner`), what their size says."""
    width = Squares(features).width if degree == 2 else features
    rows = block_size or default_block_size(torch.device("cpu"), causal=causal, degree=degree)
    if causal and queries <= rows:
        return Form(True, rows, width)
    sums, weight = width * head_dim, features + head_dim
    if causal:
        cheaper = block_size is None and queries * weight <= rows * weight + 2 * sums * (1 - rows / queries)
    else:
        cheaper = queries * keys * weight <= (queries + keys) * sums
    quadratic = cheaper and inner is None and queries * keys <= LARGEST_QUADRATIC
    return Form(quadratic, max(queries, keys) if quadratic else rows, width)


def block_flops(seq_len: int, features: int, head_dim: int, **options: Any) -> int:
    """FLOPs of one head; options are those of `form_of`."""
    form = form_of(seq_len, seq_len, features, head_dim, **options)
    return product_flops(
        seq_len,
        features,
        head_dim + 1,
        causal=options["causal"],
        block_size=form.block_size,
        degree=options.get("degree", 1),
        inner=options.get("inner"),
        width=form.width,
        quadratic=form.quadratic,
    )


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

    def features(self, x: Tensor, inputs: Inputs, rows: slice) -> Featured:
        """Of some queries or keys x; `(heads, rows, r)` and `(heads, rows)`."""
        features, log_scale = self.function(x[:, rows].unflatten(0, (-1, self.heads)), inputs.parameters)
        return features.flatten(0, 1), None if log_scale is None else log_scale.flatten(0, 1)

    def with_pull(self, x: Tensor, inputs: Inputs, rows: slice) -> tuple[Tensor, Tensor | None, Pull]:
        """`features`, and from the gradients of both those of the rows and of the parameters that have one."""
        some = x[:, rows].unflatten(0, (-1, self.heads))
        if self.closed_form is None or any(p.requires_grad for p in inputs.parameters):
            features, log_scale, pull_back = _by_autograd(self.function, some, inputs.parameters)
        else:
            features, log_scale, pull_back = self.closed_form(some, inputs.parameters)

        def pull(grad: Tensor, d_scale: Tensor | None) -> Sequence[Tensor]:
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
        self._pull: Pull | None = None
        padding = inputs.padding if keys else None
        self._hidden = None if padding is None else padding[:, rows]
        x = inputs.key if keys else inputs.query
        if with_pull:
            features, log_scale, self._pull = settings.with_pull(x, inputs, rows)
        else:
            features, log_scale = settings.features(x, inputs, rows)
        self.features, self.log_scale = features, log_scale if keys else None
        self.grad = torch.empty_like(features) if with_pull else features
        if self._hidden is not None:
            self.features = features.masked_fill(self._hidden[..., None], 0)
            self.log_scale = None if log_scale is None else log_scale.masked_fill(self._hidden, LEAST)

    def blocks(self) -> list[Block]:
        """In their order."""
        return [self._block(here) for here in slices(self.rows.stop - self.rows.start, self._block_size)]

    def _block(self, here: slice) -> Block:
        rows = slice(self.rows.start + here.start, self.rows.start + here.stop)
        log_scale = None if self.log_scale is None else self.log_scale[:, here]
        return Block(rows, self.features[:, here], log_scale, self.grad[:, here])

    def pull(self) -> Sequence[Tensor]:
        """From the blocks' gradients to that of their rows, and of each parameter that has one."""
        assert self._pull is not None
        d_scale = None
        if self.log_scale is not None:
            d_scale = (self.grad * self.features).sum(-1, dtype=self.log_scale.dtype)
        if self._hidden is not None:
            self.grad.masked_fill_(self._hidden[..., None], 0)
        return self._pull(self.grad, d_scale)


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
