"""What a task is: settings that open it, and examples by (split, index)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from bench.common.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

SPLITS = ("train", "validation", "test")
IGNORED = -100
"""The target where nothing is asked: what `torch.nn.functional.cross_entropy` ignores."""


class Batch(NamedTuple):
    """Examples as a model reads them, two `(batch, seq_len)` int64 tensors on the CPU.

    `targets[b, j]` is the token that the logits at position j are to name, `IGNORED` where nothing is asked.
    """

    tokens: Tensor
    targets: Tensor


class Task(Protocol):
    """Examples, each a pure function of (seed, split, index): the same in any batch, order and process."""

    vocabulary: int
    """How many token ids there are: 0..vocabulary - 1."""
    causal: bool
    """Whether a decoder reads it; False: an encoder, which sees the whole sequence."""
    source: str
    """Where the examples come from, for records and figures."""

    def size(self, split: str) -> int | None:
        """How many examples a split has; None: without end. Raises `ValueError` for another split."""

    def baselines(self) -> dict[str, float]:
        """Losses on the test split that a model has to beat, nats per answer, by the name of what has them."""

    def batch(self, split: str, indices: Sequence[int]) -> Batch:
        """The examples `indices` of a split, in that order; `IndexError` for one that the split has not."""


@dataclass
class Settings:
    """The settings `task.*` of a cell, each a `setting` with a default; `conf/task/NAME.yaml` names it."""

    name: ClassVar[str]
    causal: ClassVar[bool] = True

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Refuse a configuration that the task has no examples for.

        Raises:
            ConfigError: naming the key, its value and what is allowed.
        """
        if config["causal"] != self.causal:
            reader = "a decoder" if self.causal else "an encoder"
            given, allowed = (str(value).lower() for value in (config["causal"], self.causal))
            raise ConfigError(f"causal={given}: must be {allowed}: {reader} reads task.name={self.name}")

    def open(self, config: Mapping[str, Any], cache_dir: Path) -> Task:
        """The task of a configuration that fits; `cache_dir` is where it keeps what is costly to make."""
        raise NotImplementedError


def require_index(task: Task, split: str, index: int) -> None:
    """Raise `IndexError` unless a split has an example `index`, `ValueError` unless there is such a split."""
    size = task.size(split)
    if index < 0 or (size is not None and index >= size):
        raise IndexError(f"index {index}: the split {split} has {'no such example' if size is None else size}")


def require_split(split: str) -> None:
    """Raise `ValueError` unless there is such a split."""
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: must be one of {', '.join(SPLITS)}")
