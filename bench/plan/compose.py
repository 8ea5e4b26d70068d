"""From the command line to the configuration of every cell."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf

from bench.plan.config import ConfigError

CONF = Path(__file__).parents[2] / "conf"
NOT_OF_A_CELL = ("hydra", "grids")


def expand(config: DictConfig, arguments: Sequence[str]) -> list[list[str]]:
    """The overrides of every job: each grid of `config.grids[config.size]`, crossed with the command line.

    A key on the command line replaces the grid's.

    Raises:
        ConfigError: the experiment has no such size.
    """
    parser = OverridesParser.create()
    given = {override.key_or_group for override in parser.parse_overrides(list(arguments))}
    grids = OmegaConf.to_container(config.get("grids") or OmegaConf.create({}))
    assert isinstance(grids, dict)
    if grids and config.size not in grids:
        raise ConfigError(f"size={config.size!r}: must be one of {', '.join(map(str, grids))}")
    jobs: dict[tuple[str, ...], None] = {}  # grids that the command line made equal give a job once
    for grid in grids[config.size] if grids else [{}]:
        swept = [f"{key}={value}" for key, value in grid.items() if key not in given]
        overrides = parser.parse_overrides([*swept, *arguments])
        jobs.update(dict.fromkeys(map(tuple, BasicSweeper.split_arguments(overrides, max_batch_size=None)[0])))
    return [list(job) for job in jobs]


def compose_jobs(
    load: Callable[[list[str]], DictConfig], jobs: Sequence[Sequence[str]]
) -> list[tuple[DictConfig, str]]:
    """The configuration of every job with the label of its mechanism.

    `load` composes a configuration that includes Hydra's own node. It takes a tenth of a second, so it is called once
    for each choice of groups, and values are set on copies.

    The label is the name of the mechanism's YAML file and the hyperparameters that the command line changed.
    """
    bases: dict[tuple[str, ...], tuple[DictConfig, str]] = {}
    composed = []
    for job in jobs:
        values = [override for override in job if _is_value(_parsed(override))]
        choices = tuple(override for override in job if override not in values)
        if choices not in bases:
            loaded = load(list(choices))
            plain = OmegaConf.masked_copy(loaded, [str(key) for key in loaded if key not in NOT_OF_A_CELL])
            bases[choices] = plain, loaded.hydra.runtime.choices.attention
        base, label = bases[choices]
        config = copy.deepcopy(base)
        OmegaConf.set_struct(config, True)
        for override in values:
            change = _parsed(override)
            OmegaConf.update(config, change.key_or_group, change.value(), merge=True)
        changed = [override.removeprefix("attention.") for override in job if override.startswith("attention.")]
        composed.append((config, " ".join([label, *changed])))
    return composed


@functools.cache
def _parsed(override: str) -> Override:
    return OverridesParser.create().parse_override(override)


@functools.cache
def _groups() -> frozenset[str]:
    return frozenset(path.name for path in CONF.iterdir() if path.is_dir())


def _is_value(override: Override) -> bool:
    """Whether it sets a value that is there, as opposed to choosing a file, adding or deleting something."""
    is_plain = override.type == OverrideType.CHANGE and override.package is None and not override.is_hydra_override()
    return is_plain and override.key_or_group not in _groups()
