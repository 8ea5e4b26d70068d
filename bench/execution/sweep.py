"""A sweep: from configurations to cells to records; measures only what is missing or failed."""

import contextlib
import dataclasses
import hashlib
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import tasks
from bench.common.errors import ConfigError, UnfinishedError
from bench.execution import executors, ranks
from bench.execution.device_locks import lock_folder
from bench.execution.forkserver import forks
from bench.execution.interrupts import Interrupts
from bench.execution.precheck import check_cells
from bench.execution.progress_bar import ProgressBar
from bench.execution.results_folder import check_folder, prepare_folder
from bench.execution.runner import Runner
from bench.measures.progress import Progress
from bench.plan.cell import Cell, Variant, clear_caches, make_cell, merge_compared
from bench.plan.config import Config, check, split
from bench.plan.executors import Cells, Executor
from bench.plan.sources import Source
from bench.records import plans
from bench.records.disk import write_atomically
from bench.records.record import Record
from bench.records.store import Store, latest
from bench.records.summary import Results

# Settings of the sweep rather than of its cells: all cells must have the same value.
OF_THE_SWEEP = ("results_dir", "rerun", "tracking")


@dataclass(frozen=True)
class Sweep:
    """A validated plan: the cells to measure, and where the records go."""

    cells: tuple[Cell, ...]
    settings: Config
    overrides: tuple[str, ...]
    executor: Executor = dataclasses.field(default_factory=Cells)

    @property
    def sweep_id(self) -> str:
        """The hash of the plan: the same command gives the same id, and resumes the sweep."""
        return hashlib.sha256("".join(sorted(cell.cell_id for cell in self.cells)).encode()).hexdigest()[:16]


def plan(
    composed: Sequence[tuple[Mapping[str, Any], Variant]], overrides: Sequence[str], executor: Executor | None = None
) -> Sweep:
    """Validate every configuration of a sweep before anything is measured; `ConfigError` for the first invalid one.

    Args:
        composed: configurations, each with the variant of its mechanism.
        overrides: the command line, for the records.
        executor: runs the cells; None: this process, one cell after the other.
    """
    executor = executor or Cells()
    clear_caches()  # in a notebook, code may have changed since the last plan
    cells: dict[str, Cell] = {}
    settings: Config | None = None
    made = []
    for values, variant in composed:
        config = check(values)
        settings = settings or config
        for key in OF_THE_SWEEP:
            if getattr(config, key) != getattr(settings, key):
                raise ConfigError(f"{key}={getattr(config, key)!r}: must have one value in a sweep")
        made += [make_cell(each, variant, executor.resources) for each in split(config)]
    if settings is None:
        raise ConfigError("the sweep has no cells")
    for cell in merge_compared(made, executor.resources):
        cells.setdefault(cell.cell_id, cell)
    return Sweep(tuple(cells.values()), settings, tuple(overrides), executor)


def run_sweep(
    sweep: Sweep,
    on_records: Callable[[Sequence[Record]], None] | None = None,
    on_progress: Callable[[Cell, Progress], None] = lambda cell, progress: None,
) -> list[Record]:
    """Measure what is missing or failed; returns for each cell the record that counts.

    If a cell with a result is measured again and fails, that is the failure; figures and later sweeps keep the result.

    Args:
        sweep: what to measure.
        on_records: called with the records that exist already, then with all records of a cell each time it has ended.
        on_progress: called now and then with a cell's progress.

    Raises:
        ConfigError: a folder or the executor cannot be used.
        KeyboardInterrupt: after the interrupted cell's record was saved.
        UnfinishedError: a cell has no record that can be read, since somebody removed or changed its files.
    """
    check_folder(sweep.settings.results_dir)
    forks()
    store = Results(sweep.settings.results_dir)
    attempts = attempts_of(store, sweep)
    todo, before = pending(store, sweep, attempts)
    ranks.require_joint(todo, sweep.executor.name)
    executors.require_usable(sweep.executor, todo)
    remote = bool(sweep.executor.resources.name)
    if todo and not remote:
        lock_folder()  # raises before anything is written
    todo = check_cells(todo, store.root / "inputs", elsewhere=remote)
    prepare_folder(sweep.settings.results_dir)
    interrupts = Interrupts()
    store = Results(sweep.settings.results_dir, prepared=True)
    known = frozenset(attempt.record_id for attempt in attempts)
    runner = Runner(store, sweep.sweep_id, sweep.overrides, known, sweep.executor, interrupts.deferred)
    if ranks.follows():
        with tempfile.TemporaryDirectory() as folder:
            return [runner.follow(cell, Path(folder) / "cell") for cell in todo]
    if sweep.settings.rerun == "all":
        write_atomically(plans.older(store.root, sweep.sweep_id), "\n".join(sorted(before)).encode())
    save_plan(sweep)
    if on_records:
        on_records(attempts)
    # If no cell of the sweep can be measured, only the error is printed.
    statuses = {record.status for record in latest(attempts).values()}
    quiet = statuses <= {"unsupported"} and all(cell.unsupported for cell in todo)
    if not quiet:
        done = len(sweep.cells) - len(todo)
        print(f"sweep {sweep.sweep_id}: {len(sweep.cells)} cells, {done} done already", file=sys.stderr)
        for line in to_make(todo, store):
            print(line, file=sys.stderr)
    bar = ProgressBar(store, todo, on_records, on_progress, quiet)
    with interrupts.caught(), contextlib.closing(bar):
        executors.run(sweep.executor, runner, todo, bar)
    if sweep.settings.rerun == "all":
        plans.older(store.root, sweep.sweep_id).unlink(missing_ok=True)
    return standing(sweep, attempts_of(store, sweep) if todo else attempts, known)


