"""Run the cells of a plan: in turn in this process, or by one of the modules here."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from bench.execution.executors import devices, ray, remote, slurm
from bench.execution.progress_bar import ProgressBar
from bench.execution.runner import Options, Runner
from bench.plan.cell import Cell
from bench.plan.executors import Executor

MODULES: dict[str, Any] = {"devices": devices, "ray": ray, "slurm": slurm}


def require_usable(executor: Executor, todo: Sequence[Cell]) -> None:
    """Raise `ConfigError`, before a sweep is announced, if the executor cannot run these cells here."""
    if todo and executor.name in MODULES:
        MODULES[executor.name].require_usable(executor, todo)


def run(executor: Executor, runner: Runner, todo: Sequence[Cell], callback: ProgressBar) -> None:
    """Measure every cell of `todo` once; returns when each has a new record.

    Raises:
        ConfigError: the executor cannot be used, for a reason not known before; nothing was measured.
        UnfinishedError: cells have no record, because their tasks were lost again and again.
        KeyboardInterrupt: after the records of interrupted cells were saved.
    """
    if not todo:
        remote.end(runner)
    elif executor.name in MODULES:
        MODULES[executor.name].run(executor, runner, todo, callback)
    else:
        run_in_turn(runner, todo, callback)


def run_in_turn(runner: Runner, todo: Sequence[Cell], callback: ProgressBar) -> None:
    """Measure one cell after the other, from this process."""
    for cell in todo:
        try:
            options = Options(on_progress=partial(callback.on_progress, cell))
            runner.measure(cell, options, on_start=partial(callback.on_cell_start, cell))
        finally:
            callback.on_cell_end(cell)
