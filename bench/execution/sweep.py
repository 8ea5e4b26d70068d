"""A sweep: configurations -> cells -> records, measuring only what is missing or failed."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from bench.errors import ConfigError, say
from bench.execution import ranks
from bench.execution.folder import check_folder, prepare_folder
from bench.execution.interrupts import Interrupts
from bench.execution.locks import hold
from bench.execution.rehearsal import rehearse
from bench.execution.reruns import Rerun
from bench.execution.runner import run_cell
from bench.execution.slots import hold_device, needs_quiet
from bench.measures.progress import Progress
from bench.plan.cell import Cell, Variant, forget, make_cell, merge_compared
from bench.plan.config import Config, check, split
from bench.plan.machine import gpu
from bench.records.record import FAILED, Record
from bench.records.store import Store, latest
from bench.table import line

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


def plan(composed: Sequence[tuple[Mapping[str, Any], Variant]], overrides: Sequence[str]) -> Sweep:
    """Validate every configuration of a sweep before anything is measured.

    Args:
        composed: configurations, each with the variant of its mechanism.
        overrides: the command line, for the records.

    Raises:
        ConfigError: one line about the first configuration that cannot be run.
    """
    forget()  # a notebook plans again after an edit
    cells: dict[str, Cell] = {}
    settings: Config | None = None
    made = []
    for values, variant in composed:
        config = check(values)
        settings = settings or config
        for key in OF_THE_SWEEP:
            if getattr(config, key) != getattr(settings, key):
                raise ConfigError(f"{key}={getattr(config, key)!r}: must have one value in a sweep")
        made += [make_cell(each, variant) for each in split(config)]
    if settings is None:
        raise ConfigError("the sweep has no cells")
    for cell in merge_compared(made):
        cells.setdefault(cell.cell_id, cell)
    return Sweep(tuple(cells.values()), settings, tuple(overrides))


def run_sweep(
    sweep: Sweep,
    on_records: Callable[[Sequence[Record]], None] = lambda records: None,
    on_progress: Callable[[Cell, Progress], None] = lambda cell, progress: None,
) -> list[Record]:
    """Measure what is missing or failed, and return the record that stands for each cell.

    Args:
        sweep: what to measure.
        on_records: gets the records that the cells have already, then all of a cell's whenever it has ended.
        on_progress: told how far a cell is now and then.

    Raises:
        ConfigError: the results folder or the folder of the device's lock cannot be used.
        KeyboardInterrupt: after the interrupted cell's record was saved.
    """
    store = Store(sweep.settings.results_dir)
    check_folder(sweep.settings.results_dir)
    cell_ids = {cell.cell_id for cell in sweep.cells}
    records = [record for record in store.load() if record.cell_id in cell_ids]
    rerun = Rerun(store.root / "sweeps" / sweep.sweep_id / "rerun") if sweep.settings.rerun == "all" else None
    standing = latest(records)
    fresh = {cell_id for cell_id, record in standing.items() if not rerun or record.started >= rerun.began}
    todo = [c for c in sweep.cells if c.cell_id not in fresh or not standing[c.cell_id].terminal]
    ranks.require_joint(todo)
    todo = rehearse(todo, store.root / "inputs")
    prepare_folder(sweep.settings.results_dir)
    if ranks.follows():
        return [_followed(cell, store, sweep) for cell in todo]
    if rerun:
        rerun.begin()
    on_records(records)
    measuring = _Measuring(store, sweep, {record.record_id for record in records}, on_records, on_progress)
    standing |= measuring.all(todo, quiet=_none_supported(sweep, todo, standing))
    if rerun:
        rerun.end()
    return [standing[cell.cell_id] for cell in sweep.cells]


def _followed(cell: Cell, store: Store, sweep: Sweep) -> Record:
    """Take part in a cell that another process leads."""
    shared = cell.config["device"] == "cpu"
    with tempfile.TemporaryDirectory() as folder, contextlib.nullcontext(()) if shared else _device(cell, say) as held:
        return run_cell(cell, store.root, sweep_id=sweep.sweep_id, held=held, scratch=Path(folder) / "cell")


def _none_supported(sweep: Sweep, todo: Sequence[Cell], standing: Mapping[str, Record]) -> bool:
    unsupported = {cell.cell_id for cell in todo if cell.unsupported}
    done = {cell.cell_id for cell in sweep.cells} - {cell.cell_id for cell in todo}
    return all(standing[cell_id].status == "unsupported" for cell_id in done) and len(unsupported) == len(todo)


class _Measuring:
    """The part of a sweep that measures."""

    def __init__(
        self,
        store: Store,
        sweep: Sweep,
        seen: Set[str],
        on_records: Callable[[Sequence[Record]], None],
        on_progress: Callable[[Cell, Progress], None],
    ) -> None:
        self._store, self._sweep, self._seen = store, sweep, seen
        self._on_records, self._on_progress = on_records, on_progress
        self._interrupts = Interrupts()

    def all(self, todo: Sequence[Cell], quiet: bool) -> dict[str, Record]:
        """The record that now stands for each of these cells, by its id."""
        records = {}
        done = len(self._sweep.cells) - len(todo)
        if not quiet:
            print(f"sweep {self._sweep.sweep_id}: {len(self._sweep.cells)} cells, {done} done already", file=sys.stderr)
        with self._interrupts.caught(), _bar(len(todo), quiet) as bar:
            for cell in todo:
                bar.set_description_str(cell.title, refresh=False)
                bar.set_postfix_str("", refresh=sys.stderr.isatty())
                try:
                    records[cell.cell_id] = record = self._one(cell, bar)
                finally:
                    self._on_records(self._store.of_cell(cell.cell_id))
                bar.update()
                if not quiet:
                    say(line(record))
        return records

    def _one(self, cell: Cell, bar: tqdm[NoReturn]) -> Record:
        with hold(self._store.root / "locks" / f"{cell.cell_id[:16]}.lock", cell.title, say):
            attempts = self._store.of_cell(cell.cell_id)
            # Another sweep has measured the cell since this one began, and how that ended is as good as new.
            if any(record.record_id not in self._seen and record.status != "interrupted" for record in attempts):
                return latest(attempts)[cell.cell_id]
            # The device comes after the cell, for everybody: who holds a device waits for nothing.
            with _device(cell, say) as held:
                try:
                    record = run_cell(
                        cell,
                        self._store.root,
                        sweep_id=self._sweep.sweep_id,
                        attempt=len(attempts) + 1,
                        overrides=self._sweep.overrides,
                        progress=lambda now: self._tell(cell, now, bar),
                        held=held,
                    )
                except KeyboardInterrupt as interrupt:
                    interrupted = getattr(interrupt, "record", None)
                    if interrupted is not None:
                        self._save(interrupted)
                    raise
            self._save(record)
        return record

    def _tell(self, cell: Cell, now: Progress, bar: tqdm[NoReturn]) -> None:
        bar.set_postfix_str(now.text, refresh=sys.stderr.isatty())
        self._on_progress(cell, now)

    def _save(self, record: Record) -> None:
        with self._interrupts.held_back():
            self._store.write(record)


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


def _device(cell: Cell, say: Callable[[str], None]) -> contextlib.AbstractContextManager[tuple[int, ...]]:
    if cell.unsupported is not None:
        return contextlib.nullcontext(())
    device = cell.config["device"]
    used = gpu(device)
    name, part_of = (used.uuid, used.part_of) if used else (device, None)
    return hold_device(name, alone=needs_quiet(cell), part_of=part_of, what=cell.title, say=say)
