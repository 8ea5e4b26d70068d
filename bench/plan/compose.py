"""From the command line to the configuration of every cell."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, OverrideType, RangeSweep
from omegaconf import DictConfig, OmegaConf

from bench.errors import ConfigError
from bench.plan.cell import Variant

CONF = Path(__file__).parents[2] / "conf"
NOT_OF_A_CELL = ("hydra", "grids")
OF_THE_GRIDS = ("experiment", "size", "max_cells")
# What Hydra would do beside composing: run code that a configuration names, or something else than a sweep.
NOT_DATA = ("hydra.mode", "hydra.callbacks", "hydra.launcher._target_", "hydra.sweeper._target_")


def grid_choices(arguments: Sequence[str]) -> list[str]:
    """The overrides that decide which grids there are; the rest belong to the jobs.

    Raises:
        ConfigError: several experiments or sizes are asked for, or something that is no data.
    """
    overrides = OverridesParser.create().parse_overrides(list(arguments))
    for override in overrides:
        if override.key_or_group.replace("/", ".").startswith(NOT_DATA):
            raise ConfigError(f"{override.input_line}: not allowed, configs are data and every command is a sweep")
    choices = [override for override in overrides if override.key_or_group in OF_THE_GRIDS]
    for choice in choices:
        if choice.is_sweep_override() or isinstance(choice.value(), list):
            raise ConfigError(f"{choice.key_or_group}={choice.get_value_string()}: must have one value in a sweep")
    return [str(choice.input_line) for choice in choices]


def expand(config: DictConfig, arguments: Sequence[str]) -> list[list[str]]:
    """The overrides of every job: each grid of `config.grids[config.size]`, crossed with the command line.

    A key on the command line replaces the grid's.

    Raises:
        ConfigError: the experiment has no such size, several experiments or sizes are asked for, or too many jobs.
    """
    parser = OverridesParser.create()
    grid_choices(arguments)
    typed = {override.key_or_group for override in parser.parse_overrides(list(arguments))}
    grids = config.get("grids") or {}
    grids = OmegaConf.to_container(grids) if OmegaConf.is_config(grids) else grids
    if not isinstance(grids, dict):
        raise ConfigError(f"grids={grids!r}: must be grids by size")
    if grids and config.size not in grids:
        raise ConfigError(f"size={config.size!r}: must be one of {', '.join(map(str, grids))}")
    limit = config.max_cells
    if type(limit) is not int or limit < 1:  # before anything is expanded
        raise ConfigError(f"max_cells={limit!r}: must be an integer, at least 1")
    jobs: dict[tuple[str, ...], None] = {}  # grids that the command line made equal give a job once
    for grid in grids[config.size] if grids else [{}]:
        swept = [f"{key}={value}" for key, value in grid.items() if key not in typed]
        overrides = parser.parse_overrides([*swept, *arguments])
        count = len(jobs) + math.prod(map(_choices, overrides))
        if count > limit:
            raise ConfigError(f"max_cells={limit}: the sweep has {count:,} cells; max_cells={count} allows them")
        jobs.update(dict.fromkeys(map(tuple, BasicSweeper.split_arguments(overrides, max_batch_size=None)[0])))
    return [list(job) for job in jobs]


def compose_jobs(
    load: Callable[[list[str]], DictConfig], jobs: Sequence[Sequence[str]]
) -> list[tuple[DictConfig, Variant]]:
    """The configuration of every job with the variant of its mechanism.

    `load` composes a configuration that includes Hydra's own node. It takes a tenth of a second, so it is called once
    for each choice of groups, and values are set on copies.
    """
    bases: dict[tuple[str, ...], tuple[DictConfig, Variant]] = {}
    variants: dict[str, Variant] = {}
    composed = []
    for job in jobs:
        overrides = [(text, _parsed(text)) for text in job]
        choices = tuple(text for text, override in overrides if not _is_value(override))
        if choices not in bases:
            loaded = load(list(choices))
            plain = OmegaConf.masked_copy(loaded, [str(key) for key in loaded if key not in NOT_OF_A_CELL])
            name = loaded.hydra.runtime.choices.attention
            if name not in variants:
                # An experiment, or a key added beside the groups, may change what the variant's own file says.
                alone = all(map(_is_choice, map(_parsed, choices))) and not loaded.hydra.runtime.choices.experiment
                own = (loaded if alone else load([f"attention={name}"])).attention
                variants[name] = Variant(name, OmegaConf.to_container(own))  # type: ignore[arg-type]
            bases[choices] = plain, variants[name]
        base, variant = bases[choices]
        config = copy.deepcopy(base)
        OmegaConf.set_struct(config, True)
        for _, override in overrides:
            if _is_value(override):
                OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
        keys = frozenset(override.key_or_group for _, override in overrides)
        composed.append((config, dataclasses.replace(variant, overridden=keys)))
    return composed


def _choices(override: Override) -> int:
    """How many values an override sweeps over, without making them: a range may have more than memory holds."""
    value = override.value()
    if isinstance(value, RangeSweep):
        assert value.start is not None and value.stop is not None
        if value.step == 0:
            raise ConfigError(f"{override.input_line}: a range's step must not be 0")
        return max(0, math.ceil((value.stop - value.start) / value.step))
    return len(value.list) if isinstance(value, ChoiceSweep) else 1


@functools.cache
def _parsed(override: str) -> Override:
    return OverridesParser.create().parse_override(override)


@functools.cache
def _groups() -> frozenset[str]:
    return frozenset(path.name for path in CONF.iterdir() if path.is_dir())


def _is_value(override: Override) -> bool:
    """Whether it sets a value that is there, as opposed to choosing a file, adding or deleting something."""
    return _is_plain(override) and override.key_or_group not in _groups()


def _is_choice(override: Override) -> bool:
    return _is_plain(override) and override.key_or_group in _groups()


def _is_plain(override: Override) -> bool:
    return override.type == OverrideType.CHANGE and override.package is None and not override.is_hydra_override()
