"""A sweep's plan in a file, `sweeps/SWEEP/plan.json.gz`: all its cells, for processes that did not plan it.

The same command always gives the same plan. What has been measured is in the records, not here; how long the rest
takes is estimated from them.
"""

import contextlib
import dataclasses
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common.errors import ConfigError
from bench.records.disk import decompress, read_file, write_atomically
from bench.records.record import RecordError

FOLDER, FILE = "sweeps", "plan.json.gz"
SCHEMA = 1
SWEEP = re.compile("[0-9a-f]{16}")
# What must agree for cells to be of the same size, and on how many of the levels below it does.
SIZES = ("seq_len", "batch_size", "num_heads", "head_dim")
OF_SIZE = 2


@dataclass(frozen=True)
class SavedCell:
    """A cell; its `sources` are indices into the plan's."""

    cell_id: str
    title: str
    config: dict[str, Any]
    timeout: float
    unsupported: str | None
    sources: list[int]


@dataclass(frozen=True)
class SavedPlan:
    """What a command asked for."""

    sweep_id: str
    overrides: list[str]
    settings: dict[str, Any]
    """Of the whole sweep: `results_dir`, `rerun`, `tracking`."""
    launcher: dict[str, Any]
    """The executor's name, as `executor`, and its parameters."""
    sources: list[list[str]]
    """name, path and SHA-256 of each file of the code that cells run."""
    cells: list[SavedCell]


def save(results_dir: Path, plan: SavedPlan) -> Path:
    """Write a plan, unless it is there."""
    path = results_dir / FOLDER / plan.sweep_id / FILE
    data = json.dumps({"schema": SCHEMA, **dataclasses.asdict(plan)}, separators=(",", ":")).encode()
    compressed = gzip.compress(data, compresslevel=6, mtime=0)  # without a time: the same plan is the same file
    with contextlib.suppress(RecordError):
        if read_file(path) == compressed:
            return path
    write_atomically(path, compressed)
    return path


def load(results_dir: Path, sweep_id: str) -> SavedPlan:
    """Read a plan; a `ConfigError` where it is not there, or none of this schema."""
    path = results_dir / FOLDER / sweep_id / FILE
    if not path.exists():
        raise ConfigError(f"{sweep_id}: no plan in {results_dir / FOLDER}")
    try:
        fields = json.loads(decompress(read_file(path)))
        if fields.pop("schema") != SCHEMA:
            raise ConfigError(f"{path}: of another version of the suite")
        return SavedPlan(**{**fields, "cells": [SavedCell(**cell) for cell in fields["cells"]]})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def saved(results_dir: Path) -> Iterator[str]:
    """The ids of the sweeps that have a plan, the newest first."""
    files = (results_dir / FOLDER).glob(f"*/{FILE}")
    dated = sorted(((file.stat().st_mtime, file.parent.name) for file in files), reverse=True)
    yield from (name for _, name in dated if SWEEP.fullmatch(name))


class Durations:
    """How long cells take: the mean over cells that are alike, of those that have ended and how long they took."""

    def __init__(self, took: Iterable[tuple[Mapping[str, Any], float]]) -> None:
        self._took: dict[tuple[object, ...], list[float]] = defaultdict(list)
        for config, seconds in took:
            for key in _alike(config):
                self._took[key].append(seconds)

    def expected(self, config: Mapping[str, Any], levels: int | None = None) -> float | None:
        """The seconds of a cell, from the cells that have the most in common with it; None: there are none.

        They have in common the benchmark, mechanism and sizes; or benchmark and sizes; or benchmark and mechanism; or
        the benchmark; or nothing. `levels` is how many of these count.
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
    """A time for people: in seconds, minutes or hours."""
    seconds = round(seconds)
    if seconds < 100:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
