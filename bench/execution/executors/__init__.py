"""How the cells of a plan are run: one module for each of `bench.plan.executors`, with `require_usable` and `run`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

from bench.execution.work import Work
from bench.measures.progress import Progress
from bench.plan.cell import Cell
from bench.plan.executors import Executor


class Watch(Protocol):
    """Who is told how a sweep goes, always from the thread that runs it."""

    def started(self, cell: Cell) -> None:
        """A cell is being measured."""

    def told(self, cell: Cell, now: Progress) -> None:
        """How far it is."""

    def ended(self, cell: Cell) -> None:
        """It has a record more."""


def require_usable(executor: Executor, todo: Sequence[Cell]) -> None:
    """See, before a sweep is announced, that the executor can run these cells here.

    Raises:
        ConfigError: it cannot.
    """
    if todo:
        _module(executor).require_usable(executor, todo)


def run(executor: Executor, work: Work, todo: Sequence[Cell], watch: Watch) -> None:
    """Have every cell of `todo` measured once; returns when each has a record that it had not before.

    Raises:
        ConfigError: the executor cannot be used, which was not to be known before; nothing is measured then.
        UnfinishedError: cells have no record, because what ran them was lost again and again.
        KeyboardInterrupt: after the records of what was interrupted are saved.
    """
    _module(executor).run(executor, work, todo, watch)


def _module(executor: Executor) -> Any:
    return importlib.import_module(f"{__name__}.{executor.name}")
