"""The networks of one level of a learned sketch on a CPU (PolySketchFormer, ICML version, Appendix D).

Rows are computed in tiles, so that hidden units stay in the cache. The backward pass computes them again, but not the
outputs of the blocks: r numbers where a block has 8r hidden units. A layer norm's weight and bias are folded into the
layer after it. With `tanh(u) = 2 sigmoid(2u) - 1` gelu is `x sigmoid(2u)`, which is five times as fast on a CPU.
Matrix products are oneDNN's, with gelu fused: twice as fast as MKL on CPUs that are not Intel's.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_zoo.ops.feature_product.feature_maps import at_least_float32
from attention_zoo.ops.operators import autocast, register

# torch.compile's fused linear layer and gelu; private, seen in PyTorch 2.13. Without it MKL multiplies.
ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
# Hidden units in a tile of rows; a few times as many stay in the caches.
ENTRIES = 2**18
# The eps of PyTorch's LayerNorm.
EPS = 1e-5
# gelu(x) = x sigmoid(SLOPE x (1 + 0.044715 x^2)): with y = SLOPE x it is y sigmoid(y + CUBE y^3) / SLOPE.
SLOPE = 2 * math.sqrt(2 / math.pi)
CUBE = 0.044715 / SLOPE**2


def sketch_networks(
    x: Tensor, y: Tensor | None = None, *, weights: Sequence[Tensor], norms: Sequence[tuple[Tensor, Tensor]]
) -> Tensor:
    """`sqrt(r) tanh(f1(x) o f2(y) / sqrt(r))`; f is twice LayerNorm, Dense 8r, gelu, Dense r.

    ICML version, Algorithm 2 and Appendix D. Gradients flow to all arguments. 16-bit inputs are computed in float32.

    Args:
        x: `(batch, heads, seq_len, width)`; so is y. None: y is x.
        weights: the four Dense layers in order, those of f1 and f2 stacked: `(2, groups, in, out)`; groups is 1 (all
            heads share a network) or heads.
        norms: weight and bias of both LayerNorms, those of f1 and f2 stacked: `(2, width)`, `(2, r)`.

    Returns:
        `(batch, heads, seq_len, r)`.
    """
    precision = at_least_float32(x)
    layers = zip(norms, weights[::2], weights[1::2], strict=True)
    folded = [x for norm, into, onto in layers for x in _fold(*(w.to(precision) for w in (*norm, into, onto)))]
    inputs = autocast(x) if y is None else autocast(x, y)
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in (*inputs, *folded))
    return _networks(inputs, folded, keep)[0]


def _fold(gain: Tensor, shift: Tensor, into: Tensor, onto: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The layers after a norm: `(groups, 2, hidden, in)`, its bias `(groups, 2, hidden)`, `(groups, 2, r, hidden)`."""
    bias = (shift[:, None, :, None] * into).sum(2)
    into = gain[:, None, :, None] * into
    return tuple(w.transpose(0, 1).contiguous() for w in (into.mT, bias, onto.mT))  # type: ignore[return-value]


def _product(x: Tensor, matrix: Tensor, bias: Tensor | None = None, *, gelu: bool = False) -> Tensor:
    """`x matrix^T + bias` or gelu of that, `(rows, out)`, from `(rows, in)` and `(out, in)`."""
    if x.dtype == torch.float32 and ONEDNN is not None and torch.backends.mkldnn.is_available():
        return ONEDNN(x, matrix, bias, "gelu" if gelu else "none", [], "tanh")  # type: ignore[no-any-return]
    out = F.linear(x, matrix, bias)
    return F.gelu(out, approximate="tanh") if gelu else out


def _normalise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows normalised to mean 0 and variance 1, and one over their standard deviations, `(rows, 1)`."""
    hats, _, rstds = torch.native_layer_norm(x, x.shape[-1:], None, None, EPS)
    return hats, rstds


def _normalise_backward(d_hats: Tensor, hats: Tensor, rstds: Tensor) -> Tensor:
    """The gradient of the rows before they were normalised."""
    zeros, ones = torch.zeros_like(rstds), torch.ones_like(rstds)
    parts = torch.ops.aten.native_layer_norm_backward.default(
        *(d_hats, hats, hats.shape[-1:], zeros, ones, None, None, [True, False, False])
    )
    return parts[0].mul_(rstds)  # type: ignore[no-any-return]


class _Memory:
    """Buffers by name, which every tile reuses."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def __call__(self, name: str, like: Tensor) -> Tensor:
        numbers = like.numel()
        if name not in self._tensors or len(self._tensors[name]) < numbers:
            self._tensors[name] = like.new_empty(numbers)
        return self._tensors[name][:numbers].view(like.shape)


