"""`dry_run=true`: what a command would measure, and how long that may take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from bench.common.errors import bounded
from bench.execution.precheck import check_cells
from bench.execution.sweep import Sweep, outstanding
from bench.plan.cell import Cell
from bench.records.plans import OF_SIZE, Durations, duration
from bench.records.summary import Results

# Lines of cells; those that differ in a pass or a seed, say, share one.
MOST = 50


def preview(sweep: Sweep) -> str:
    """The cells that are missing and the time that they may take; nothing is measured, nothing written.

    Raises:
        ConfigError: a cell that a mechanism or the inputs refuse.
    """
    store = Results(sweep.settings.results_dir)
    attempts = store.of_cells(cell.cell_id for cell in sweep.cells)
    missing, _ = outstanding(store, sweep, attempts)
    missing = check_cells(missing, store.root / "inputs", elsewhere=bool(sweep.executor.resources.name))
    ended = [record for record in store.load() if record.status == "ok"]
    durations = Durations((record.config, record.duration_s) for record in ended)
    expected = [(cell, durations.expected(cell.config, OF_SIZE)) for cell in missing]
    done = len(sweep.cells) - len(missing)
    lines = [f"sweep {sweep.sweep_id}: {len(sweep.cells)} cells, {done} done already, {len(missing)} to measure"]
    counts = Counter(f"{cell.title}: {_words(cell, seconds)}" for cell, seconds in expected)
    lines += [f"  {f'{count} x ' if count > 1 else ''}{words}" for words, count in list(counts.items())[:MOST]]
    lines += [f"  ... and {len(counts) - MOST} kinds more"] if len(counts) > MOST else []
    return "\n".join(map(bounded, [*lines, *_total(expected)]))


def _words(cell: Cell, seconds: float | None) -> str:
    if cell.unsupported:
        return f"unsupported, {cell.unsupported}"
    if seconds is not None:
        return f"about {duration(seconds)}"
    return f"from {duration(_least(cell))} to its timeout of {duration(cell.timeout)}"


def _least(cell: Cell) -> float:
    """The seconds of its samples alone, where the benchmark says how long one is."""
    return cell.config["repeats"] * float(cell.config["bench"].get("min_sample_ms") or 0.0) / 1000


def _total(expected: Sequence[tuple[Cell, float | None]]) -> Iterator[str]:
    known = [seconds for cell, seconds in expected if seconds is not None and not cell.unsupported]
    unknown = [cell for cell, seconds in expected if seconds is None and not cell.unsupported]
    if known:
        yield f"time: about {duration(sum(known))} for {len(known)} cells in turn, as others of their sizes took"
    if unknown:
        least, most = sum(map(_least, unknown)), sum(cell.timeout for cell in unknown)
        bounds = f"from {duration(least)} (their samples alone) to {duration(most)} (their timeouts)"
        yield f"time: {bounds} for {len(unknown)} cells in turn, of whose sizes there is no record"
