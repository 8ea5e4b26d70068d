"""What a sweep has still to measure, for processes on other nodes; the records tell which cells are done.

A file beside the sweep's plan lists the cells to measure, and the records that existed before.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.common.errors import ConfigError
from bench.execution.runner import Runner
from bench.plan import executors
from bench.plan.cell import Cell
from bench.plan.sources import Source
from bench.records import plans
from bench.records.disk import read_file, write_atomically
from bench.records.record import Record
from bench.records.summary import Results


def round_file(results_dir: Path, sweep_id: str) -> Path:
    """The file with the cells to measure; it exists from `begin` to `end`."""
    return results_dir / plans.FOLDER / sweep_id / "round.json"


def begin(runner: Runner, todo: Sequence[Cell]) -> None:
    """Write which cells are to be measured."""
    data = json.dumps({"cells": [cell.cell_id for cell in todo], "seen": sorted(runner.known)}).encode()
    write_atomically(round_file(runner.store.root, runner.sweep_id), data)


def end(runner: Runner) -> None:
    """Nothing is to be measured any more."""
    round_file(runner.store.root, runner.sweep_id).unlink(missing_ok=True)


def load(results_dir: Path, sweep_id: str) -> tuple[Runner, list[Cell]]:
    """The sweep's runner and the cells to measure; `ConfigError` if there is no plan or nothing to measure."""
    plan = plans.load(results_dir, sweep_id)
    try:
        fields = json.loads(read_file(round_file(results_dir, sweep_id)))
        known, wanted = frozenset(fields["seen"]), set(fields["cells"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{sweep_id}: nothing to do in {results_dir / plans.FOLDER}: {error}") from None
    executor = executors.check(plan.launcher)
    store = Results(results_dir, prepared=True)
    runner = Runner(store, sweep_id, tuple(plan.overrides), known, executor)
    return runner, [cell for cell in plan_cells(plan) if cell.cell_id in wanted]


def plan_cells(plan: plans.SavedPlan) -> Iterator[Cell]:
    """The cells of a plan."""
    sources = [Source(*source) for source in plan.sources]
    for cell in plan.cells:
        own = tuple(sources[index] for index in cell.sources)
        yield Cell(cell.config, cell.cell_id, cell.timeout, cell.unsupported, own)


def give_up(runner: Runner, cell: Cell, reason: str) -> None:
    """Write a `crash` record for a cell for which no worker could write one, unless it has a new record."""
    with runner.lock_cell(cell):
        attempts = runner.store.of_cell(cell.cell_id)
        if any(map(runner.is_new, attempts)):
            return
        now = datetime.now(UTC).isoformat()
        identity = runner.identity(cell, len(attempts) + 1, "cpu")
        record = Record(**identity, status="crash", reason=reason, started=now, ended=now, duration_s=0.0)
        runner.store.write(record)


class NewRecords:
    """Finds new records of a sweep's cells in the results folder, whoever writes them.

    Attributes:
        missing: the cells without a new record, by id; interrupted cells stay in it.
        counts: number of new records of each cell, interrupted ones included.
    """

    def __init__(self, runner: Runner, todo: Iterable[Cell]) -> None:
        self._runner = runner
        self.missing = {cell.cell_id: cell for cell in todo}
        self.counts: Counter[str] = Counter()
        self._read: set[str] = set()

    def poll(self) -> list[Cell]:
        """The cells that have ended since the last call."""
        ended, store = [], self._runner.store
        prefixes = {cell_id[:16] for cell_id in self.missing}
        fresh = [name for name in store.names() if name not in self._read and name.partition("-")[0] in prefixes]
        self._read.update(fresh)
        for _, record in store.readable(fresh):
            if record.cell_id in self.missing and record.record_id not in self._runner.known:
                self.counts[record.cell_id] += 1
                if self._runner.is_new(record):
                    ended.append(self.missing.pop(record.cell_id))
        return ended
