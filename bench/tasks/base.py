"""What a task is: settings that open it, and examples by (split, index); the random numbers they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.common.errors import ConfigError

SPLITS = ("train", "validation", "test")
IGNORED = -100
"""The target where nothing is asked: what `torch.nn.functional.cross_entropy` ignores."""
HELD_OUT = {8: "validation", 9: "test"}
"""Of ten parts of something that follow one another; the others are for training."""

UNITS = 32
"""Of replication, that the examples of a split are dealt out to."""

Example = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Tokens and targets, `(seq_len,)` each; for classes tokens `(seq_len,)` or `(2, seq_len)`, and the class, `(1,)`."""


class Batch(NamedTuple):
    """Examples as a model reads them, tensors on the CPU.

    Where answers are tokens `targets[b, j]` is the token that the logits at position j are to name, `IGNORED` where
    nothing is asked. Where they are classes an example has one.

    Attributes:
        tokens: `(batch, seq_len)` int64; of pairs of documents `(batch, 2, seq_len)`.
        targets: int64, `(batch, seq_len)`, or the classes, `(batch, 1)`.
        mask: bool of the tokens' shape, True where there is a token; None: everywhere.
    """

    tokens: Tensor
    targets: Tensor
    mask: Tensor | None = None


@dataclass
class Task:
    """Examples, each a pure function of (seed, split, index): the same in any batch, order and process.

    Attributes:
        source: where the examples come from, for records and figures.
        vocabulary: how many token ids there are: 0..vocabulary - 1.
        causal: whether a decoder reads it; False: an encoder, which sees the whole sequence.
        sizes: how many examples each split has; null: without end.
        classes: of which the one answer of an example is one, 0..classes - 1; null: answers are tokens.
        padding: the token id that means that there is no token; null: none does.
        unit: what `units` are, in the plural.
        tokenizer: what made the token ids, a file of tokenizers (`.json`); None if there is no such file.
    """

    kinds: ClassVar[tuple[str, ...]] = ()
    """Kinds of answers that `kinds_of` tells apart; none where all are of one."""

    source: str
    vocabulary: int
    causal: bool
    sizes: Mapping[str, int | None]
    classes: int | None = field(default=None, kw_only=True)
    padding: int | None = field(default=None, kw_only=True)
    unit: str = field(default="groups of examples", kw_only=True)
    tokenizer: bytes | None = field(default=None, kw_only=True, repr=False)

    def size(self, split: str) -> int | None:
        """How many examples a split has; null: without end. Raises `ValueError` for another split."""
        if split not in self.sizes:
            raise ValueError(f"split={split!r}: must be one of {', '.join(self.sizes)}")
        return self.sizes[split]

    def kinds_of(self, split: str, index: int) -> NDArray[np.int64]:
        """The kind of each answer of an example, `(seq_len,)`, as a place in `kinds`."""
        raise NotImplementedError

    def units(self, split: str, indices: Sequence[int]) -> list[int]:
        """The unit of replication that each example belongs to: what varies from one to another varies by chance.

        Here examples are independent; they are dealt out to so many units that intervals over these are Student's.
        """
        return [place % UNITS for place in range(len(indices))]

    def baselines(self) -> dict[str, float]:
        """Losses on the test split that a model has to beat, nats per answer, by the name of what has them."""
        return {}

    def batch(self, split: str, indices: Sequence[int]) -> Batch:
        """The examples `indices` of a split, in that order; `IndexError` for one that the split has not."""
        size = self.size(split)
        for index in indices:
            if index < 0 or (size is not None and index >= size):
                raise IndexError(f"index {index}: the split {split} has {'no such example' if size is None else size}")
        examples = [self.example(split, index) for index in indices]
        tokens, targets = (torch.from_numpy(np.stack(part)) for part in zip(*examples, strict=True))
        return Batch(tokens, targets, None if self.padding is None else tokens != self.padding)

    def example(self, split: str, index: int) -> Example:
        """One example that the split has."""
        raise NotImplementedError


class Drawn(NamedTuple):
    """An example that was drawn, and the number of what it was made of, in its split: those of one are alike."""

    tokens: NDArray[np.int64]
    target: NDArray[np.int64]
    unit: int


