"""The networks of a level of a learned sketch as fast as a CPU multiplies (PolySketchFormer, ICML version, Appendix D).

Rows lie along the last dimension, some of them at a time, so that hidden units stay in the cache and no others are in
memory; the backward pass computes them again. Both networks are one product where they read the same, and all heads are
where they share a network. A layer norm's weight and bias are part of the layer behind it, whose bias is the weight of
a row of ones. With `tanh(u) = 2 sigmoid(2u) - 1` gelu is `x sigmoid(2u)`, which a CPU has five times as fast.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention_zoo.ops.feature_product.feature_maps import at_least_float32
from attention_zoo.ops.operators import autocast, register

# Hidden units of a tile of rows: a few times that stays in the caches.
ENTRIES = 2**17
# Of PyTorch's LayerNorm.
EPS = 1e-5
# gelu(x) = x sigmoid(SLOPE x (1 + 0.044715 x^2)). A layer's weights are times SLOPE: of y = SLOPE x it is
# y sigmoid(y + CUBE y^3) / SLOPE, and that quotient is part of the layer behind.
SLOPE = 2 * math.sqrt(2 / math.pi)
CUBE = 0.044715 / SLOPE**2


def sketch_networks(
    inputs: Sequence[Sequence[Tensor]], *, weights: Sequence[Tensor], norms: Sequence[tuple[Tensor, Tensor]]
) -> list[Tensor]:
    """`sqrt(r) tanh(f1(x) o f2(y) / sqrt(r))`, f a LayerNorm, Dense 8r, gelu, Dense r, twice, of each (x, y) or (x,).

    ICML version, Algorithm 2 and Appendix D. Gradients flow to everything. Without y it is x. In 16 bits all is
    computed in float32.

    Args:
        inputs: one or two tensors `(batch, heads, seq_len, width)` for each result, such as queries and keys.
        weights: the four Dense layers in their order, those of f1 and f2 stacked: `(2, groups, in, out)`; groups is 1
            (all heads share a network) or heads.
        norms: weight and bias of both LayerNorms, those of f1 and f2 stacked: `(2, width)`, `(2, r)`.

    Returns:
        `(batch, heads, seq_len, r)` each.
    """
    precision = at_least_float32(inputs[0][0])
    layers = zip(norms, weights[::2], weights[1::2], strict=True)
    folded = [x for norm, into, onto in layers for x in _fold(*(w.to(precision) for w in (*norm, into, onto)))]
    made = _networks([x for some in inputs for x in autocast(*some)], len(inputs[0]), folded)
    return list(made)


def _fold(gain: Tensor, shift: Tensor, into: Tensor, onto: Tensor) -> tuple[Tensor, Tensor]:
    """Both layers as matrices from columns: `(groups, 2, hidden, in + 1)`, of a row of ones too, `(..., r, hidden)`."""
    bias = (shift[:, None, :, None] * into).sum(2, keepdim=True)
    into = torch.cat([gain[:, None, :, None] * into, bias], 2) * SLOPE
    return tuple(w.permute(1, 0, 3, 2).contiguous() for w in (into, onto / SLOPE))  # type: ignore[return-value]


class _Memory:
    """Tensors that every tile uses again, by name."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._tensors: dict[str, Tensor] = {}

    def __call__(self, name: str, *size: int) -> Tensor:
        numbers = math.prod(size)
        if name not in self._tensors or len(self._tensors[name]) < numbers:
            self._tensors[name] = self._like.new_empty(numbers)
        return self._tensors[name][:numbers].view(size)


class _Hidden(NamedTuple):
    """The hidden units of a layer norm and two layers: what a backward pass reads of a tile, columns for rows."""

    hats: Tensor  # (groups, in + 1, rows), of both networks where they read the same, else (2 groups, ...)
    rstds: Tensor
    units: Tensor  # (2 groups, hidden, rows)
    slopes: Tensor | None  # of the units, without which there is no backward pass


