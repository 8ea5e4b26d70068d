"""Random numbers of one example, and tasks whose examples are made of them alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.common.schema import setting
from bench.tasks.task import Batch, Settings, require_index, require_split


class Draws:
    """The raw words of a Philox generator whose key is a hash of (seed, split, index).

    NumPy promises the words of a bit generator for ever, but not its distributions (NEP 19): those are made here, so
    that an example stays the same with every version.
    """

    def __init__(self, seed: int, split: str, index: int) -> None:
        key = blake2b(f"{seed}:{split}:{index}".encode(), digest_size=16).digest()
        self._philox = np.random.Philox(key=int.from_bytes(key, "little"))

    def below(self, bound: int, count: int) -> NDArray[np.int64]:
        """`count` independent integers, uniform on 0..bound - 1 but for one part in 2**64 / bound."""
        return (self._philox.random_raw(count) % np.uint64(bound)).astype(np.int64)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """`count` independent numbers, uniform on (0, 1), of 52 bits and never an end."""
        return ((self._philox.random_raw(count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

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
    found = np.argpartition(values, count - 1)[:count]
    return found[np.argsort(values[found])]


@dataclass
class Rule(Settings):
    """The settings of a task whose examples are drawn."""

    examples: int | None = setting(None, minimum=1)  # to train on; None: fresh ones without end

    @property
    def vocabulary_size(self) -> int:
        """How many token ids there are."""
        raise NotImplementedError

    def draw(self, draws: Draws, seq_len: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens and targets of one example, `(seq_len,)` each."""
        raise NotImplementedError

    def open(self, config: Mapping[str, Any], cache_dir: Path) -> Generated:
        """The task; nothing is cached."""
        return Generated(self, config["seq_len"], config["seed"])


class Generated:
    """Examples that a rule draws, each from a stream of its own."""

    source = "generated"

    def __init__(self, rule: Rule, seq_len: int, seed: int) -> None:
        self._rule, self._seq_len, self._seed = rule, seq_len, seed
        self.vocabulary, self.causal = rule.vocabulary_size, rule.causal

    def size(self, split: str) -> int | None:
        """How many examples a split has; None: without end, as those of validation and test."""
        require_split(split)
        return self._rule.examples if split == "train" else None

    def baselines(self) -> dict[str, float]:
        """None: there is chance alone to beat."""
        return {}

    def batch(self, split: str, indices: Sequence[int]) -> Batch:
        """The examples `indices` of a split."""
        import torch

        drawn = [self._example(split, index) for index in indices]
        tokens, targets = (torch.from_numpy(np.stack(part)) for part in zip(*drawn, strict=True))
        return Batch(tokens, targets)

    def _example(self, split: str, index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        require_index(self, split, index)
        return self._rule.draw(Draws(self._seed, split, index), self._seq_len)
