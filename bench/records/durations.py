"""How long cells take, as far as records of cells like them say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

SIZES = ("seq_len", "batch_size", "num_heads", "head_dim")
# Of what a cell has in common with others: the levels on which these are of the same sizes.
OF_SIZE = 2


class Durations:
    """The mean over cells that are alike.

    Args:
        took: configurations of cells that have ended, each with its seconds.
    """

    def __init__(self, took: Iterable[tuple[Mapping[str, Any], float]]) -> None:
        self._took: dict[tuple[object, ...], list[float]] = defaultdict(list)
        for config, seconds in took:
            for key in _alike(config):
                self._took[key].append(seconds)

    def expected(self, config: Mapping[str, Any], levels: int | None = None) -> float | None:
        """Seconds, by those that have the most in common with a cell, on the first `levels` levels; None: unknown.

        The levels: benchmark, mechanism and sizes; benchmark and sizes; benchmark and mechanism; benchmark; any cell.
        """
        for key in list(_alike(config))[:levels]:
            if seconds := self._took.get(key):
                return sum(seconds) / len(seconds)
        return None


def _alike(config: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    bench, label = config["bench"]["name"], config["label"]
    sizes = (*(config.get(key) for key in SIZES), *((config.get(part) or {}).get("name") for part in ("model", "task")))
    yield from ((bench, label, sizes), (bench, sizes), (bench, label), (bench,), ())


def duration(seconds: float) -> str:
    """For people, in seconds, minutes or hours."""
    seconds = round(seconds)
    if seconds < 100:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