class _Block:
    """A layer norm and the two layers behind it, of both networks, of one tile after the other.

    Args:
        name: whose memory it is.
        into: the first layer, `(groups, 2, hidden, in + 1)`.
        onto: the second one, `(groups, 2, r, hidden)`.
        shared: whether both networks read the same.
        memory: of the tiles.
    """

    def __init__(self, name: str, into: Tensor, onto: Tensor, shared: bool, memory: _Memory) -> None:
        self.into, self.onto = into.flatten(1, 2) if shared else into.flatten(0, 1), onto.flatten(0, 1)
        self.sizes = into.shape, onto.shape
        self.d_into, self.d_onto = torch.zeros_like(self.into), torch.zeros_like(self.onto)
        self._name, self._memory = name, memory

    def forward(self, x: Tensor, *, with_slopes: bool) -> tuple[Tensor, _Hidden]:
        """`(2 groups, r, rows)` of columns `(groups or 2 groups, in, rows)`."""
        many, width, rows = x.shape
        hats = self._memory(f"{self._name} hats", many, width + 1, rows)
        hats[:, width:] = 1
        rstds = _normalise(x, hats[:, :width])
        size = len(self.onto), self.onto.shape[2], rows
        y, squares, gates = (self._memory(name, *size) for name in ("y", "squares", "gates"))
        torch.bmm(self.into, hats, out=y.view(many, -1, rows))
        torch.mul(y, y, out=squares)
        torch.addcmul(y, squares, y, value=CUBE, out=gates).sigmoid_()
        units, slopes = torch.mul(y, gates, out=self._memory(f"{self._name} units", *size)), None
        if with_slopes:
            # gate + unit (1 - gate) (1 + 3 CUBE y^2)
            slopes = self._memory(f"{self._name} slopes", *size)
            torch.addcmul(units, units, gates, value=-1, out=slopes)
            slopes.addcmul_(slopes, squares, value=3 * CUBE).add_(gates)
        return self.onto @ units, _Hidden(hats, rstds, units, slopes)

    def backward(self, d_out: Tensor, hidden: _Hidden) -> Tensor:
        """The gradient of the columns; those of the layers are added up."""
        assert hidden.slopes is not None
        self.d_onto.baddbmm_(d_out, hidden.units.mT)
        d_y = (
            torch.bmm(self.onto.mT, d_out, out=hidden.units)
            .mul_(hidden.slopes)
            .view(len(self.into), -1, d_out.shape[2])
        )
        self.d_into.baddbmm_(d_y, hidden.hats.mT)
        d_hats, hats = self.into[:, :, :-1].mT @ d_y, hidden.hats[:, :-1]
        along = (d_hats * hats).mean(1, keepdim=True)
        return d_hats.sub_(d_hats.mean(1, keepdim=True)).addcmul_(hats, along, value=-1).mul_(hidden.rstds)

    @property
    def gradients(self) -> tuple[Tensor, Tensor]:
        """Of both layers."""
        return self.d_into.view(self.sizes[0]), self.d_onto.view(self.sizes[1])


def _normalise(x: Tensor, out: Tensor) -> Tensor:
    """Normalise columns; returns one over their standard deviations, `(..., 1, rows)`."""
    torch.sub(x, x.mean(1, keepdim=True), out=out)
    rstds = out.square().mean(1, keepdim=True).add_(EPS).rsqrt_()
    out.mul_(rstds)
    return rstds


