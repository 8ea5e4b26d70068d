"""`python -m bench.status [SWEEP]`: which cells of a sweep are done, running, waiting and failed, whoever runs it.

Exit code: 0 if all cells are measured and fine, 1 if all are measured and some failed, 2 if there is no such sweep,
3 while cells wait or run. An interrupted cell waits.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from bench.common import signals
from bench.common.errors import ConfigError, Parser, bounded, named_path, one_line
from bench.execution.locks import holder
from bench.measures.progress import Progress
from bench.records import plans
from bench.records.plans import Durations, SavedCell, SavedPlan, duration
from bench.records.record import FAILED
from bench.records.store import Store, latest
from bench.records.summary import Results
from bench.records.table import settings_apart

INTERVAL_S = 2.0
# Only the first of the running and failed cells are listed.
MOST = 20
FINE, FAILURES, REFUSED, UNFINISHED = 0, 1, 2, 3


class Running(NamedTuple):
    """A cell that is being measured: for how many seconds, by its machine's clock, and a line about it."""

    cell: SavedCell
    seconds: float | None
    text: str


class State:
    """The state of a sweep at this moment."""

    def __init__(self, store: Store, plan: SavedPlan) -> None:
        self.plan = plan
        told = zip(plan.cells, settings_apart([cell.config for cell in plan.cells]), strict=True)
        self.titles = {cell.cell_id: " ".join(filter(None, (cell.title, apart))) for cell, apart in told}
        # Before the records: a cell that ends now is not waiting.
        self.running = list(_running(store, plan.cells, self.titles))
        records = store.of_cells(cell.cell_id for cell in plan.cells)
        before = plans.measured_before(store.root, plan.sweep_id) if plan.settings.get("rerun") == "all" else None
        newest = latest(record for record in records if record.record_id not in (before or ()))
        standing = {cell_id: record for cell_id, record in newest.items() if record.status != "interrupted"}
        busy = {running.cell.cell_id for running in self.running}
        idle = [cell for cell in plan.cells if cell.cell_id not in busy]
        self.waiting = [cell for cell in idle if cell.cell_id not in standing]
        self.ended = [(cell, standing[cell.cell_id]) for cell in idle if cell.cell_id in standing]
        self.failed = [(cell, record) for cell, record in self.ended if record.status in FAILED]

    @property
    def code(self) -> int:
        """The exit code."""
        return UNFINISHED if self.waiting or self.running else FAILURES if self.failed else FINE

    def counts(self) -> str:
        """The number of cells in each state, in one line."""
        statuses = Counter(record.status for _, record in self.ended if record.status not in FAILED)
        done = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
        return (
            f"{len(self.plan.cells)} cells: {statuses.total()} done{f' ({done})' if done else ''},"
            f" {len(self.failed)} failed, {len(self.running)} running, {len(self.waiting)} waiting"
        )

    def seconds_left(self) -> float | None:
        """The expected seconds until all cells are measured, from similar cells that are done; None if unknown."""
        took = [(cell.config, record.duration_s) for cell, record in self.ended if record.status != "unsupported"]
        if not self.running or not took:
            return None
        expected = Durations(took).expected
        left = sum(expected(cell.config) or 0.0 for cell in self.waiting)
        left += sum(max(0.0, (expected(each.cell.config) or 0.0) - (each.seconds or 0.0)) for each in self.running)
        return left / len(self.running)


def _running(store: Store, cells: Iterable[SavedCell], titles: Mapping[str, str]) -> Iterator[Running]:
    """The cells that are being measured: those with a scratch folder and a held lock."""
    folder = store.root / "scratch"
    with contextlib.suppress(OSError):
        started = {path.name for path in folder.iterdir()}
        for cell in cells:
            name = cell.cell_id[:16]
            if name in started and (held := holder(store.root / "locks" / f"{name}.lock")) is not None:
                seconds, progress = None, ""
                with contextlib.suppress(ValueError, TypeError):  # another user may have written anything
                    began = datetime.fromisoformat(str(held.get("started")))
                    seconds = max(0.0, (datetime.now(UTC) - began).total_seconds())
                # The file may be missing or half written.
                with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
                    progress = Progress.decode((folder / name / "progress").read_text()).text
                since = "" if seconds is None else f"for {duration(seconds)}"
                where = f"{titles[cell.cell_id]}: on {held.get('host', '?')}, process {held.get('pid', '?')}"
                yield Running(cell, seconds, ", ".join(filter(None, (where, _job(held.get("job")), since, progress))))


def _job(job: object) -> str:
    """The job's name, with the number that the scheduler's commands take."""
    if not isinstance(job, Mapping):
        return ""
    number = f"{job['array']}_{job.get('task', '?')}" if "array" in job else job.get("id", job.get("task_id"))
    return f"{job.get('scheduler')} job {number}"


def report(state: State) -> str:
    """The text that is printed about a sweep."""
    command = shlex.join(["python", "-m", "bench", *state.plan.overrides])
    lines = [f"sweep {state.plan.sweep_id}: {command}", state.counts()]
    if state.code == UNFINISHED:
        left = state.seconds_left()
        lines.append(f"time left: {'unknown' if left is None else f'about {duration(left)}'}")
    reasons = ((cell.cell_id, ", ".join(filter(None, (r.status, r.reason)))) for cell, r in state.failed)
    failed = [f"{state.titles[cell_id]}: {why}" for cell_id, why in reasons]
    for kind, each in {"running": [running.text for running in state.running], "failed": failed}.items():
        lines += [f"{kind:8} {text}" for text in each[:MOST]]
        if len(each) > MOST:
            lines.append(f"{kind:8} ... and {len(each) - MOST} more")
    return "\n".join(bounded(line, 1000) for line in lines)


def watch(store: Store, plan: SavedPlan, once: bool = False) -> int:
    """Print the state until all is measured; in a log file only when it changes. Returns the exit code."""
    store.decode = functools.cache(store.decode)  # type: ignore[method-assign]  # cached, since records never change
    shown = ""
    while True:
        state = State(store, plan)
        if sys.stdout.isatty() and not once:
            print(f"\033[H\033[J{report(state)}", flush=True)
        elif (counts := state.counts()) != shown:
            print(report(state), flush=True)
            shown = counts
        if once or state.code != UNFINISHED:
            return state.code
        time.sleep(INTERVAL_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="python -m bench.status", description=__doc__, formatter_class=form)
    parser.add_argument("sweep", nargs="?", default="", help="its id, or how that begins; default: the newest")
    parser.add_argument("--results", type=named_path, default=Path("runs"), metavar="DIR", help="default: runs")
    parser.add_argument("--watch", action="store_true", help="until all is measured, every two seconds")
    parser.add_argument("--all", action="store_true", help="the counts of all sweeps")
    options = parser.parse_args(arguments)
    try:
        store = Results(options.results)
        if options.all and not store.root.is_dir():
            raise ConfigError(f"--results={str(store.root)!r}: is no folder; must be a results folder, such as runs")
        for sweep_id in plans.saved(store.root) if options.all else ():
            try:
                print(f"{sweep_id}  {State(store, plans.load(store.root, sweep_id)).counts()}")
            except ConfigError as error:
                print(bounded(str(error)))
        return FINE if options.all else watch(store, plans.find(options.results, options.sweep), once=not options.watch)
    except (ConfigError, OSError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return REFUSED


if __name__ == "__main__":
    sys.exit(signals.run(main))
