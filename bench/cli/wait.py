"""`python -m bench.cli.wait SWEEP`: waits for a sweep whose jobs run elsewhere, and ends as `python -m bench` would."""

from __future__ import annotations

from bench.common import signals

if __name__ == "__main__":
    signals.answer(signals.leave)  # the other imports take seconds

import sys
from collections.abc import Sequence
from pathlib import Path

from bench.api import exit_code, launch, print_table, say_figures
from bench.cli.main import guarded
from bench.common.errors import ConfigError, Parser, one_line
from bench.execution.executors import remote
from bench.execution.sweep import Sweep
from bench.plan import executors
from bench.plan.config import Config
from bench.records import plans
from bench.records.store import latest
from bench.records.summary import Results


def run(arguments: Sequence[str]) -> int:
    """Do what the command line says; returns the exit code.

    Raises:
        ConfigError: there is no such sweep, or nobody can wait for it.
    """
    parser = Parser(prog="python -m bench.cli.wait", description=__doc__)
    parser.add_argument("sweep", help="the id that the sweep printed")
    parser.add_argument("--results", default="runs", metavar="DIR", help="its results_dir (default: %(default)s)")
    given = parser.parse_args(arguments)
    sweep = planned(given.results, given.sweep)
    if remote.round_file(Path(given.results), sweep.sweep_id).exists():
        records = launch(sweep, print_table)
        if records:
            say_figures(sweep)
        return exit_code(records)
    standing = latest(Results(given.results).load())
    records = [standing[cell.cell_id] for cell in sweep.cells if cell.cell_id in standing]
    if records:
        print_table(records)
        say_figures(sweep)
    if missing := len(sweep.cells) - len(records):
        print(f"error: {missing} of {len(sweep.cells)} cells have no record, and no job", file=sys.stderr)
    return max(exit_code(records), int(missing > 0))


def planned(results_dir: str, sweep_id: str) -> Sweep:
    """The sweep that a saved plan describes.

    Raises:
        ConfigError: there is none, or its cells are run by the process that planned them.
    """
    try:
        plan = plans.load(Path(results_dir), sweep_id)
    except plans.PlanError as error:
        raise ConfigError(one_line(error)) from None
    executor = executors.check(plan.launcher)
    if not executor.resources.name:
        raise ConfigError(f"{sweep_id}: hydra/launcher={executor.name} has no jobs; the same command waits for it")
    settings = Config({}, {}, {}, **{**plan.settings, "results_dir": results_dir})
    return Sweep(tuple(remote.plan_cells(plan)), settings, tuple(plan.overrides), executor)


if __name__ == "__main__":
    sys.exit(guarded(lambda: run(sys.argv[1:])))
