"""What the layers of packages have in common: they are made, handed query, key and value, and filled up."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_zoo.base import ALL, Attention
from attention_zoo.packages import require_package, usual_defaults


class Peer(Attention):
    """A mechanism of a package: `auto` is the package itself, whatever the input.

    Raises:
        UnsupportedError: the package is not installed.
    """

    is_kernel = True
    source: ClassVar[str]  # of the layer: module and name

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        require_package(self.info, self.source.partition(".")[0])

    def _make_layer(self, **settings: Any) -> Any:
        """The package's layer; its own draws, which are replaced, leave the process's generator alone."""
        module, _, name = self.source.rpartition(".")
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # one reads versions by distutils, and prints that it has no CUDA code
            return getattr(importlib.import_module(module), name)(**settings)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        return self._matrix(query, key, value, padding, ALL) @ value

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        with usual_defaults():
            return self._run_layer(query, key, value, padding), self.source

    def _run_layer(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        """The package's output."""
        raise NotImplementedError

    def _refusal(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> str | None:
        return None


class Handed(NamedTuple):
    """Query, key and value `(batch, n, h)` in the place of the hidden state of which a layer would make them."""

    query: Tensor
    key: Tensor
    value: Tensor

    @property
    def shape(self) -> torch.Size:
        """Of the queries."""
        return self.query.shape

    def chunk(self, chunks: int, dim: int) -> Handed:
        """What a layer cuts its joint projection into."""
        return self


class Take(nn.Module):
    """In the place of a projection: what was handed over under this name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, handed: Handed) -> Tensor:
        """`(batch, n, h)`."""
        return getattr(handed, self.name)


def filled_up(
    query: Tensor, padding: Tensor | None, multiple: int, *, front: bool = False
) -> tuple[int, Tensor | None]:
    """How many zeros fill the length up to a multiple, and which positions are neither these nor padding.

    The second is `(batch, n)` with the zeros at the end or in front; None where all are real.
    """
    missing = -query.shape[2] % multiple
    if padding is None and not missing:
        return 0, None
    return missing, F.pad(~hidden_by(padding, query), (missing, 0) if front else (0, missing))


def hidden_by(padding: Tensor | None, query: Tensor) -> Tensor:
    """`(batch, n)` bool, of no padding too."""
    return query.new_zeros(len(query), query.shape[2], dtype=torch.bool) if padding is None else padding
