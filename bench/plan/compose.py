"""From the command line to the configuration of every cell."""

import contextlib
import copy
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, OverrideType, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from bench.common.errors import ConfigError, one_line
from bench.plan.cell import Variant
from bench.plan.conf import CONF
from bench.plan.data import require_no_secret, require_text, shown

NOT_OF_A_CELL = ("hydra", "grids")
OF_THE_GRIDS = ("experiment", "size", "max_cells", "dry_run", "grids")
# The only setting of Hydra that the command line may change; others could run code, or would not run a sweep.
OF_HYDRA = "hydra.launcher"
MECHANISM = re.compile(r"attention=([A-Za-z_]\w*)", re.ASCII)
GROUPS = frozenset(path.name for path in CONF.iterdir() if path.is_dir())
_parsed = functools.lru_cache(maxsize=2**16)(OverridesParser.create().parse_override)

Load = Callable[[list[str]], DictConfig]


def parsed(arguments: Sequence[str]) -> list[Override]:
    """Parse the overrides of a command line or grid; `ConfigError` names one that is malformed or not plain data."""
    overrides = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not key.strip(" +~") or not (equals or argument.startswith("~")):
            raise ConfigError(f"{shown(argument)}: must be key=value")
        require_no_secret(key)
        require_text("a key of the command line", key)
        require_text(key, value)
        try:
            override = _parsed(argument)
        except RecursionError:
            raise ConfigError(f"{shown(argument)}: nested too deeply") from None
        except (HydraException, ValueError, OverflowError) as error:
            is_empty = re.search(r"^\s*,|,\s*(,|$)", value)  # of which Hydra says what its parser expects
            says = "must have a value on both sides of each comma" if is_empty else one_line(error)
            raise ConfigError(f"{shown(argument).strip(chr(39))}: {says}") from None
        hydra, swept = override.is_hydra_override(), override.is_sweep_override()
        why = None
        if hydra and not override.key_or_group.replace("/", ".").startswith(OF_HYDRA):
            why = f"not allowed, every command is a sweep; of Hydra's own: {OF_HYDRA}"
        elif hydra and swept:
            why = "must have one value in a sweep"
        elif swept and not isinstance(override.value(), ChoiceSweep | RangeSweep):
            why = "must name its values, as in a,b or range(1,4)"
        if why:
            raise ConfigError(f"{override.input_line}: {why}")
        overrides.append(override)
    return overrides


def grid_choices(arguments: Sequence[str]) -> list[str]:
    """The overrides that choose the grids and how to run them, each with one value; the others belong to the jobs."""
    choices = [o for o in parsed(arguments) if o.key_or_group.split(".")[0] in OF_THE_GRIDS or o.is_hydra_override()]
    for choice in choices:
        several = choice.is_sweep_override() or isinstance(choice.value(), list)
        if several and not choice.is_hydra_override():
            raise ConfigError(f"{choice.key_or_group}={choice.get_value_string()}: must have one value in a sweep")
    return [str(choice.input_line) for choice in choices]


def expand(config: DictConfig, arguments: Sequence[str]) -> list[list[str]]:
    """The overrides of every job: each grid of `config.grids[config.size]`, crossed with the command line.

    A key on the command line replaces the grid's key; `attention=` also replaces the `attention.*` settings of a grid
    that names mechanisms.
    Raises `ConfigError` for a size that the experiment does not have, and for too many jobs.
    """
    overrides = parsed(arguments)
    typed = {override.key_or_group for override in overrides}
    limit = config.max_cells
    if type(limit) is not int or limit < 1:  # checked before anything is expanded
        raise ConfigError(f"max_cells={shown(limit)}: must be an integer, at least 1")
    jobs: dict[tuple[str, ...], None] = {}  # each job once, also when overrides made grids equal
    for grid in _grids(config):
        others = "attention" in grid and "attention" in typed  # the grid's settings belong to another mechanism
        replaced = {key for key in grid if key in typed or (others and str(key).startswith("attention."))}
        kept = {key: value for key, value in grid.items() if key not in replaced}
        together = [*parsed([f"{key}={'null' if value is None else value}" for key, value in kept.items()]), *overrides]
        count = len(jobs) + math.prod(map(_choices, together))
        if count > limit:
            raise ConfigError(f"max_cells={limit}: the sweep has {count:,} combinations; max_cells={count} allows them")
        jobs.update(dict.fromkeys(itertools.product(*_alternatives(together))))
    return [list(job) for job in jobs]


