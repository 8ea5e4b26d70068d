"""One cell after the other, from this process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bench.execution.executors import Watch
from bench.execution.work import Work
from bench.plan.cell import Cell
from bench.plan.executors import Cells


def require_usable(settings: Cells, todo: Sequence[Cell]) -> None:
    """It always is."""


def run(settings: Cells, work: Work, todo: Sequence[Cell], watch: Watch) -> None:
    """Measure in turn."""
    for cell in todo:
        try:
            work.measure(cell, partial(watch.told, cell), started=partial(watch.started, cell))
        finally:
            watch.ended(cell)
