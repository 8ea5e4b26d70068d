"""`python -m bench.status [SWEEP]`: what of a sweep is done, running, waiting and failed, whoever runs it.

Exit code: 0 when all is measured and fine, 1 when all is measured and cells have failed, 2 when there is no such sweep,
3 while cells wait or run.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.common import signals
from bench.common.errors import Parser, bounded, named_path, one_line
from bench.execution.locks import holder
from bench.measures.progress import Progress
from bench.measures.summary import Results
from bench.records import index, plans
from bench.records.durations import Durations, duration
from bench.records.plans import PlanError, SavedCell, SavedPlan
from bench.records.record import FAILED
from bench.records.store import Store, latest

INTERVAL_S = 2.0
# Lines of a kind.
MOST = 20
FINE, FAILURES, REFUSED, UNFINISHED = 0, 1, 2, 3


@dataclass(frozen=True)
class Running:
    """A cell that a process measures now."""

    cell: SavedCell
    holder: Mapping[str, Any]
    """What its lock says; another user may have written anything."""
    progress: str

    @property
    def seconds(self) -> float | None:
        """Since when, by the clock of its machine."""
        try:
            began = datetime.fromisoformat(str(self.holder.get("started")))
            return max(0.0, (datetime.now(UTC) - began).total_seconds())
        except (ValueError, TypeError):
            return None


class State:
    """A sweep at this moment.

    Args:
        store: of the results folder.
        plan: of the sweep.
    """

    def __init__(self, store: Store, plan: SavedPlan) -> None:
        self.store, self.plan = store, plan
        self.running = list(_running(store, plan.cells))  # first: what ends meanwhile is not taken for waiting
        standing = latest(index.entries(store))
        busy = {running.cell.cell_id for running in self.running}
        idle = [cell for cell in plan.cells if cell.cell_id not in busy]
        self.ended = {cell.cell_id: standing[cell.cell_id] for cell in idle if cell.cell_id in standing}
        self.waiting = [cell for cell in idle if cell.cell_id not in standing]
        self.failed = [cell for cell in idle if cell.cell_id in standing and standing[cell.cell_id].status in FAILED]

    @property
    def code(self) -> int:
        """The exit code that says it."""
        if self.waiting or self.running:
            return UNFINISHED
        return FAILURES if self.failed else FINE

    def counts(self) -> str:
        """In one line."""
        statuses = Counter(entry.status for entry in self.ended.values() if entry.status not in FAILED)
        done = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
        parts = [
            f"{len(self.plan.cells)} cells: {statuses.total()} done{f' ({done})' if done else ''}",
            f"{len(self.failed)} failed",
            f"{len(self.running)} running",
            f"{len(self.waiting)} waiting",
        ]
        return ", ".join(parts)

    def seconds_left(self) -> float | None:
        """As the cells took that are done: those of the same mechanism, benchmark and length, else the most alike."""
        if not self.running:
            return None if self.waiting else 0.0
        ended = [(cell.config, self.ended[cell.cell_id]) for cell in self.plan.cells if cell.cell_id in self.ended]
        took = [(config, entry.duration_s) for config, entry in ended if entry.status != "unsupported"]
        if not took:
            return None
        expected = Durations(took).expected
        left = sum(expected(cell.config) or 0.0 for cell in self.waiting)
        left += sum(max(0.0, (expected(each.cell.config) or 0.0) - (each.seconds or 0.0)) for each in self.running)
        return left / len(self.running)


def _running(store: Store, cells: Iterable[SavedCell]) -> Iterator[Running]:
    """The cells that are being measured: they have a folder for that, and their lock is held."""
    folder = store.root / "scratch"
    with contextlib.suppress(OSError):
        started = {path.name for path in folder.iterdir()}
        for cell in cells:
            name = cell.cell_id[:16]
            if name in started and (held := holder(store.root / "locks" / f"{name}.lock")) is not None:
                yield Running(cell, held, _progress(folder / name / "progress"))


def _progress(file: Path) -> str:
    try:
        return Progress.decode(file.read_text()).text
    except (OSError, ValueError, TypeError, AttributeError):  # not there yet, or half of it
        return ""


def report(state: State) -> str:
    """What is printed of a sweep."""
    plan = state.plan
    lines = [f"sweep {plan.sweep_id}: {shlex.join(['python', '-m', 'bench', *plan.overrides])}", state.counts()]
    if state.code == UNFINISHED:
        left = state.seconds_left()
        lines.append(f"time left: {'unknown' if left is None else f'about {duration(left)}'}")
    lines += _first("running", [_line_of_running(running) for running in state.running[:MOST]], len(state.running))
    reasons = [f"{cell.title}: {_reason(state, cell)}" for cell in state.failed[:MOST]]
    lines += _first("failed", reasons, len(state.failed))
    return "\n".join(bounded(line, 1000) for line in lines)


def _first(kind: str, lines: Sequence[str], count: int) -> Iterator[str]:
    yield from (f"{kind:8} {line}" for line in lines)
    if count > len(lines):
        yield f"{kind:8} ... and {count - len(lines)} more"


def _line_of_running(running: Running) -> str:
    held, seconds = running.holder, running.seconds
    words = [
        f"{running.cell.title}: on {held.get('host', '?')}, process {held.get('pid', '?')}",
        _job(held.get("job")),
        seconds is not None and f"for {duration(seconds)}",
        running.progress,
    ]
    return ", ".join(str(word) for word in words if word)


def _job(job: object) -> str | None:
    """A scheduler's number for it, as its own commands take it."""
    if not isinstance(job, Mapping):
        return None
    number = f"{job['array']}_{job.get('task', '?')}" if "array" in job else job.get("id", job.get("task_id"))
    return f"{job.get('scheduler')} job {number}"