def standing(sweep: Sweep, attempts: Sequence[Record], known: Collection[str]) -> list[Record]:
    """The record of each cell that counts: of those that are not `known`, which this sweep made, else of all."""
    found = latest(attempts) | latest(attempt for attempt in attempts if attempt.record_id not in known)
    if missing := [cell.title for cell in sweep.cells if cell.cell_id not in found]:
        raise UnfinishedError(f"{missing[0]}: has no record that can be read, one of {len(missing)} such cells")
    return [found[cell.cell_id] for cell in sweep.cells]


def to_make(cells: Sequence[Cell], store: Store) -> list[str]:
    """A line for each thing that the tasks of the cells make once, before the first step, if that takes minutes."""
    opened = [(tasks.settings(cell.config["task"]), cell.config) for cell in cells if "task" in cell.config]
    found = (task.to_make(config, store.root / "inputs") for task, config in opened)
    return [f"once, before the first step: {line}" for line in dict.fromkeys(found) if line]


def pending(store: Store, sweep: Sweep, attempts: Sequence[Record]) -> tuple[list[Cell], set[str]]:
    """The cells to measure, and the ids of the records that do not count as measured.

    A sweep with `rerun=all` may be interrupted and repeated: until all cells are measured again, a file lists the
    records that existed before, so that no cell is measured again twice.
    """
    rerun, before = sweep.settings.rerun, set[str]()
    if rerun == "all":
        before = {attempt.record_id for attempt in attempts}
        begun = plans.measured_before(store.root, sweep.sweep_id)
        before = before if begun is None else before & begun
    fresh = latest(attempt for attempt in attempts if attempt.record_id not in before)
    again = {key for key, one in fresh.items() if one.status == rerun or (rerun == "disturbed" and one.disturbed)}
    done = {cell_id for cell_id, one in fresh.items() if one.terminal} - again
    return [cell for cell in sweep.cells if cell.cell_id not in done], before


def attempts_of(store: Store, sweep: Sweep) -> list[Record]:
    """All records of a sweep's cells, oldest first."""
    return store.of_cells(cell.cell_id for cell in sweep.cells)


def save_plan(sweep: Sweep) -> None:
    """Write the plan to a file, for other processes."""
    sources: dict[Source, int] = {}
    cells = []
    for cell in sweep.cells:
        indices = [sources.setdefault(source, len(sources)) for source in cell.sources]
        cells.append(plans.SavedCell(cell.cell_id, cell.title, cell.config, cell.timeout, cell.unsupported, indices))
    settings = {key: getattr(sweep.settings, key) for key in OF_THE_SWEEP}
    launcher = {"executor": sweep.executor.name, **dataclasses.asdict(sweep.executor)}
    files = [list(source) for source in sources]
    saved = plans.SavedPlan(sweep.sweep_id, list(sweep.overrides), settings, launcher, files, cells)
    plans.save(Path(sweep.settings.results_dir), saved)
