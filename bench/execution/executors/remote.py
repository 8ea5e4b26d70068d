"""What a sweep has to do, for processes on other nodes: a file beside its plan says it, and records say what is done.

The file names the cells that are to be measured, and the records that there were before.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.execution.interrupts import Interrupts
from bench.execution.runner import Runner
from bench.measures.summary import Results
from bench.plan import executors
from bench.plan.cell import Cell
from bench.plan.sources import Source
from bench.records import plans
from bench.records.disk import read_file, write_atomically
from bench.records.record import Record

FILE = "round.json"


def begin(runner: Runner, todo: Sequence[Cell]) -> None:
    """Write what is to do."""
    known = sorted(entry.record_id for entry in runner.store.of_cells(cell.cell_id for cell in todo))
    data = json.dumps({"cells": [cell.cell_id for cell in todo], "seen": known}).encode()
    write_atomically(_file(runner.store.root, runner.sweep_id), data)


def load(results_dir: Path, sweep_id: str) -> tuple[Runner, list[Cell]]:
    """What is to do: the runner of the sweep, and the cells.

    Raises:
        PlanError: there is nothing to do, or no plan.
    """
    plan = plans.load(results_dir, sweep_id)
    try:
        fields = json.loads(read_file(_file(results_dir, sweep_id)))
        known, wanted = frozenset(fields["seen"]), set(fields["cells"])
    except (ValueError, KeyError, TypeError) as error:
        raise plans.PlanError(f"{sweep_id}: nothing to do in {results_dir / plans.FOLDER}: {error}") from None
    executor = executors.check(plan.launcher)
    store = Results(results_dir, prepared=True)
    runner = Runner(store, sweep_id, tuple(plan.overrides), known, executor.resources, executor.timings_alone)
    return runner, [cell for cell in plan_cells(plan) if cell.cell_id in wanted]


def plan_cells(plan: plans.SavedPlan) -> Iterator[Cell]:
    """The cells of a plan."""
    sources = [Source(*source) for source in plan.sources]
    for cell in plan.cells:
        own = tuple(sources[index] for index in cell.sources)
        yield Cell(cell.config, cell.cell_id, cell.timeout, cell.unsupported, own)


def in_progress(results_dir: Path, sweep_id: str) -> bool:
    """Whether something was begun that has not ended."""
    return _file(results_dir, sweep_id).exists()


def finish(runner: Runner) -> None:
    """All cells have ended: remove the file."""
    _file(runner.store.root, runner.sweep_id).unlink(missing_ok=True)


def give_up(runner: Runner, cell: Cell, reason: str) -> None:
    """Write a `crash` record for a cell that no worker could write one for, unless one has."""
    with runner.lock_cell(cell):
        attempts = runner.store.of_cell(cell.cell_id)
        if any(map(runner.is_new, attempts)):
            return
        now = datetime.now(UTC).isoformat()
        identity = runner.identity(cell, len(attempts) + 1, "cpu")
        record = Record(**identity, status="crash", reason=reason, started=now, ended=now, duration_s=0.0)
        runner.store.write(record)


class NewRecords:
    """The records of a sweep as they appear in the results folder, whoever writes them.

    Args:
        runner: of the sweep.
        todo: its cells.

    Attributes:
        missing: the cells without a new record, by id; interrupted ones are measured again.
    """

    def __init__(self, runner: Runner, todo: Iterable[Cell]) -> None:
        self._runner = runner
        self.missing = {cell.cell_id: cell for cell in todo}
        self._read: set[str] = set()

    def poll(self) -> list[Cell]:
        """The cells that have ended since the last call."""
        ended, store = [], self._runner.store
        prefixes = {cell_id[:16] for cell_id in self.missing}
        fresh = [name for name in store.names() if name not in self._read and name.partition("-")[0] in prefixes]
        self._read.update(fresh)
        for _, record in store.readable(fresh):
            if record.cell_id in self.missing and self._runner.is_new(record):
                ended.append(self.missing.pop(record.cell_id))
        return ended


def measure(
    results_dir: Path,
    sweep_id: str,
    cell_ids: Collection[str],
    cores: Collection[int] | None = None,
) -> None:
    """Measure some of the cells, one after the other, in this process, on some cores or all that it may use.

    Raises:
        KeyboardInterrupt: after the interrupted cell's record was saved.
    """
    runner, todo = load(results_dir, sweep_id)
    interrupts = Interrupts()
    runner = dataclasses.replace(runner, defer_interrupts=interrupts.deferred)
    with interrupts.caught():
        for cell in todo:
            if cell.cell_id in cell_ids:
                runner.measure(cell, cores=cores)


def _file(results_dir: Path, sweep_id: str) -> Path:
    return results_dir / plans.FOLDER / sweep_id / FILE
