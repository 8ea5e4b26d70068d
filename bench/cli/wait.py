"""`python -m bench.cli.wait SWEEP`: waits for a sweep's jobs on other nodes, and ends as `python -m bench` would."""

from __future__ import annotations

from bench.common import signals

if __name__ == "__main__":
    signals.answer(signals.leave)  # before the other imports, which take seconds

import sys
from collections.abc import Sequence
from pathlib import Path

from bench.api import exit_code, print_table, say_figures
from bench.cli.main import guarded, measure
from bench.common.errors import ConfigError, Parser
from bench.execution.executors import remote
from bench.execution.sweep import Sweep
from bench.plan import executors
from bench.plan.config import Config
from bench.records import plans
from bench.records.store import latest
from bench.records.summary import Results


def run(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code. Raises `ConfigError` for a sweep without jobs."""
    parser = Parser(prog="python -m bench.cli.wait", description=__doc__)
    parser.add_argument("sweep", help="the id that the sweep printed")
    parser.add_argument("--results", default="runs", metavar="DIR", help="its results_dir (default: %(default)s)")
    given = parser.parse_args(arguments)
    results_dir = Path(given.results)
    plan = plans.find(results_dir, given.sweep)
    executor = executors.check(plan.launcher)
    if not executor.resources.name:
        raise ConfigError(f"{plan.sweep_id}: hydra/launcher={executor.name} has no jobs; the same command waits for it")
    settings = Config({}, {}, {}, **{**plan.settings, "results_dir": given.results})
    sweep = Sweep(tuple(remote.plan_cells(plan)), settings, tuple(plan.overrides), executor)
    if remote.round_file(results_dir, sweep.sweep_id).exists():
        return measure(sweep)
    standing = latest(Results(results_dir).load())
    records = [standing[cell.cell_id] for cell in sweep.cells if cell.cell_id in standing]
    if records:
        print_table(records)
        say_figures(sweep)
    if missing := len(sweep.cells) - len(records):
        print(f"error: {missing} of {len(sweep.cells)} cells have no record, and no job", file=sys.stderr)
    return max(exit_code(records), int(missing > 0))


if __name__ == "__main__":
    sys.exit(guarded(lambda: run(sys.argv[1:])))
