"""The feature maps of the CPU path, with positions last: vectors as they are, or tensored with themselves."""

from collections.abc import Iterator

import torch
from torch import Tensor

GROUP = 8


class Plain:
    """Degree 1: the vectors are the features."""

    def __init__(self, r: int) -> None:
        self.width = r
        self.norm_size = r, 1  # of the sums for the denominators

    def expand(self, x: Tensor, *, doubled: bool) -> Tensor:
        """The features `(heads, width, rows)` of `x` `(heads, rows, r)`."""
        return x.mT

    def pull_back(self, out: Tensor, x: Tensor, total: Tensor, grad: Tensor, *, doubled: bool) -> None:
        """Write the gradient of x from `sum_i <grad_i, features(x_i)^T total>`, `total` `(heads, width, h)`."""
        out.baddbmm_(grad, total.mT, beta=0)

    def add_norm(self, norm: Tensor, x: Tensor, weights: Tensor | None = None) -> None:
        """Add the rows of x, each with its weight `(heads, rows, 1)`."""
        # A product with one row is six times as fast as one with one column.
        norm += x.sum(1, dtype=norm.dtype)[..., None] if weights is None else (weights.mT @ x).mT.to(norm.dtype)

    def read_norm(self, norm: Tensor, x: Tensor) -> Tensor:
        """The denominators of the rows of x, `(heads, rows, 1)`."""
        return (norm.to(x.dtype).mT @ x.mT).mT

    def pull_norm(self, out: Tensor, norm: Tensor, x: Tensor, weights: Tensor | None = None) -> None:
        """Add the gradient of x from `sum_i weights_i read_norm_i`."""
        row = norm.to(x.dtype).mT
        _add_(out, row, weights)


class Squares:
    """Degree 2: the products `x_a x_b`, of each group of `GROUP` numbers with itself and with all later numbers.

    A product that is kept once for two equal ones is doubled in one of the two features of a weight (`doubled`).
    """

    def __init__(self, r: int) -> None:
        self.groups = [slice(start, min(start + GROUP, r)) for start in range(0, r, GROUP)]
        self.starts = [0]
        for group in self.groups:
            self.starts.append(self.starts[-1] + (group.stop - group.start) * (r - group.start))
        self.width = self.starts[-1]
        self.norm_size = r, r  # of the sums for the denominators
        self._buffer: Tensor | None = None

    def _blocks(self, features: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Each group with its features, `(heads, the group's numbers, its and all later numbers, rows)`."""
        for group, start, stop in zip(self.groups, self.starts, self.starts[1:], strict=False):
            yield group, features[:, start:stop].unflatten(1, (group.stop - group.start, -1))

    def expand(self, x: Tensor, *, doubled: bool) -> Tensor:
        """The features `(heads, width, rows)` of `x` `(heads, rows, r)`, in a buffer that the next call overwrites."""
        if self._buffer is None or self._buffer.shape[2] < x.shape[1]:
            self._buffer = x.new_empty(len(x), self.width, x.shape[1])
        features, x = self._buffer[:, :, : x.shape[1]], x.mT.contiguous()
        twice = x * 2 if doubled else x
        for group, block in self._blocks(features):
            own = x[:, group, None]
            size = group.stop - group.start
            _multiply(own, x[:, None, group], block[:, :, :size])
            _multiply(own, twice[:, None, group.stop :], block[:, :, size:])
        return features

    def pull_back(self, out: Tensor, x: Tensor, total: Tensor, grad: Tensor, *, doubled: bool) -> None:
        """Write the gradient of x from `sum_i <grad_i, features(x_i)^T total>`, `total` `(heads, width, h)`."""
        x = x.mT.contiguous()
        pulled = torch.zeros_like(x)
        for group, block in self._blocks(total @ grad.mT):
            if doubled:
                block[:, :, group.stop - group.start :] *= 2
            pulled[:, group] += (block * x[:, None, group.start :]).sum(2)
            pulled[:, group.start :] += (block * x[:, group, None]).sum(1)
        out.copy_(pulled.mT)

    def add_norm(self, norm: Tensor, x: Tensor, weights: Tensor | None = None) -> None:
        """Add the rows of x, each with its weight `(heads, rows, 1)`."""
        add_product(norm, x.mT, x if weights is None else x * weights)

    def read_norm(self, norm: Tensor, x: Tensor) -> Tensor:
        """The denominators of the rows of x, `(heads, rows, 1)`."""
        return ((x @ norm.to(x.dtype)) * x).sum(-1, keepdim=True)

    def pull_norm(self, out: Tensor, norm: Tensor, x: Tensor, weights: Tensor | None = None) -> None:
        """Add the gradient of x from `sum_i weights_i read_norm_i`."""
        _add_(out, (x @ norm.to(x.dtype)) * 2, weights)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """`total += left @ right`, in the precision of the total."""
    if left.dtype == right.dtype == total.dtype:
        total.baddbmm_(left, right)
    else:
        total += left @ right


def _add_(total: Tensor, x: Tensor, weights: Tensor | None) -> None:
    """`total += x weights`."""
    if weights is None:
        total.add_(x)
    else:
        total.addcmul_(x, weights.to(x.dtype))


def at_least_float32(x: Tensor) -> torch.dtype:
    """The dtype of sums over the elements of x."""
    return torch.promote_types(x.dtype, torch.float32)


def _multiply(x: Tensor, y: Tensor, out: Tensor) -> None:
    """`out = x * y`; TorchDynamo takes no `out` that is a view of another tensor."""
    if torch.compiler.is_compiling():
        out.copy_(x * y)
    else:
        torch.mul(x, y, out=out)
