"""How Hydra hands over: the sweeper expands an experiment's grids, the launcher composes all cells and runs them.

Hydra loads plugins from the package `hydra_plugins` only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from bench.config import ConfigError
from bench.summary import table
from bench.sweep import exit_code, plan, require_any_supported, run_sweep


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
        return self.launcher.launch(expand(self.config, arguments), initial_job_idx=0)


class CellLauncher(Launcher):
    """Composes all jobs first, so that a mistake anywhere stops the sweep before it starts; then runs them."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what `launch` needs."""
        self.hydra_context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the sweep; ends the process with its exit code."""
        load = self.hydra_context.config_loader.load_sweep_config
        composed = [labelled(load(self.config, list(overrides))) for overrides in job_overrides]
        records = run_sweep(plan(composed, self.config.hydra.overrides.task))
        require_any_supported(records)
        print(table(records))
        raise SystemExit(exit_code(records))


def expand(config: DictConfig, arguments: Sequence[str]) -> list[list[str]]:
    """The overrides of every job: each grid of `config.grids[config.size]`, crossed with the command line.

    A key on the command line replaces the grid's.
    """
    parser = OverridesParser.create()
    given = {override.key_or_group for override in parser.parse_overrides(list(arguments))}
    grids = OmegaConf.to_container(config.get("grids") or OmegaConf.create({}))
    assert isinstance(grids, dict)
    if grids and config.size not in grids:
        raise ConfigError(f"size={config.size!r}: must be one of {', '.join(map(str, grids))}")
    jobs = []
    for grid in grids[config.size] if grids else [{}]:
        swept = [f"{key}={value}" for key, value in grid.items() if key not in given]
        overrides = parser.parse_overrides([*swept, *arguments])
        jobs += BasicSweeper.split_arguments(overrides, max_batch_size=None)[0]
    return [list(job) for job in jobs]


def labelled(config: DictConfig) -> tuple[DictConfig, str]:
    """A composed configuration without Hydra's own node, and the label of its mechanism.

    The label is the name of the YAML file, and the hyperparameters that the command line changed.
    """
    changed = [
        o.removeprefix("attention.") for o in config.hydra.overrides.task if o.startswith("attention.")
    ]
    label = " ".join([config.hydra.runtime.choices.attention, *changed])
    plain = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
    return plain, label


@dataclass
class _LauncherNode:
    _target_: str = "hydra_plugins.cell_sweeps.CellLauncher"


@dataclass
class _SweeperNode:
    _target_: str = "hydra_plugins.cell_sweeps.GridSweeper"


def register() -> None:
    """Make both known to Hydra, as `hydra/launcher=cells` and `hydra/sweeper=grids`."""
    for plugin in (GridSweeper, CellLauncher):
        Plugins.instance().register(plugin)
    store = ConfigStore.instance()
    store.store(group="hydra/launcher", name="cells", node=_LauncherNode, provider="bench")
    store.store(group="hydra/sweeper", name="grids", node=_SweeperNode, provider="bench")
