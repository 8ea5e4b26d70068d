"""The configuration files, composed as data: nothing that they say runs, grows without bound or blocks."""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from bench.common.errors import ConfigError, one_line
from bench.plan.conf import CONF
from bench.plan.data import leaves, require_data, shown

NAME = "config"
# A file of settings is a few kilobytes; one of ten thousands of lines takes YAML's parser seconds.
LARGEST_FILE = 100_000
MOST_VALUES = 20_000
PLUGINS = ("launcher", "sweeper")
# Of Hydra's sweeper by Optuna.
PARTS = re.compile(r"optuna\.samplers\.[A-Z]\w*")
# Of Hydra's own node: what it writes itself, and what is set on the command line only.
_WRITTEN = ("overrides", "runtime", "searchpath", *PLUGINS)
_WRITTEN_OF_JOB = ("override_dirname", "config_name", "name")


class Loader(ConfigLoaderImpl):
    """Hydra's loader over `conf/` and perhaps a folder of the user's.

    Hydra asks it for every configuration before it does what one says, so what it refuses is never run.

    Raises:
        ConfigError: the folder is not there.
    """

    def __init__(self, folder: str | None = None) -> None:
        version.setbase("1.3")
        setup_globals()
        path = create_config_search_path(str(CONF))
        if folder is not None:
            if not os.path.isdir(folder):
                raise ConfigError(f"--config-dir {shown(folder)}: must be a folder that is there")
            before_the_last = SearchPathQuery(provider="schema")
            path.prepend("command-line", f"file://{os.path.abspath(folder)}", before_the_last)
        super().__init__(path)
        self.folder = None if folder is None else os.path.abspath(folder)
        self.repository = _Files(path)
        self._loaded: dict[tuple[str, ...], DictConfig] = {}

    def __reduce__(self) -> tuple[type[Loader], tuple[str | None]]:
        """Launchers send it to other processes, and Hydra's sources of files cannot be pickled."""
        return Loader, (self.folder,)

    def load(self, overrides: Sequence[str]) -> DictConfig:
        """Compose a configuration, Hydra's own node included; nobody changes it.

        Raises:
            ConfigError: a file cannot be read as YAML, or says something that is no data.
            HydraException: an override or a choice that does not exist.
        """
        key = tuple(overrides)
        if key not in self._loaded:
            self._loaded[key] = self.load_configuration(NAME, list(overrides), RunMode.RUN)
        return self._loaded[key]

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """What Hydra calls."""
        try:
            config = super().load_configuration(config_name, overrides, run_mode, from_shell, validate_sweep_overrides)
        except (ConfigError, HydraException, OmegaConfBaseException, YAMLError):
            raise
        except Exception as error:  # a list where a mapping is meant, and whatever else Hydra does not expect
            what = " ".join(overrides) or NAME
            raise ConfigError(f"{shown(what)}: cannot be composed: {one_line(error)}") from error
        raw: Any = OmegaConf.to_container(config, resolve=False)
        node = raw.pop("hydra")
        require_data(raw)
        _require_own(node)
        return config

    def _process_config_searchpath(
        self, config_name: str | None, parsed_overrides: list[Override], repo: CachingConfigRepository
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            super()._process_config_searchpath(config_name, parsed_overrides, repo)
        for source in repo.get_sources():
            if not source.available():
                raise ConfigError(f"hydra.searchpath: {source.path} is not there")


@functools.cache
def _own() -> dict[str, Any]:
    """Hydra's node as `conf/` has it."""
    config = ConfigLoaderImpl(create_config_search_path(str(CONF))).load_configuration(NAME, [], RunMode.RUN)
    return OmegaConf.to_container(config.hydra, resolve=False)  # type: ignore[return-value]


def _require_own(node: dict[str, Any]) -> None:
    """Refuse what would make Hydra run code, or do something else than a sweep."""
    own = _own()
    for key, value in node.items():
        if key not in _WRITTEN and _without(value) != _without(own.get(key)):
            raise ConfigError(f"hydra.{key}: must stay as it is, configs are data and every command is a sweep")
    for key in PLUGINS:
        target = (node[key] or {}).get("_target_")
        if target not in Plugins.instance().class_name_to_class:
            raise ConfigError(f"hydra.{key}._target_={shown(target)}: must be a plugin of Hydra")
        for name, value in leaves(node[key]):
            if name != "_target_" and (name.startswith("_") or "._" in name) and not _is_part(name, value):
                raise ConfigError(f"hydra.{key}.{name}={shown(value)}: not allowed, configs are data")


def _is_part(name: str, value: Any) -> bool:
    """Whether this names a part that a sweeper from elsewhere makes itself, and that does nothing but choose values."""
    return name == "sampler._target_" and isinstance(value, str) and PARTS.fullmatch(value) is not None


def _without(value: Any) -> Any:
    """A part of Hydra's node without what Hydra writes there."""
    return {k: v for k, v in value.items() if k not in _WRITTEN_OF_JOB} if isinstance(value, dict) else value


class _Files(ConfigRepository):
    """Where the loader finds files: only what can be read as data is."""

    def load_config(self, config_path: str) -> ConfigResult | None:
        if ".." in Path(config_path).parts:
            group, _, name = config_path.partition("/")
            raise ConfigError(f"{group}={name}: must be the name of a file in {group}/")
        if Path(config_path).suffix in (".yaml", ".yml"):
            group, _, name = config_path.rpartition("/")
            raise ConfigError(f"{group}={name}: must be {Path(name).stem}, the name of a file without its ending")
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or source.scheme() != "file":
            return super().load_config(config_path)
        file = Path(source.path, source._normalize_file_name(config_path))
        try:
            _require_small(file)
            return super().load_config(config_path)
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file}: not UTF-8: {one_line(error)}") from None
        except RecursionError:
            raise ConfigError(f"{file}: nested too deeply") from None
        except (ConfigError, HydraException, OmegaConfBaseException, MarkedYAMLError):
            raise
        except Exception as error:  # of a tag such as !!int, say
            raise ConfigError(f"{file}: {one_line(error)}") from error


def _require_small(file: Path) -> None:
    """Refuse a file that is large, or would be once its aliases were replaced by what they stand for."""
    if file.stat().st_size > LARGEST_FILE:
        raise ConfigError(f"{file}: must have at most {LARGEST_FILE:,} bytes")
    text = file.read_text(encoding="utf-8")
    if "*" not in text:
        return
    sizes: dict[int, int | None] = {}

    def size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = None
            children = node.value if isinstance(node, yaml.CollectionNode) else ()
            flat = (part for child in children for part in (child if isinstance(child, tuple) else (child,)))
            sizes[id(node)] = 1 + sum(map(size, flat))
        known = sizes[id(node)]
        if known is None:
            raise ConfigError(f"{file}, line {node.start_mark.line + 1}: an alias must not stand inside what it names")
        return known

    with open(file, encoding="utf-8") as stream:  # its name is in YAML's errors
        root = yaml.compose(stream, Loader=yaml.SafeLoader)
    if root is not None and size(root) > MOST_VALUES:
        raise ConfigError(f"{file}: must have at most {MOST_VALUES:,} values, aliases expanded; it has {size(root):,}")
