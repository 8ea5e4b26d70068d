"""A sweep's plan as a file, `sweeps/SWEEP/plan.json.gz`: all its cells, for processes that did not plan it.

The same command always gives the same plan. Records, not the plan, say what has been measured; the remaining time is
estimated from them.
"""

import contextlib
import dataclasses
import gzip
import json
import os
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
# The keys that cells of the same size share, and how many levels of `Durations.expected` require it.
SIZES = ("seq_len", "batch_size", "num_heads", "head_dim")
OF_SIZE = 2
SHOWN = 5  # ids in a message
# The same, within parts of the configuration.
OF_PARTS = (("model", "name"), ("model", "layers"), ("task", "name"), ("training", "steps"))


@dataclass(frozen=True)
class SavedCell:
    """A cell; its `sources` are indices into the plan's list."""

    cell_id: str
    title: str
    config: dict[str, Any]
    timeout: float
    unsupported: str | None
    sources: list[int]


@dataclass(frozen=True)
class SavedPlan:
    """The plan of a command."""

    sweep_id: str
    overrides: list[str]
    settings: dict[str, Any]
    """Settings of the whole sweep: `results_dir`, `rerun`, `tracking`."""
    launcher: dict[str, Any]
    """The launcher's name, as `executor`, and its settings."""
    sources: list[list[str]]
    """name, path and SHA-256 of each code file that cells run."""
    cells: list[SavedCell]


def save(results_dir: Path, plan: SavedPlan) -> Path:
    """Write a plan, unless the same one exists."""
    path = results_dir / FOLDER / plan.sweep_id / FILE
    data = json.dumps({"schema": SCHEMA, **dataclasses.asdict(plan)}, separators=(",", ":")).encode()
    compressed = gzip.compress(data, compresslevel=6, mtime=0)  # no time: the same plan gives the same file
    with contextlib.suppress(RecordError):
        if read_file(path) == compressed:
            os.utime(path)  # it is the newest sweep again
            return path
    write_atomically(path, compressed)
    return path


def load(results_dir: Path, sweep_id: str) -> SavedPlan:
    """Read a plan; raises `ConfigError` if it is missing or has another schema."""
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


def find(results_dir: Path, wanted: str) -> SavedPlan:
    """The plan of the only sweep whose id begins with `wanted` (empty: the newest); else raises `ConfigError`."""
    known = list(saved(results_dir))
    found = [sweep_id for sweep_id in known if sweep_id.startswith(wanted)]
    if not known:
        raise ConfigError(f"no sweep in {results_dir / FOLDER}; --results=DIR says where sweeps write")
    if not found or (wanted and len(found) > 1):
        begins = "several sweeps begin so" if found else f"no sweep in {results_dir / FOLDER} begins so"
        shown = [*(found or known)[:SHOWN], *(["..."] if len(found or known) > SHOWN else [])]
        raise ConfigError(f"sweep={wanted!r}: {begins}; must be one of {', '.join(shown)}")
    return load(results_dir, found[0])


def measured_before(results_dir: Path, sweep_id: str) -> set[str] | None:
    """The ids of the records that do not count for a sweep with `rerun=all`, as they are older; None after its end."""
    with contextlib.suppress(ValueError):  # there is no such file, or it is no text
        return set(read_file(older(results_dir, sweep_id)).decode().splitlines())
    return None


def older(results_dir: Path, sweep_id: str) -> Path:
    """The file of `measured_before`; it exists until all cells are measured again."""
    return results_dir / FOLDER / sweep_id / "measured_before"


def saved(results_dir: Path) -> Iterator[str]:
    """The ids of the sweeps that have a plan, newest first."""
    files = (results_dir / FOLDER).glob(f"*/{FILE}")
    dated = sorted(((file.stat().st_mtime, file.parent.name) for file in files), reverse=True)
    yield from (name for _, name in dated if SWEEP.fullmatch(name))


class Durations:
    """Expected durations of cells: the mean over similar cells, from pairs of configuration and seconds."""

    def __init__(self, took: Iterable[tuple[Mapping[str, Any], float]]) -> None:
        self._took: dict[tuple[object, ...], list[float]] = defaultdict(list)
        for config, seconds in took:
            for key in _alike(config):
                self._took[key].append(seconds)

    def expected(self, config: Mapping[str, Any], levels: int | None = None) -> float | None:
        """The expected seconds of a cell, from the cells most similar to it; None if there are none.

        From most to least similar, cells share: benchmark, mechanism and sizes; benchmark and sizes; benchmark and
        mechanism; the benchmark; nothing. Only the first `levels` of these count; None: all.
        """
        for key in list(_alike(config))[:levels]:
            if seconds := self._took.get(key):
                return sum(seconds) / len(seconds)
        return None


def _alike(config: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    bench, label = config["bench"]["name"], config["label"]
    parts = ((config.get(part) or {}).get(key) for part, key in OF_PARTS)
    kind = str(config.get("device")).partition(":")[0]  # two GPUs of a machine are alike
    sizes = (kind, *(config.get(key) for key in SIZES), *parts)
    yield from ((bench, label, sizes), (bench, sizes), (bench, label), (bench,), ())


def duration(seconds: float) -> str:
    """A time for people: in seconds, minutes or hours."""
    seconds = round(seconds)
    if seconds < 100:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
