"""The suite to launchers and sweepers from elsewhere: a sweeper for experiments' grids, a launcher of whole sweeps.

Hydra loads plugins from the package `hydra_plugins` only, and scans it in every program that uses Hydra: what takes
long to import is imported when it is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from bench.plan.executors import EXECUTORS


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
    """Runs all jobs together, so that a mistake anywhere stops the sweep before it starts."""

    def __init__(self, **settings: Any) -> None:
        """Take what the configuration says of an executor; the sweep itself checks and uses it."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what `launch` needs."""
        self.task_function, self.config = task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs as one sweep."""
        from bench.launchers import Job

        assert isinstance(self.task_function, Job)
        returned = self.task_function.together(self.config.hydra.overrides.hydra, job_overrides)
        # Sweepers write there what they have found.
        Path(self.config.hydra.sweep.dir).mkdir(parents=True, exist_ok=True)
        return returned


# Scanning the package registers the classes; these names let a configuration choose them.
_target = f"{CellLauncher.__module__}.{CellLauncher.__qualname__}"
for _name, _settings in EXECUTORS.items():
    _node = {"_target_": _target, "executor": _name, **dataclasses.asdict(_settings())}
    ConfigStore.instance().store(group="hydra/launcher", name=_name, node=_node, provider="bench")
_node = {"_target_": f"{GridSweeper.__module__}.{GridSweeper.__qualname__}"}
ConfigStore.instance().store(group="hydra/sweeper", name="grids", node=_node, provider="bench")
