"""One cell after the other, from this process."""

from __future__ import annotations

from collections.abc import Sequence

from bench.execution.executors import Watch
from bench.execution.work import Work
from bench.plan.cell import Cell
from bench.plan.executors import Cells


def run(settings: Cells, work: Work, todo: Sequence[Cell], watch: Watch) -> None:
    """Measure in turn."""
    for cell in todo:
        watch.started(cell)
        try:
            work.measure(cell, lambda now, cell=cell: watch.told(cell, now))  # type: ignore[misc]
        finally:
            watch.ended(cell)
