"""One attempt at what a sweep lacks, by processes on several nodes: who plans it writes it, who measures reads it.

A round says which cells are to be measured and which records were there before. What is done, the records say.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.common.errors import say
from bench.execution.interrupts import Interrupts
from bench.execution.locks import hold
from bench.execution.work import Work
from bench.measures.summary import Results
from bench.plan import executors
from bench.plan.cell import Cell
from bench.plan.code import code_identity
from bench.plan.machine import machine
from bench.plan.sources import Source
from bench.records import index, plans
from bench.records.disk import write_atomically
from bench.records.files import read_file
from bench.records.record import Record

FILE = "round.json"


def begin(work: Work, todo: Sequence[Cell]) -> None:
    """Write a round, for the plan that lies beside it."""
    seen = sorted(entry.record_id for entry in index.of_cells(work.store, (cell.cell_id for cell in todo)))
    written = json.dumps({"cells": [cell.cell_id for cell in todo], "seen": seen}).encode()
    write_atomically(_file(work.store.root, work.sweep_id), written)


def current(results_dir: Path, sweep_id: str) -> tuple[Work, list[Cell]]:
    """The round that was begun last: what is to do, and the cells.

    Raises:
        PlanError: there is none, or no plan for it.
    """
    plan = plans.load(results_dir, sweep_id)
    try:
        fields = json.loads(read_file(_file(results_dir, sweep_id)))
        seen, wanted = frozenset(fields["seen"]), set(fields["cells"])
    except (ValueError, KeyError, TypeError) as error:
        raise plans.PlanError(f"{sweep_id}: no round in {results_dir / plans.FOLDER}: {error}") from None
    executor = executors.check(plan.launcher)
    store = Results(results_dir, prepared=True)
    work = Work(store, sweep_id, tuple(plan.overrides), seen, executor.place, executor.timings_alone)
    return work, [cell for cell in cells(plan) if cell.cell_id in wanted]


def cells(plan: plans.SavedPlan) -> Iterator[Cell]:
    """The cells of a plan."""
    sources = [Source(*source) for source in plan.sources]
    for cell in plan.cells:
        own = tuple(sources[index] for index in cell.sources)
        yield Cell(cell.config, cell.cell_id, cell.timeout, cell.unsupported, own)


def under_way(results_dir: Path, sweep_id: str) -> bool:
    """Whether a round was begun that has not ended."""
    return _file(results_dir, sweep_id).exists()


def give_up(work: Work, cell: Cell, reason: str) -> None:
    """Write a record for a cell that no worker could write one for, unless one has."""
    with hold(work.store.root / "locks" / f"{cell.cell_id[:16]}.lock", cell.title, say):
        attempts = work.store.of_cell(cell.cell_id)
        if any(map(work.is_new, attempts)):
            return
        now = datetime.now(UTC).isoformat()
        record = Record(
            record_id=secrets.token_hex(16),
            cell_id=cell.cell_id,
            sweep_id=work.sweep_id,
            attempt=len(attempts) + 1,
            status="crash",
            reason=reason,
            config=cell.config,
            started=now,
            ended=now,
            duration_s=0.0,
            overrides=work.overrides,
            code=code_identity(),
            machine=machine("cpu", work.place),
        )
        work.store.write(record)


def forget(work: Work) -> None:
    """Remove the round: all its cells have ended."""
    _file(work.store.root, work.sweep_id).unlink(missing_ok=True)


class Arrivals:
    """The records of a round as they appear in the results folder, whoever writes them.

    Args:
        work: the round's.
        todo: its cells.
    """

    def __init__(self, work: Work, todo: Iterable[Cell]) -> None:
        self._work = work
        self.missing = {cell.cell_id: cell for cell in todo}
        """The cells that have no record of this round yet; interrupted ones are measured again."""
        self._looked: set[str] = set()

    def new(self) -> list[Cell]:
        """The cells that have ended since the last call."""
        return list(self._ended())

    def _ended(self) -> Iterator[Cell]:
        prefixes = {cell_id[:16]: cell_id for cell_id in self.missing}
        names = self._work.store.names()
        fresh = [name for name in names if name not in self._looked and name.partition("-")[0] in prefixes]
        self._looked.update(fresh)
        for _, record in self._work.store.readable(fresh):
            if record.cell_id in self.missing and self._work.is_new(record):
                yield self.missing.pop(record.cell_id)


def measure(
    results_dir: Path,
    sweep_id: str,
    cell_ids: Collection[str],
    cores: Collection[int] | None = None,
) -> None:
    """Measure a part of the round, one cell after the other, in this process, on some cores or all that it may use.

    Raises:
        KeyboardInterrupt: after the interrupted cell's record was saved.
    """
    work, todo = current(results_dir, sweep_id)
    wanted = set(cell_ids)
    interrupts = Interrupts()
    work = dataclasses.replace(work, saving=interrupts.held_back)
    with interrupts.caught():
        for cell in todo:
            if cell.cell_id in wanted:
                work.measure(cell, cores=cores)


def _file(results_dir: Path, sweep_id: str) -> Path:
    return results_dir / plans.FOLDER / sweep_id / FILE
