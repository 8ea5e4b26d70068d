"""`dry_run=true`: what a sweep would measure, and how long that may take."""

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.common.errors import ConfigError, bounded
from bench.execution import executors, ranks
from bench.execution.precheck import check_cells
from bench.execution.sweep import Sweep, attempts_of, pending, to_make
from bench.plan.cell import Cell
from bench.records import own
from bench.records.plans import OF_SIZE, Durations, duration
from bench.records.summary import Results

PUBLISHED = Path(__file__).parents[2] / "results"
"""The records that a clone comes with, of another machine; an installed package has none."""
# The configuration of a cell that was measured, and how many seconds it took.
Took = tuple[Mapping[str, Any], float]
# Most lines of cells; those with the same title and time, which differ in the seed, say, share a line.
MOST = 50


def dry_run(sweep: Sweep, published: Path = PUBLISHED) -> tuple[str, ConfigError | None]:
    """List the cells to measure and the time that they may take; measure and write nothing.

    A cell takes as long as cells of its size took: those of the sweep's own folder, else those of `published`, without
    the time in which other programs had their cores.

    Returns:
        The list, and why the sweep cannot start here, such as data that are missing, or has nothing to measure; None if
        it can. If data are missing, what a mechanism does not support is among the cells to measure.
    """
    store, refused = Results(sweep.settings.results_dir), None
    cells, _ = pending(store, sweep, attempts_of(store, sweep))
    try:
        ranks.require_joint(cells, sweep.executor.name)
        executors.require_usable(sweep.executor, cells)
        cells = check_cells(cells, store.root / "inputs", elsewhere=bool(sweep.executor.resources.name))
        own.check(store.root, own.RESULTS, "results_dir")
    except ConfigError as error:
        refused = error
    todo = [cell for cell in cells if not cell.unsupported]
    if refused is None and not todo and len(cells) == len(sweep.cells):  # as the sweep itself would say at its end
        refused = ConfigError(cells[0].unsupported)
    here = _expected(todo, [(record.config, record.duration_s) for record in store.load() if record.status == "ok"])
    others = [cell for cell in todo if cell.cell_id not in here]
    took = list(_published(published)) if others else []
    there = _expected(others, took)
    unknown = [cell for cell in others if cell.cell_id not in there]
    done = len(sweep.cells) - len(cells)
    never = f", {len(cells) - len(todo)} unsupported" * (len(todo) < len(cells))
    lines = [f"sweep {sweep.sweep_id}: {len(sweep.cells)} cells, {done} done already, {len(todo)} to measure{never}"]
    lines += _counted(f"{cell.title}: {_words(cell, here, there)}" for cell in cells)
    lines += to_make(cells, store)
    for expected, machine in ((here, ""), (there, f" on the machine of {published.name}/")):
        if expected:
            about = f"about {duration(sum(expected.values()))} for {len(expected)} cells in turn"
            lines.append(f"time: {about}, as others of their sizes took{machine}")
    if unknown:
        least, most = sum(map(_least, unknown)), sum(cell.timeout for cell in unknown)
        bounds = _between(least, most, " (their samples alone)", "their timeouts")
        lines.append(f"time: {bounds} for {len(unknown)} cells in turn, of whose sizes there is no record")
        lines += _other_sizes(unknown, took, published.name)
    return "\n".join(map(bounded, lines)), refused


def _published(folder: Path) -> Iterator[Took]:
    """The configuration and the quiet seconds of each ok cell below a folder; reads no samples, which takes seconds."""
    for path in folder.glob("*/records/*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # somebody may have edited it
            fields = json.loads(path.read_bytes())
            if fields["status"] == "ok":
                others_s = fields["host_state"].get("during", {}).get("others_s", 0.0)
                yield fields["config"], fields["duration_s"] - others_s / fields["numerics"]["threads"]


def _other_sizes(cells: Sequence[Cell], took: Sequence[Took], machine: str) -> Iterator[str]:
    """How long other sizes of the cells' benchmarks took, a line for each benchmark that has records."""
    for bench in sorted({cell.config["bench"]["name"] for cell in cells}):
        if known := sorted(seconds for config, seconds in took if config["bench"]["name"] == bench):
            least, middle, most = (duration(known[place]) for place in (0, len(known) // 2, -1))
            each = f"{least} to {most} each (median {middle})"
            yield f"  others of bench={bench} took {each} on the machine of {machine}/"


def _expected(cells: Sequence[Cell], took: Iterable[Took]) -> dict[str, float]:
    """The expected seconds of those cells, by their ids, of whose sizes there are records."""
    durations = Durations(took)
    expected = {cell.cell_id: durations.expected(cell.config, OF_SIZE) for cell in cells}
    return {cell_id: seconds for cell_id, seconds in expected.items() if seconds is not None}


def _words(cell: Cell, here: dict[str, float], there: dict[str, float]) -> str:
    if cell.unsupported:
        return f"unsupported, {cell.unsupported}"
    seconds = here.get(cell.cell_id, there.get(cell.cell_id))
    if seconds is None:
        return _between(_least(cell), cell.timeout, "", "its timeout")
    beyond = f", longer than its timeout of {duration(cell.timeout)}" if seconds > cell.timeout else ""
    return f"about {duration(seconds)}{beyond}"


def _between(least: float, most: float, what: str, limit: str) -> str:
    end = f"{duration(most)} ({limit})"
    return f"unknown, at most {end}" if least < 1 else f"from {duration(least)}{what} to {end}"


def _least(cell: Cell) -> float:
    """The seconds of the samples alone, if the benchmark sets the duration of one."""
    return cell.config["repeats"] * float(cell.config["bench"].get("min_sample_ms") or 0.0) / 1000


def _counted(lines: Iterable[str]) -> list[str]:
    """Each line once, with how often it came; at most `MOST`."""
    counts = Counter(lines)
    counted = [f"  {f'{count} x ' if count > 1 else ''}{line}" for line, count in counts.items()]
    return counted if len(counted) <= MOST else [*counted[:MOST], f"  ... and {len(counts) - MOST} kinds more"]