def _reason(state: State, cell: SavedCell) -> str:
    """The record's own words."""
    entry = state.ended[cell.cell_id]
    records = state.store.read([entry.file_name])
    return f"{entry.status}, {records[0].reason}" if records and records[0].reason else entry.status


def find(results_dir: Path, wanted: str) -> SavedPlan:
    """The plan of the sweep whose id begins so; without a beginning, the newest.

    Raises:
        PlanError: there is none, several begin so, or it cannot be read.
    """
    found = [sweep_id for sweep_id in plans.saved(results_dir) if sweep_id.startswith(wanted)]
    if not found:
        which = f"{wanted}: the id of no sweep" if wanted else "no sweep"
        raise PlanError(f"{which} in {results_dir / plans.FOLDER}")
    if wanted and len(found) > 1:
        raise PlanError(f"{wanted}: several sweeps begin so: {', '.join(sorted(found)[:10])}")
    return plans.load(results_dir, found[0])


def watch(store: Store, plan: SavedPlan) -> int:
    """Print how it goes until all is measured; into a log file, only what has changed."""
    shown, terminal = "", sys.stdout.isatty()
    while True:
        state = State(store, plan)
        now = report(state) if terminal else state.counts()
        if terminal:
            print(f"\033[H\033[J{now}", flush=True)
        elif now != shown:
            print(report(state), flush=True)
        shown = now
        if state.code != UNFINISHED:
            return state.code
        time.sleep(INTERVAL_S)


def _list(results_dir: Path) -> int:
    """A line for each sweep, the newest first."""
    store = Results(results_dir)
    for sweep_id in plans.saved(results_dir):
        try:
            print(f"{sweep_id}  {State(store, plans.load(results_dir, sweep_id)).counts()}")
        except PlanError as error:
            print(bounded(str(error)))
    return FINE


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is asked for; returns the exit code."""
    parser = Parser(
        prog="python -m bench.status",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sweep", nargs="?", default="", help="its id, or how that begins; default: the newest")
    parser.add_argument("--results", type=named_path, default=Path("runs"), metavar="DIR", help="default: runs")
    parser.add_argument("--watch", action="store_true", help="until all is measured, every two seconds")
    parser.add_argument("--all", action="store_true", help="the counts of all sweeps")
    given = parser.parse_args(arguments)
    try:
        if given.all:
            return _list(given.results)
        plan, store = find(given.results, given.sweep), Results(given.results)
        if given.watch:
            return watch(store, plan)
        state = State(store, plan)
        print(report(state))
        return state.code
    except (PlanError, OSError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return REFUSED


if __name__ == "__main__":
    sys.exit(signals.run(main))
