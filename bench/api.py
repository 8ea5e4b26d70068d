"""The front doors' common floor: from overrides to a sweep, its mirror, its figures and its table."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from bench.errors import one_line
from bench.execution.sweep import Sweep, exit_code, plan, require_any_supported, run_sweep
from bench.plan.compose import CONF, compose_jobs, expand, grid_choices
from bench.records.record import Record
from bench.table import crossovers, table
from bench.tracking.tracker import Tracker

__all__ = ["exit_code", "expand", "launch", "print_table", "run"]


def run(overrides: Sequence[str] = ()) -> list[Record]:
    """Run a sweep as `python -m bench OVERRIDES` does, and return the record of each cell.

    Raises:
        ConfigError: a configuration that cannot be run, before anything is measured.
    """

    def load(job: list[str]) -> DictConfig:
        return compose("config", job, return_hydra_config=True)

    with initialize_config_dir(str(CONF), version_base="1.3"):
        grids = compose("config", grid_choices(overrides))
        composed = compose_jobs(load, expand(grids, overrides))
    return _run(plan(composed, overrides))


def launch(
    load: Callable[[list[str]], DictConfig],
    jobs: Sequence[Sequence[str]],
    overrides: Sequence[str],
    show: Callable[[Sequence[Record]], None] = lambda records: None,
) -> list[Record]:
    """Run the jobs of a command line as one sweep, and return the record of each cell.

    Args:
        load: composes a configuration, with Hydra's own node, from overrides.
        jobs: the overrides of each job.
        overrides: the command line, for the records.
        show: gets the records as soon as all are there.

    Raises:
        ConfigError: a configuration that cannot be run, before anything is measured.
    """
    return _run(plan(compose_jobs(load, jobs), overrides), show)


def print_table(records: Sequence[Record]) -> None:
    """Print a sweep's table and crossovers.

    Raises:
        ConfigError: the reason why none of its cells could be built.
    """
    require_any_supported(records)
    print("\n".join([table(records), *crossovers(records)]), flush=True)


def _run(sweep: Sweep, show: Callable[[Sequence[Record]], None] = lambda records: None) -> list[Record]:
    # The table comes before the figures, which take long and may fail.
    tracker = Tracker(sweep.settings)
    records = run_sweep(sweep, tracker.sync)
    show(records)
    if tracker.wants_summary(records):
        tracker.finish(sweep.sweep_id, records, _figures(sweep, records))
    return records


def _figures(sweep: Sweep, records: Sequence[Record]) -> list[Path]:
    if importlib.util.find_spec("seaborn") is None:
        return []
    import analysis

    results_dir = Path(sweep.settings.results_dir)
    folder = results_dir / "sweeps" / sweep.sweep_id
    try:
        return analysis.figures(results_dir, folder, {record.cell_id for record in records})
    # Whatever a drawing library raises, the measurements are done.
    except Exception as error:
        print(f"warning: figures of the sweep: {one_line(error)}; the records are safe", file=sys.stderr)
        return []
