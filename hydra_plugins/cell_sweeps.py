"""How Hydra hands over: the sweeper expands an experiment's grids, the launcher composes all cells and runs them.

Hydra loads plugins from the package `hydra_plugins` only, and scans it in every program that uses Hydra: what takes
long to import is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class GridSweeper(Sweeper):
    """Every combination of the swept values; under an experiment, those of each of its grids."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what `sweep` needs."""
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Launch all jobs at once."""
        from bench.plan.compose import expand

        assert self.launcher is not None and self.config is not None
        return self.launcher.launch(expand(self.config, arguments), initial_job_idx=0)


class CellLauncher(Launcher):
    """Composes all jobs first, so that a mistake anywhere stops the sweep before it starts; then runs them."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what `launch` needs."""
        self.hydra_context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the sweep; ends the process with its exit code."""
        from bench.execution.sweep import exit_code, plan, require_any_supported, run_sweep
        from bench.plan.compose import compose_jobs
        from bench.records.table import crossovers, table

        def load(overrides: list[str]) -> DictConfig:
            return self.hydra_context.config_loader.load_sweep_config(self.config, overrides)

        records = run_sweep(plan(compose_jobs(load, job_overrides), self.config.hydra.overrides.task))
        require_any_supported(records)
        print("\n".join([table(records), *crossovers(records)]))
        raise SystemExit(exit_code(records))


def register() -> None:
    """Make both known to Hydra, as `hydra/launcher=cells` and `hydra/sweeper=grids`."""
    store = ConfigStore.instance()
    for group, name, plugin in (("launcher", "cells", CellLauncher), ("sweeper", "grids", GridSweeper)):
        Plugins.instance().register(plugin)
        node = {"_target_": f"{plugin.__module__}.{plugin.__qualname__}"}
        store.store(group=f"hydra/{group}", name=name, node=node, provider="bench")