class _Networks:
    """Both networks of a level, tile by tile."""

    def __init__(self, weights: Sequence[Tensor], distinct: int) -> None:
        self.groups, self.r = weights[0].shape[0], weights[1].shape[2]
        self.root, self.distinct = math.sqrt(self.r), distinct
        memory = _Memory(weights[0])
        self.first = _Block("first", weights[0], weights[1], distinct == 1, memory)
        self.second = _Block("second", weights[2], weights[3], False, memory)

    def tiles(self, rows: int) -> Iterator[slice]:
        """Some rows at a time."""
        hidden = self.first.onto.shape[0] * self.first.onto.shape[2]
        size = max(1, ENTRIES // hidden)
        count = -(-rows // size)
        size = -(-rows // count)
        return (slice(start, min(start + size, rows)) for start in range(0, rows, size))

    def by_group(self, x: Tensor) -> Tensor:
        """`(batch, heads, seq_len, ...)` -> `(groups, rows, ...)`."""
        x = x.flatten(0, 1)[None] if self.groups == 1 else x.transpose(0, 1)
        return x.flatten(1, 2)

    def from_groups(self, x: Tensor, like: Tensor) -> Tensor:
        """And back."""
        batch, heads = like.shape[:2]
        return (
            x.view(batch, heads, *like.shape[2:3], -1)
            if self.groups == 1
            else x.unflatten(1, (batch, -1)).transpose(0, 1).contiguous()
        )

    def columns(self, inputs: Sequence[Tensor], rows: slice) -> Tensor:
        """Of these inputs by group, `(groups or 2 groups, width, rows)`."""
        like = self.first.into
        parts = [x[:, rows].mT.to(like.dtype, memory_format=torch.contiguous_format) for x in inputs]
        return parts[0] if len(parts) == 1 else torch.stack(parts, 1).flatten(0, 1)

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """The sketch of one or two inputs."""
        xs = [self.by_group(x) for x in inputs]
        out = inputs[0].new_empty(*xs[0].shape[:2], self.r)
        for rows in self.tiles(out.shape[1]):
            between, _ = self.first.forward(self.columns(xs, rows), with_slopes=False)
            both = self.second.forward(between, with_slopes=False)[0].unflatten(0, (-1, 2))
            out[:, rows] = (both[:, 0] * both[:, 1]).div_(self.root).tanh_().mul_(self.root).mT
        return self.from_groups(out, inputs[0])

    def backward(self, d_out: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the inputs; those of the weights are added up."""
        xs, d_out = [self.by_group(x) for x in inputs], self.by_group(d_out)
        d_xs = [x.new_empty(x.shape) for x in xs]
        for rows in self.tiles(d_out.shape[1]):
            between, first = self.first.forward(self.columns(xs, rows), with_slopes=True)
            both, second = self.second.forward(between, with_slopes=True)
            d_both = both.unflatten(0, (-1, 2)).flip(1)
            product = (d_both[:, 0] * d_both[:, 1]).div_(self.root).tanh_()
            d_product = self.columns([d_out], rows)
            d_both *= torch.addcmul(d_product, d_product * product, product, value=-1)[:, None]
            d_columns = self.first.backward(self.second.backward(d_both.flatten(0, 1), second), first)
            for d_x, part in zip(d_xs, d_columns.unflatten(0, (-1, self.distinct)).unbind(1), strict=True):
                d_x[:, rows] = part.mT
        return [self.from_groups(d_x, x) for d_x, x in zip(d_xs, inputs, strict=True)]


def _forward(inputs: Sequence[Tensor], distinct: int, weights: Sequence[Tensor]) -> list[Tensor]:
    networks = _Networks(weights, distinct)
    with torch.autocast("cpu", enabled=False):
        return [networks.forward(inputs[i : i + distinct]) for i in range(0, len(inputs), distinct)]


def _backward(d_outs: Sequence[Tensor], inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of the inputs and of the weights."""
    distinct = len(inputs) // len(d_outs)
    networks = _Networks(weights, distinct)
    with torch.autocast("cpu", enabled=False):
        d_inputs = [networks.backward(d_out, inputs[i * distinct :][:distinct]) for i, d_out in enumerate(d_outs)]
    return [*(d_x for some in d_inputs for d_x in some), *networks.first.gradients, *networks.second.gradients]


def _empty(inputs: Sequence[Tensor], distinct: int, weights: Sequence[Tensor]) -> list[Tensor]:
    return [x.new_empty(*x.shape[:3], weights[1].shape[2]) for x in inputs[::distinct]]


def _empty_gradients(d_outs: Sequence[Tensor], inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in (*inputs, *weights)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    tensors, _, weights = inputs
    ctx.count = len(tensors)
    ctx.save_for_backward(*tensors, *weights)


def _differentiate(ctx: Any, d_outs: Sequence[Tensor]) -> tuple[Any, ...]:
    saved = ctx.saved_tensors  # checkpointing allows to ask once
    made = _networks_backward(d_outs, saved[: ctx.count], saved[ctx.count :])
    return made[: ctx.count], None, made[ctx.count :]


_networks = register("cpu_sketch_networks", _forward, _empty)
_networks_backward = register("cpu_sketch_networks_backward", _backward, _empty_gradients)
_networks.register_autograd(_differentiate, setup_context=_save)
