"""A sweep: configurations -> cells -> records, measuring only what is missing or failed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

from tqdm import tqdm

from bench.errors import ConfigError
from bench.execution.runner import run_cell
from bench.execution.slots import hold, slot
from bench.plan import sources
from bench.plan.cell import Cell, Variant, make_cell, merge_compared
from bench.plan.config import Config, check, split
from bench.plan.machine import gpu
from bench.records.record import FAILED, Record
from bench.records.store import Store, latest
from bench.table import line

# Settings of the sweep and not of its cells: one value for all of them.
OF_THE_SWEEP = ("results_dir", "rerun", "tracking")
DAY_S = 86400


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
        made += [make_cell(each, variant) for each in split(config)]
    if settings is None:
        raise ConfigError("the sweep has no cells")
    for cell in merge_compared(made):
        cells.setdefault(cell.cell_id, cell)
    return Sweep(tuple(cells.values()), settings, tuple(overrides))


def run_sweep(sweep: Sweep, on_records: Callable[[Sequence[Record]], None] = lambda records: None) -> list[Record]:
    """Measure what is missing or failed, and return the record that stands for each cell.

    Args:
        sweep: what to measure.
        on_records: gets the records that the cells have already, then all of a cell's whenever it has ended.

    Raises:
        ConfigError: the results folder or the folder of the device's lock cannot be used.
        KeyboardInterrupt: after the interrupted cell's record was saved.
    """
    store = Store(sweep.settings.results_dir)
    try:
        (store.root / "locks").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"results_dir={sweep.settings.results_dir!r}: {error.strerror}; must be a folder, or the name of a new one"
        ) from None
    _clear_leftovers(store)
    cell_ids = {cell.cell_id for cell in sweep.cells}
    records = [record for record in store.load() if record.cell_id in cell_ids]
    on_records(records)
    standing = latest(records)
    afresh = sweep.settings.rerun == "all"
    todo = [c for c in sweep.cells if afresh or c.cell_id not in standing or not standing[c.cell_id].terminal]
    done = len(sweep.cells) - len(todo)
    quiet = all(cell.unsupported for cell in sweep.cells)
    if not quiet:
        print(f"sweep {sweep.sweep_id}: {len(sweep.cells)} cells, {done} done already", file=sys.stderr)
    seen = {record.record_id for record in records}
    with _termination_is_an_interrupt(), _bar(len(todo), quiet) as bar:
        for cell in todo:
            bar.set_description_str(cell.title, refresh=False)
            bar.set_postfix_str("", refresh=sys.stderr.isatty())
            try:
                record = _run_one(cell, store, sweep, seen, bar)
            finally:
                on_records(store.of_cell(cell.cell_id))
            standing[cell.cell_id] = record
            bar.update()
            if not quiet:
                bar.write(line(record), file=sys.stderr)
    return [standing[cell.cell_id] for cell in sweep.cells]


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


def _run_one(cell: Cell, store: Store, sweep: Sweep, seen: Set[str], bar: tqdm[NoReturn]) -> Record:
    say = functools.partial(bar.write, file=sys.stderr)
    with hold(store.root / "locks" / f"{cell.cell_id[:16]}.lock", cell.title, say):
        attempts = store.of_cell(cell.cell_id)
        # Another sweep has measured the cell since this one began, and how that ended is as good as new.
        if any(record.record_id not in seen and record.status != "interrupted" for record in attempts):
            return latest(attempts)[cell.cell_id]
        # The device comes after the cell, for everybody: who holds a device waits for nothing.
        with _device(cell, say) as held:
            try:
                record = run_cell(
                    cell,
                    store.root,
                    sweep_id=sweep.sweep_id,
                    attempt=len(attempts) + 1,
                    overrides=sweep.overrides,
                    progress=lambda text: bar.set_postfix_str(text, refresh=sys.stderr.isatty()),
                    held=held,
                )
            except KeyboardInterrupt as interrupt:
                interrupted = getattr(interrupt, "record", None)
                if interrupted is not None:
                    store.write(interrupted)
                raise
        store.write(record)
    return record


def _device(cell: Cell, say: Callable[[str], None]) -> contextlib.AbstractContextManager[int | None]:
    if cell.unsupported is not None:
        return contextlib.nullcontext()
    device = cell.config["device"]
    used = gpu(device)
    return hold(slot(used.uuid if used else device), device, say)


def _clear_leftovers(store: Store) -> None:
    """Remove what writers that were killed left beside the records, unless it may still be written."""
    for path in store.records_dir.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > DAY_S:
                path.unlink()


@contextlib.contextmanager
def _termination_is_an_interrupt() -> Iterator[None]:
    """SIGTERM ends a sweep as Ctrl-C does. Only the main thread may say so; others leave it to the program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