class _Layers:
    """The two layers after a layer norm, of one network of one group, for one tile at a time.

    Args:
        into: the first layer, `(hidden, in)`.
        bias: its bias, `(hidden,)`.
        onto: the second layer, `(r, hidden)`.
        memory: buffers for a tile.
    """

    def __init__(self, into: Tensor, bias: Tensor, onto: Tensor, memory: _Memory) -> None:
        self.into, self.bias, self.onto, self._memory = into, bias, onto, memory
        self.steep, self.steep_bias = into * SLOPE, bias * SLOPE
        self.d_into, self.d_bias, self.d_onto = map(torch.zeros_like, (into.mT, bias, onto))

    def forward(self, hats: Tensor) -> Tensor:
        """`(rows, r)` of normalised rows `(rows, in)`."""
        return _product(_product(hats, self.into, self.bias, gelu=True), self.onto)

    def backward(self, d_out: Tensor, hats: Tensor) -> Tensor:
        """The gradient of the normalised rows; the gradients of the layers are accumulated."""
        y = _product(hats, self.steep, self.steep_bias)
        squares = torch.mul(y, y, out=self._memory("squares", y))
        gates = torch.addcmul(y, squares, y, value=CUBE, out=self._memory("gates", y)).sigmoid_()
        units = y.mul_(gates)
        self.d_onto += _product(d_out.mT, units.mT)
        # gate + unit (1 - gate) (1 + 3 CUBE y^2)
        slopes = torch.addcmul(units, units, gates, value=-1, out=self._memory("slopes", y))
        slopes.addcmul_(slopes, squares, value=3 * CUBE).add_(gates)
        d_x = _product(d_out, self.onto.mT).mul_(slopes)
        self.d_into += _product(hats.mT, d_x.mT)
        self.d_bias += d_x.sum(0)
        return _product(d_x, self.into.mT)

    @property
    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of both layers; the hidden units were times SLOPE."""
        return self.d_into.mT, self.d_bias, self.d_onto / SLOPE


class _Networks:
    """Both networks of a level, tile by tile: `first` and `second` are each group's layers after the two norms."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.groups, _, self.r, self.hidden = weights[2].shape
        self.root, self.dtype, memory = math.sqrt(self.r), weights[0].dtype, _Memory()
        self.first, self.second = (
            [
                [_Layers(into[group, i], bias[group, i], onto[group, i], memory) for i in range(2)]
                for group in range(self.groups)
            ]
            for into, bias, onto in (weights[:3], weights[3:])
        )

    def tiles(self, rows: int) -> Iterator[tuple[int, slice]]:
        """Tiles: a group, and some of its rows."""
        size = max(1, ENTRIES // self.hidden)
        size = -(-rows // -(-rows // size)) if rows else 1
        for group in range(self.groups):
            yield from ((group, slice(start, min(start + size, rows))) for start in range(0, rows, size))

    def by_group(self, x: Tensor) -> Tensor:
        """`(batch, heads, seq_len, ...)` -> `(groups, rows, ...)`."""
        x = x.flatten(0, 1)[None] if self.groups == 1 else x.transpose(0, 1)
        return x.flatten(1, 2)

    def from_groups(self, x: Tensor, like: Tensor) -> Tensor:
        """The inverse of `by_group`."""
        batch, heads = like.shape[:2]
        return (
            x.view(batch, heads, *like.shape[2:3], -1)
            if self.groups == 1
            else x.unflatten(1, (batch, -1)).transpose(0, 1).contiguous()
        )

    def forward(self, inputs: Sequence[Tensor], keep: bool) -> list[Tensor]:
        """The sketch of one or two inputs and, if `keep`, the tensors of `empty`, filled."""
        xs = [self.by_group(x) for x in inputs]
        out = inputs[0].new_empty(*xs[0].shape[:2], self.r)
        kept = self.empty(xs[0]) if keep else []
        for group, rows in self.tiles(out.shape[1]):
            normed = [_normalise(x[group, rows].to(self.dtype))[0] for x in xs]
            ends = []
            for i, layers in enumerate(self.first[group]):
                between, rstds = _normalise(layers.forward(normed[i % len(normed)]))
                ends.append(self.second[group][i].forward(between))
                for whole, part in zip(kept, (between, rstds, ends[i]), strict=keep):
                    whole[group, i, rows] = part
            out[group, rows] = (ends[0] * ends[1]).div_(self.root).tanh_().mul_(self.root)
        return [self.from_groups(out, inputs[0]), *kept]

    def empty(self, x: Tensor) -> list[Tensor]:
        """Empty tensors for what backward needs of `(groups, rows, ...)`: second norm's output and rstd, f1 and f2."""
        return [x.new_empty(len(x), 2, x.shape[1], width, dtype=self.dtype) for width in (self.r, 1, self.r)]

    def backward(self, d_out: Tensor, inputs: Sequence[Tensor], kept: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the inputs; the gradients of the weights are accumulated."""
        xs, d_out = [self.by_group(x) for x in inputs], self.by_group(d_out)
        d_xs = [x.new_empty(x.shape) for x in xs]
        for group, rows in self.tiles(d_out.shape[1]):
            normed = [_normalise(x[group, rows].to(self.dtype)) for x in xs]
            d_normed: list[Tensor] = []
            between, rstds, ends = (whole[group, :, rows] for whole in kept)
            # 1 - tanh(u)^2 = 4 sigmoid'(2u)
            gates = (ends[0] * ends[1]).mul_(2 / self.root).sigmoid_()
            d_product = torch.ops.aten.sigmoid_backward.default(d_out[group, rows].to(self.dtype) * 4, gates)
            for i, layers in enumerate(self.second[group]):
                d_between = layers.backward(d_product * ends[1 - i], between[i])
                d_middle = _normalise_backward(d_between, between[i], rstds[i])
                d_normed.append(self.first[group][i].backward(d_middle, normed[i % len(normed)][0]))
            if len(xs) == 1:
                d_normed = [d_normed[0].add_(d_normed[1])]
            for d_x, d_hats, (hats, of_hats) in zip(d_xs, d_normed, normed, strict=True):
                d_x[group, rows] = _normalise_backward(d_hats, hats, of_hats)
        return [self.from_groups(d_x, x) for d_x, x in zip(d_xs, inputs, strict=True)]

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of the weights."""
        return [
            torch.stack([torch.stack([layers.gradients[which] for layers in group]) for group in some])
            for some in (self.first, self.second)
            for which in range(3)
        ]


def _forward(inputs: Sequence[Tensor], weights: Sequence[Tensor], keep: bool) -> list[Tensor]:
    with torch.autocast("cpu", enabled=False):
        return _Networks(weights).forward(inputs, keep)


def _backward(
    d_out: Tensor, inputs: Sequence[Tensor], weights: Sequence[Tensor], kept: Sequence[Tensor]
) -> list[Tensor]:
    """The gradients of the inputs and of the weights."""
    networks = _Networks(weights)
    with torch.autocast("cpu", enabled=False):
        return [*networks.backward(d_out, inputs, kept), *networks.gradients]


def _empty(inputs: Sequence[Tensor], weights: Sequence[Tensor], keep: bool) -> list[Tensor]:
    networks, x = _Networks(weights), inputs[0]
    return [x.new_empty(*x.shape[:3], networks.r), *(networks.empty(networks.by_group(x)) if keep else [])]


def _empty_gradients(
    d_out: Tensor, inputs: Sequence[Tensor], weights: Sequence[Tensor], kept: Sequence[Tensor]
) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in (*inputs, *weights)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    tensors, weights, _ = inputs
    ctx.counts = len(tensors), len(weights)
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*tensors, *weights, *output[1:])


def _differentiate(ctx: Any, d_made: Sequence[Tensor]) -> tuple[Any, ...]:
    saved = ctx.saved_tensors  # checkpointing allows one access
    count, of_weights = ctx.counts
    tensors, weights, kept = saved[:count], saved[count : count + of_weights], saved[count + of_weights :]
    made = _networks_backward(d_made[0], tensors, weights, kept)
    return made[:count], made[count:], None


_networks = register("cpu_sketch_networks", _forward, _empty)
_networks_backward = register("cpu_sketch_networks_backward", _backward, _empty_gradients)
_networks.register_autograd(_differentiate, setup_context=_save)