def compose_jobs(load: Load, jobs: Sequence[Sequence[str]]) -> list[tuple[dict[str, Any], Variant]]:
    """The configuration of every job, as plain data, with the variant of its mechanism.

    `load` composes a configuration that includes Hydra's own node. One call takes 0.1 s, so it is called once for all
    mechanisms and once for each choice of other groups; plain values are set on copies.
    """
    found = [MECHANISM.fullmatch(text) for job in jobs for text in job]
    names = dict.fromkeys(name[1] for name in found if name)
    variants: dict[str, Any] = {}
    # If one mechanism's file is wrong, the error is raised below, for that mechanism.
    with contextlib.suppress(ConfigError, HydraException, OmegaConfBaseException, YAMLError):
        together = load([f"+attention@variants.{name}={name}" for name in names])
        variants = _plain(together).get("variants", {})
    bases: dict[tuple[str, ...], tuple[dict[str, Any], Variant]] = {}
    composed = []
    for job in jobs:
        overrides = [(text, _parsed(text)) for text in job]
        choices = tuple(text for text, override in overrides if not _is_value(override))
        if choices not in bases:
            bases[choices] = _base(load, choices, variants)
        base, variant = bases[choices]
        values = [(override.key_or_group, override.value()) for _, override in overrides if _is_value(override)]
        config = copy.deepcopy(base)
        if not all(_set(config, key, value) for key, value in values):
            config = _plain(load([*job]))
        keys = frozenset(override.key_or_group for _, override in overrides)
        composed.append((config, dataclasses.replace(variant, overridden=keys)))
    return composed


def _base(load: Load, choices: Sequence[str], variants: Mapping[str, Any]) -> tuple[dict[str, Any], Variant]:
    """The configuration for a choice of groups, with the variant of its mechanism."""
    keys = {text: text.partition("=")[0] for text in choices}
    others = [text for text in choices if keys[text] != "attention"]
    name = "".join(text.partition("=")[2] for text in choices if text not in others)
    if "name" in variants.get(name, ()) and not any("attention" in keys[text] for text in others):
        config = _plain(load([*others, "attention=[]"]))
        if "attention" not in config:  # then only the mechanism's file sets it
            return {**config, "attention": variants[name]}, Variant(name, variants[name])
    loaded = load([*choices])
    name = loaded.hydra.runtime.choices.get("attention")
    if name is None:
        raise ConfigError("attention: must be chosen, the name of a file in attention/")
    own: Any = OmegaConf.to_container(load([f"attention={name}"]).attention)
    return _plain(loaded), Variant(name, own)


def _grids(config: DictConfig) -> list[dict[str, Any]]:
    """The grids of the chosen size, each a dict by key; one empty grid if the experiment has none."""
    grids = config.get("grids") or {}
    grids = OmegaConf.to_container(grids) if OmegaConf.is_config(grids) else grids
    if not isinstance(grids, dict):
        raise ConfigError(f"grids={shown(grids)}: must be grids by size")
    if not grids:
        return [{}]
    if config.size not in grids:
        raise ConfigError(f"size={shown(config.size)}: must be one of {', '.join(map(str, grids))}")
    of_size = grids[config.size]
    if not isinstance(of_size, list) or not of_size:
        raise ConfigError(f"grids.{config.size}={shown(of_size)}: must be a list of grids")
    for index, grid in enumerate(of_size):
        key = f"grids.{config.size}[{index}]"
        if not isinstance(grid, dict) or any(isinstance(value, dict) for value in grid.values()):
            raise ConfigError(f"{key}={shown(grid)}: must be values by key, written as on the command line")
        for name in grid:
            if str(name).partition(".")[0] in OF_THE_GRIDS or str(name).startswith("hydra"):
                raise ConfigError(f"{key}.{name}: must not be swept over")
    return of_size


def _choices(override: Override) -> int:
    """How many values an override sweeps over, without listing them: a range may be larger than memory."""
    value = override.value()
    if isinstance(value, RangeSweep):
        assert value.start is not None and value.stop is not None
        if value.step == 0:
            raise ConfigError(f"{override.input_line}: a range's step must not be 0")
        try:
            return max(0, math.ceil((value.stop - value.start) / value.step))
        except (ValueError, OverflowError):
            raise ConfigError(f"{override.input_line}: a range must be of finite numbers") from None
    return len(value.list) if isinstance(value, ChoiceSweep) else 1


def _alternatives(overrides: Sequence[Override]) -> Iterable[list[str]]:
    """For each key, the overrides that set one of its values; of repeated keys the last one counts."""
    alternatives = {}
    for override in overrides:
        key = override.get_key_element()
        swept = override.is_sweep_override()
        values = override.sweep_string_iterator() if swept else [override.get_value_element_as_str()]
        alternatives[key] = [f"{key}={value}" for value in values]
    return alternatives.values()


def _is_value(override: Override) -> bool:
    """Whether the override sets an existing value, rather than choosing a file, adding or deleting a key."""
    is_plain = override.type == OverrideType.CHANGE and override.package is None and not override.is_hydra_override()
    return is_plain and override.key_or_group not in GROUPS


def _plain(config: DictConfig) -> dict[str, Any]:
    """The keys of a cell; interpolations are not resolved."""
    container: Any = OmegaConf.to_container(config, resolve=False)
    return {key: value for key, value in container.items() if key not in NOT_OF_A_CELL}


def _set(config: dict[str, Any], key: str, value: Any) -> bool:
    """Replace an existing plain value; returns False if that is not enough (Hydra then does it, 1000 times slower)."""
    *path, last = key.split(".")
    node: Any = config
    for name in path:
        node = node.get(name) if isinstance(node, dict) else None
    if not isinstance(node, dict) or last not in node or isinstance(node[last], dict) or isinstance(value, dict):
        return False
    node[last] = value
    return True
