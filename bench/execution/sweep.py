"""A sweep: configurations -> cells -> records, measuring only what is missing or failed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from filelock import FileLock
from omegaconf import DictConfig
from tqdm import tqdm

from bench.execution.runner import run_cell
from bench.plan import sources
from bench.plan.cell import Cell, Variant, make_cell, merge_compared
from bench.plan.config import Config, ConfigError, check
from bench.records.record import FAILED, Record
from bench.records.store import Store, latest, write_atomically
from bench.records.table import line
from bench.tracking.tracker import Tracker

# Settings of the sweep and not of its cells: one value for all of them.
OF_THE_SWEEP = ("results_dir", "rerun", "tracking")


@dataclass(frozen=True)
class Sweep:
    """A validated plan: what to measure, and where the records go."""

    cells: tuple[Cell, ...]
    settings: Config
    overrides: tuple[str, ...]

    @property
    def sweep_id(self) -> str:
        """The hash of the plan: the same command is the same sweep, and resumes it."""
        return hashlib.sha256("".join(sorted(cell.cell_id for cell in self.cells)).encode()).hexdigest()[:16]


def plan(composed: Sequence[tuple[DictConfig, Variant]], overrides: Sequence[str]) -> Sweep:
    """Validate every configuration of a sweep before anything is measured.

    Args:
        composed: configurations, each with the variant of its mechanism.
        overrides: the command line, for the records.

    Raises:
        ConfigError: one line about the first configuration that cannot be run.
    """
    sources.forget()  # a notebook plans again after an edit
    cells: dict[str, Cell] = {}
    settings: Config | None = None
    made = []
    for values, variant in composed:
        config = check(values)
        settings = settings or config
        for key in OF_THE_SWEEP:
            if getattr(config, key) != getattr(settings, key):
                raise ConfigError(f"{key}={getattr(config, key)!r}: must have one value in a sweep")
        made.append(make_cell(config, variant))
    if settings is None:
        raise ConfigError("the sweep has no cells")
    for cell in merge_compared(made):
        cells.setdefault(cell.cell_id, cell)
    return Sweep(tuple(cells.values()), settings, tuple(overrides))


def run_sweep(sweep: Sweep) -> list[Record]:
    """Measure what is missing, mirror it, and return the record that stands for each cell.

    Raises:
        KeyboardInterrupt: after the interrupted cell's record was saved.
    """
    store = Store(sweep.settings.results_dir)
    _save_plan(store, sweep)
    records = store.load()
    standing = latest(records)
    attempts = {cell.cell_id: 0 for cell in sweep.cells}
    for record in records:
        if record.cell_id in attempts:
            attempts[record.cell_id] += 1
    afresh = sweep.settings.rerun == "all"
    todo = [c for c in sweep.cells if afresh or c.cell_id not in standing or not standing[c.cell_id].terminal]
    mirror = Tracker(sweep.settings)
    mirror.sync([record for record in records if record.cell_id in attempts])
    done = len(sweep.cells) - len(todo)
    quiet = all(cell.unsupported for cell in sweep.cells)
    if not quiet:
        print(f"sweep {sweep.sweep_id}: {len(sweep.cells)} cells, {done} done already", file=sys.stderr)
    with _termination_is_an_interrupt(), _bar(len(todo), quiet) as bar:
        for cell in todo:
            bar.set_description_str(cell.title, refresh=False)
            bar.set_postfix_str("", refresh=sys.stderr.isatty())
            record = _run_one(cell, store, sweep, attempts[cell.cell_id] + 1, bar, mirror)
            standing[cell.cell_id] = record
            bar.update()
            if not quiet:
                bar.write(line(record), file=sys.stderr)
    finished = [standing[cell.cell_id] for cell in sweep.cells]
    mirror.finish(sweep.sweep_id, finished)
    return finished


def _bar(total: int, quiet: bool) -> tqdm[NoReturn]:
    # A log file gets a line per cell and the bar now and then.
    interval = 0.5 if sys.stderr.isatty() else 60.0
    return tqdm(total=total, unit="cell", disable=quiet or not total, mininterval=interval, maxinterval=interval)


def exit_code(records: Sequence[Record]) -> int:
    """0, or 1 if a cell crashed, was wrong or did not finish."""
    return int(any(record.status in FAILED for record in records))


def require_any_supported(records: Sequence[Record]) -> None:
    """Raise `ConfigError` with the reason if no cell of a sweep could be built."""
    if all(record.status == "unsupported" and record.phase == "setup" for record in records):
        raise ConfigError(records[0].reason)


def _run_one(cell: Cell, store: Store, sweep: Sweep, attempt: int, bar: tqdm[NoReturn], mirror: Tracker) -> Record:
    locks = store.root / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / f"{cell.cell_id[:16]}.lock"):
        if attempt == 1:
            # Another sweep may have measured the cell since this one began.
            found = store.find(cell.cell_id)
            if found is not None and found.terminal:
                return found
        try:
            record = run_cell(
                cell,
                store.root,
                sweep_id=sweep.sweep_id,
                attempt=attempt,
                overrides=sweep.overrides,
                progress=lambda text: bar.set_postfix_str(text, refresh=sys.stderr.isatty()),
            )
        except KeyboardInterrupt as interrupt:
            interrupted = getattr(interrupt, "record", None)
            if interrupted is not None:
                store.write(interrupted)
                mirror.sync([interrupted])
            raise
        store.write(record)
    mirror.sync(store.of_cell(cell.cell_id))
    return record


def _save_plan(store: Store, sweep: Sweep) -> None:
    content = {
        "sweep_id": sweep.sweep_id,
        "overrides": sweep.overrides,
        "cells": {cell.cell_id: cell.title for cell in sweep.cells},
    }
    path = store.root / "sweeps" / f"{sweep.sweep_id}.json"
    write_atomically(path, json.dumps(content, indent=1).encode())


@contextlib.contextmanager
def _termination_is_an_interrupt() -> Iterator[None]:
    def interrupt(signum: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
