"""Shared by `bench.run` and the commands: from overrides to a sweep, its MLflow mirror, figures and table."""

import importlib.util
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from omegaconf import OmegaConf

from bench.common.errors import ConfigError, one_line
from bench.execution.dry_run import dry_run
from bench.execution.ranks import follows
from bench.execution.sweep import Sweep, plan, run_sweep
from bench.plan import executors
from bench.plan.compose import compose_jobs, expand, grid_choices
from bench.plan.data import shown
from bench.plan.load import Loader, explained
from bench.records import plans
from bench.records.record import FAILED, Record
from bench.records.table import crossovers, table
from bench.tracking.tracker import Tracker, require_usable

__all__ = ["exit_code", "launch", "planned", "print_table", "run", "say_figures"]


def run(overrides: Sequence[str] = (), config_dir: str | None = None) -> list[Record]:
    """Run a sweep like `python -m bench --config-dir CONFIG_DIR OVERRIDES`, and return the record of each cell.

    Raises `ConfigError`, before anything is measured, for a configuration that cannot run.
    """
    if isinstance(overrides, str):  # its letters would be read as overrides
        raise ConfigError(f"overrides={shown(overrides)}: must be a list, such as ['attention=flash', 'seq_len=512']")
    return launch(planned(Loader(config_dir), overrides))


def planned(loader: Loader, overrides: Sequence[str]) -> Sweep:
    """The sweep for a command line; raises `ConfigError` if it cannot run."""
    with explained():
        config = loader.load(grid_choices(overrides))
        jobs = expand(config, overrides)
        executor = executors.check(OmegaConf.to_container(config.hydra.launcher))
        return plan(compose_jobs(loader.load, jobs), overrides, executor)


def launch(sweep: Sweep, show: Callable[[Sequence[Record]], None] = lambda records: None) -> list[Record]:
    """Run a sweep, mirror it, and return the record of each cell; `show` gets them before figures are drawn."""
    if sweep.settings.dry_run:
        said, refused = dry_run(sweep)
        print(said)
        if refused:
            raise refused
        require_usable(sweep.settings)
        return []
    if follows():
        return run_sweep(sweep)
    # The table comes before the figures, which take long and may fail.
    tracker = Tracker(sweep.settings)
    records = run_sweep(sweep, tracker.sync if tracker.mirror else None, tracker.follow)
    show(records)
    figures = _figures(sweep, records) if tracker.wants_summary(records) else []
    tracker.finish(sweep.sweep_id, records, figures)
    return records


def print_table(records: Sequence[Record]) -> None:
    """Print a sweep's table and crossovers; raises `ConfigError` with the reason if no cell could be built."""
    if all(record.status == "unsupported" and record.phase == "setup" for record in records):
        raise ConfigError(records[0].reason)
    print("\n".join([table(records), *crossovers(records)]), flush=True)


def exit_code(records: Sequence[Record]) -> int:
    """The exit code: 1 if a cell crashed, was incorrect or did not finish, else 0."""
    return int(any(record.status in FAILED for record in records))


def say_figures(sweep: Sweep) -> None:
    """Print the command that draws the figures; only of this sweep, if its plan was saved."""
    known = sweep.sweep_id in plans.saved(Path(sweep.settings.results_dir))
    chosen = f" --sweep {sweep.sweep_id}" if known else ""
    print(f"figures: python -m analysis figures --results {shlex.quote(sweep.settings.results_dir)}{chosen}")


def _figures(sweep: Sweep, records: Sequence[Record]) -> list[Path]:
    if importlib.util.find_spec("seaborn") is None:
        return []
    # The only place where the suite imports `analysis`, which takes seconds and may not be installed.
    import analysis

    results_dir = Path(sweep.settings.results_dir)
    folder = results_dir / "sweeps" / sweep.sweep_id
    try:
        return analysis.draw(results_dir, folder, {record.cell_id for record in records})
    # Whatever a plotting library raises, the measurements are done.
    except Exception as error:
        print(f"warning: figures of the sweep: {one_line(error)}; the records are safe", file=sys.stderr)
        return []
