"""A sweep: configurations -> cells -> records, measuring only what is missing or failed."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common.errors import ConfigError
from bench.execution import executors, ranks
from bench.execution.device_locks import lock_folder
from bench.execution.forkserver import forks
from bench.execution.interrupts import Interrupts
from bench.execution.precheck import check_cells
from bench.execution.progress_bar import ProgressBar
from bench.execution.results_folder import check_folder, prepare_folder
from bench.execution.runner import Runner
from bench.measures.progress import Progress
from bench.measures.summary import Results
from bench.plan.cell import Cell, Variant, forget, make_cell, merge_compared
from bench.plan.config import Config, check, split
from bench.plan.executors import Cells, Executor
from bench.plan.sources import Source
from bench.records import plans
from bench.records.disk import read_file, write_atomically
from bench.records.record import FAILED, Record
from bench.records.store import Store, latest

# Settings of the sweep and not of its cells: one value for all of them.
OF_THE_SWEEP = ("results_dir", "rerun", "tracking")


@dataclass(frozen=True)
class Sweep:
    """A validated plan: what to measure, and where the records go."""

    cells: tuple[Cell, ...]
    settings: Config
    overrides: tuple[str, ...]
    executor: Executor = dataclasses.field(default_factory=Cells)

    @property
    def sweep_id(self) -> str:
        """The hash of the plan: the same command is the same sweep, and resumes it."""
        return hashlib.sha256("".join(sorted(cell.cell_id for cell in self.cells)).encode()).hexdigest()[:16]


def plan(
    composed: Sequence[tuple[Mapping[str, Any], Variant]], overrides: Sequence[str], executor: Executor | None = None
) -> Sweep:
    """Validate every configuration of a sweep before anything is measured.

    Args:
        composed: configurations, each with the variant of its mechanism.
        overrides: the command line, for the records.
        executor: what runs them; None: this process, one after the other.

    Raises:
        ConfigError: one line about the first configuration that cannot be run.
    """
    executor = executor or Cells()
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
    """Measure what is missing or failed, and return the record that stands for each cell.

    Args:
        sweep: what to measure.
        on_records: gets the records that the cells have already, then all of a cell's whenever it has ended. Without
            it, only those are read that stand for the cells in the end.
        on_progress: told how far a cell is now and then.

    Raises:
        ConfigError: the results folder, the folder of the device's lock or the executor cannot be used.
        KeyboardInterrupt: after the interrupted cell's record was saved.
    """
    check_folder(sweep.settings.results_dir)
    forks()
    store = Results(sweep.settings.results_dir)
    attempts = _attempts(store, sweep)
    todo, rerun = outstanding(store, sweep, attempts)
    ranks.require_joint(todo, sweep.executor.name)
    executors.require_usable(sweep.executor, todo)
    remote = bool(sweep.executor.resources.name)
    if todo and not remote:
        lock_folder()  # a folder that cannot hold locks is said before anything is written
    todo = check_cells(todo, store.root / "inputs", elsewhere=remote)
    prepare_folder(sweep.settings.results_dir)
    interrupts = Interrupts()
    store = Results(sweep.settings.results_dir, prepared=True)
    runner = Runner(
        store,
        sweep.sweep_id,
        sweep.overrides,
        frozenset(attempt.record_id for attempt in attempts),
        sweep.executor.resources,
        sweep.executor.timings_alone,
        interrupts.deferred,
    )
    if ranks.follows():
        with tempfile.TemporaryDirectory() as folder:
            return [runner.follow(cell, Path(folder) / "cell") for cell in todo]
    save_plan(sweep)
    if rerun:
        rerun.begin()
    if on_records:
        on_records(store.read(attempt.file_name for attempt in attempts))
    quiet = _none_supported(sweep, todo, latest(attempts))
    if not quiet:
        done = len(sweep.cells) - len(todo)
        print(f"sweep {sweep.sweep_id}: {len(sweep.cells)} cells, {done} done already", file=sys.stderr)
    with interrupts.caught(), ProgressBar(store, len(todo), on_records, on_progress, quiet=quiet) as bar:
        executors.run(sweep.executor, runner, todo, bar)
    if rerun:
        rerun.end()
    standing = latest(_attempts(store, sweep) if todo else attempts)
    return [standing[cell.cell_id] for cell in sweep.cells]


def needs_no_rerun(record: Record | None, rerun: str) -> bool:
    """Whether a cell with this latest record is not measured again, by what `rerun` asks for beside `all`."""
    return record is not None and record.terminal and not (rerun == "disturbed" and record.disturbed)


class Rerun:
    """`rerun=all` that may be interrupted and repeated: a cell that it has measured afresh is not measured again.

    A file names the records that there were before, until all cells are measured afresh.

    Args:
        file: its path.
        records: those that there are now.

    Attributes:
        before: the ids of the records that do not count.
    """

    def __init__(self, file: Path, records: Iterable[Record]) -> None:
        self._file = file
        self.before = {record.record_id for record in records}
        with contextlib.suppress(ValueError):
            self.before &= set(read_file(file).decode().splitlines())

    def begin(self) -> None:
        """Remember them."""
        write_atomically(self._file, "\n".join(sorted(self.before)).encode())

    def end(self) -> None:
        """Forget them: the next command begins afresh."""
        self._file.unlink(missing_ok=True)


def outstanding(store: Store, sweep: Sweep, attempts: Sequence[Record]) -> tuple[list[Cell], Rerun | None]:
    """The cells that are to be measured, by the records that there are, and what `rerun=all` remembers of them."""
    file = store.root / "sweeps" / sweep.sweep_id / "measured_before"
    rerun = Rerun(file, attempts) if sweep.settings.rerun == "all" else None
    fresh = latest(attempt for attempt in attempts if not rerun or attempt.record_id not in rerun.before)
    return [cell for cell in sweep.cells if not needs_no_rerun(fresh.get(cell.cell_id), sweep.settings.rerun)], rerun


def _attempts(store: Store, sweep: Sweep) -> list[Record]:
    return store.of_cells(cell.cell_id for cell in sweep.cells)


def _none_supported(sweep: Sweep, todo: Sequence[Cell], standing: Mapping[str, Record]) -> bool:
    unsupported = {cell.cell_id for cell in todo if cell.unsupported}
    done = {cell.cell_id for cell in sweep.cells} - {cell.cell_id for cell in todo}
    return all(standing[cell_id].status == "unsupported" for cell_id in done) and len(unsupported) == len(todo)


def save_plan(sweep: Sweep) -> None:
    """Write the plan where other processes find it."""
    sources: dict[Source, int] = {}
    cells = []
    for cell in sweep.cells:
        indices = [sources.setdefault(source, len(sources)) for source in cell.sources]
        cells.append(plans.SavedCell(cell.cell_id, cell.title, cell.config, cell.timeout, cell.unsupported, indices))
    settings = {key: getattr(sweep.settings, key) for key in OF_THE_SWEEP}
    launcher = {"executor": sweep.executor.name, **dataclasses.asdict(sweep.executor)}
    saved = plans.SavedPlan(
        sweep.sweep_id, list(sweep.overrides), settings, launcher, [list(source) for source in sources], cells
    )
    plans.save(Path(sweep.settings.results_dir), saved)


def exit_code(records: Sequence[Record]) -> int:
    """0, or 1 if a cell crashed, was wrong or did not finish."""
    return int(any(record.status in FAILED for record in records))


def require_any_supported(records: Sequence[Record]) -> None:
    """Raise `ConfigError` with the reason if no cell of a sweep could be built."""
    if all(record.status == "unsupported" and record.phase == "setup" for record in records):
        raise ConfigError(records[0].reason)