@dataclass
class Generated(Task):
    """Examples that are drawn, each from a random stream of its own.

    Attributes:
        draw: makes one of a split, an `Example` or, of `Fresh`, a `Drawn`.
        seed: of the streams.
    """

    draw: Callable[[Draws, str], Any]
    seed: int

    def example(self, split: str, index: int) -> Example:
        """Draw one example."""
        tokens, target, *_ = self.draw(Draws(self.seed, split, index), split)
        return tokens, target


class Fresh(Generated):
    """Examples without end, whose units of replication are what they are made of."""

    def units(self, split: str, indices: Sequence[int]) -> list[int]:
        """What each example was made of."""
        return [self.draw(Draws(self.seed, split, index), split).unit for index in indices]


@dataclass
class Settings:
    """The settings `task.*` of a cell, each a `setting` with a default; `conf/task/NAME.yaml` names it."""

    name: ClassVar[str]
    causal: ClassVar[bool] = True
    classes: ClassVar[int | None] = None

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Refuse a configuration that the task has no examples for.

        Raises:
            ConfigError: naming the key, its value and what is allowed.
        """
        if config["causal"] != self.causal:
            encoder = "an encoder (model=encoder)" if self.classes is None else "a classifier (model=classifier)"
            reader = "a decoder (model=transformer_tiny)" if self.causal else encoder
            value, allowed = (str(flag).lower() for flag in (config["causal"], self.causal))
            raise ConfigError(f"causal={value}: must be {allowed}: {reader} reads task.name={self.name}")

    def require_data(self, config: Mapping[str, Any], cache_dir: Path) -> None:
        """Refuse, of a configuration that fits, data that are not kept and cannot be had; looks at no network.

        Raises:
            ConfigError: naming the key, its value and what is allowed.
        """

    def own_files(self) -> dict[str, Any]:
        """What identifies the user's own files that examples are read from; empty if there are none."""
        return {}

    def packages(self) -> tuple[str, ...]:
        """Installed packages whose files the examples are made of: another version has others."""
        return ()

    def to_make(self, config: Mapping[str, Any], cache_dir: Path) -> str | None:
        """What is still to be made before the first step, once for all cells, and how many minutes that takes."""
        return None

    def open(self, config: Mapping[str, Any], cache_dir: Path) -> Task:
        """The task of a configuration that fits; `cache_dir` is where it keeps what is costly to make."""
        raise NotImplementedError


class Draws:
    """The raw words of a Philox generator whose key is a hash of (seed, split, index).

    NumPy promises the words of a bit generator for ever, but not its distributions (NEP 19): those are made here, so
    that an example stays the same with every version.
    """

    def __init__(self, seed: int, split: str, index: int) -> None:
        key = blake2b(f"{seed}:{split}:{index}".encode(), digest_size=16).digest()
        self._philox = np.random.Philox(key=int.from_bytes(key, "little"))

    def integers(self, bound: int, count: int) -> NDArray[np.int64]:
        """`count` independent integers, uniform on 0..bound - 1 but for one part in 2**64 / bound."""
        return (self._philox.random_raw(count) % np.uint64(bound)).astype(np.int64)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """`count` independent numbers, uniform on (0, 1), of 52 bits and never an end."""
        return ((self._philox.random_raw(count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def uniform_stream(self) -> Iterator[float]:
        """Independent numbers as those of `uniform`, one after the other."""
        while True:
            yield from self.uniform(256).tolist()

    def distinct(self, bound: int, count: int) -> NDArray[np.int64]:
        """`count` different integers of 0..bound - 1, every such sequence as likely as any other."""
        return _smallest(self._philox.random_raw(bound), count)

    def weighted(self, weights: NDArray[np.float64], count: int) -> NDArray[np.int64]:
        """`count` different indices, one after the other with chances in proportion to the weights that are left.

        Exponential variables, the i-th with rate weights[i], arrive in that order (Efraimidis and Spirakis, 2006).
        """
        return _smallest(-np.log(self.uniform(len(weights))) / weights, count)


def _smallest(values: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Where the `count` smallest values are, the smallest first."""
    smallest = np.argpartition(values, count - 1)[:count]
    return smallest[np.argsort(values[smallest])]
