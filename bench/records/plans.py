"""A sweep's plan on disk, `sweeps/SWEEP/plan.json.gz`: all its cells, for processes that did not plan it.

It is the same whenever the same command is planned, and says nothing of what has been measured: records do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records.disk import write_atomically
from bench.records.files import read_file
from bench.records.record import RecordError

FOLDER, FILE = "sweeps", "plan.json.gz"
SCHEMA = 1
SWEEP = re.compile("[0-9a-f]{16}")


class PlanError(ValueError):
    """There is no such plan, or none that can be read; the message names it."""


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
    # Without a time in it: the same plan is the same file.
    compressed = gzip.compress(data, compresslevel=1, mtime=0)
    with contextlib.suppress(RecordError):
        if read_file(path) == compressed:
            return path
    write_atomically(path, compressed)
    return path


def load(results_dir: Path, sweep_id: str) -> SavedPlan:
    """Read a plan.

    Raises:
        PlanError: it is not there, or no plan of this schema.
    """
    path = results_dir / FOLDER / sweep_id / FILE
    if not path.exists():
        raise PlanError(f"{sweep_id}: no plan in {results_dir / FOLDER}")
    try:
        fields = json.loads(gzip.decompress(read_file(path)))
        if fields.pop("schema") != SCHEMA:
            raise PlanError(f"{path}: of another version of the suite")
        return SavedPlan(**{**fields, "cells": [SavedCell(**cell) for cell in fields["cells"]]})
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanError(f"{path}: cannot be read: {error}") from None


def saved(results_dir: Path) -> Iterator[str]:
    """The ids of the sweeps that have a plan, the newest first."""
    files = (results_dir / FOLDER).glob(f"*/{FILE}")
    dated = sorted(((file.stat().st_mtime, file.parent.name) for file in files), reverse=True)
    yield from (name for _, name in dated if SWEEP.fullmatch(name))
