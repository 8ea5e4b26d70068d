"""The command line, from Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir

from bench.record import Record
from bench.sweep import plan, run_sweep
from hydra_plugins.cell_sweeps import expand, labelled, register

CONF = Path(__file__).parents[1] / "conf"


def run(overrides: Sequence[str] = ()) -> list[Record]:
    """Run a sweep as `python -m bench OVERRIDES` does, and return the record of each cell.

    Raises:
        ConfigError: a configuration that cannot be run, before anything is measured.
    """
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        # Values that are swept over are set job by job.
        settled = [override for override in overrides if override.startswith(("experiment=", "size="))]
        jobs = expand(compose("config", settled), overrides)
        composed = [labelled(compose("config", job, return_hydra_config=True)) for job in jobs]
    return run_sweep(plan(composed, overrides))
