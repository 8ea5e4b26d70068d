"""The command line, from Python."""

from __future__ import annotations

from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from bench.execution.sweep import plan, run_sweep
from bench.plan.compose import CONF, compose_jobs, expand, grid_choices
from bench.records.record import Record
from hydra_plugins.cell_sweeps import register


def run(overrides: Sequence[str] = ()) -> list[Record]:
    """Run a sweep as `python -m bench OVERRIDES` does, and return the record of each cell.

    Raises:
        ConfigError: a configuration that cannot be run, before anything is measured.
    """

    def load(job: list[str]) -> DictConfig:
        return compose("config", job, return_hydra_config=True)

    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        grids = compose("config", grid_choices(overrides))
        composed = compose_jobs(load, expand(grids, overrides))
    return run_sweep(plan(composed, overrides))
