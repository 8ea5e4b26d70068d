"""Hydra composes the configuration files as plain data: nothing in them runs.

Hydra reads `conf/` and a user's folder through `SettingsFiles`, our own config source. It refuses everything that is
not plain data. Files are presets: it adds the defaults of the class that a file names.
"""

import difflib
import functools
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from bench.common.errors import ConfigError, bounded, one_line
from bench.common.schema import defaults
from bench.plan import config as settings
from bench.plan import executors
from bench.plan.conf import CONF, about
from bench.plan.data import require_data, shown

NAME = "config"
# A message lists at most this many names.
MANY = 30
# The parts of Hydra's node that may change: what Hydra writes itself, and what the command line may set.
WRITTEN = ("overrides", "runtime", "searchpath", "launcher", "job")


@contextmanager
def explained() -> Iterator[None]:
    """Turn every mistake in a configuration into a `ConfigError`: one line with the key, its value, what is allowed."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(_explain(error)) from None


def _explain(error: Exception) -> str:
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return f"{group}={name}: unknown; {_near(name, error.options)}"
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.parent_node is not None:
        full = str(cause.full_key)
        if full in ("model", "task"):
            return f"{full}: none is chosen; {full}=NAME is one of {', '.join(about(full))}"
        elsewhere, group = settings.keys_that_end(full), full.removesuffix(str(cause.key))
        near = _near(str(cause.key), [str(key) for key in cause.parent_node], group)
        typed, of = re.search(rf"use \+({re.escape(full)}=.*)", str(error)), cause.parent_node.get("name")
        what = f"{bounded(typed[1], 120) if typed else full}: unknown{f' to {group}name={of}' if of else ''}"
        return f"{what}; {f'did you mean {elsewhere}?' if elsewhere else near}"
    if isinstance(error, MarkedYAMLError) and error.problem_mark:
        return f"{error.problem_mark.name}, line {error.problem_mark.line + 1}: {error.problem}"
    if found := re.match(r"In '(.+)/(.+)': \w+ raised while composing config:\n(.+)", str(error)):
        return f"{found[1]}={found[2]}: {found[3]}"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: {one_line(error)}"
    return one_line(error)


def _near(name: str, known: Sequence[str], group: str = "") -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    keys = ", ".join(f"{group}{key}" for key in near or known)
    if near:
        return f"did you mean {keys}?"
    return f"known are {keys}" if len(known) <= MANY else "`python -m bench --help` lists what there is"


class SettingsFiles(ConfigSource):
    """A folder of YAML files; adds to each the defaults of the class that it configures."""

    @staticmethod
    def scheme() -> str:
        """The URL scheme of these folders in Hydra's search path."""
        return "settings"

    def load_config(self, config_path: str) -> ConfigResult:
        """Read a file; raises `ConfigError` if it is not plain data, or its path leaves the group."""
        group, _, name = config_path.rpartition("/")
        if ".." in Path(config_path).parts:
            raise ConfigError(f"{group.partition('/')[0]}={name}: must be the name of a file in {group}/")
        file = self._path(f"{config_path}.yaml")
        if not file.is_file():
            raise ConfigLoadError(f"Config not found: {file}")
        config = _read(file)
        header = self._get_header_dict(file.read_text(encoding="utf-8")[:512])
        if isinstance(config, DictConfig):
            config = _completed(config, group or NAME, header["package"] == "_global_")
        return ConfigResult(self.provider, self.full_path(), config, header)

    def available(self) -> bool:
        """Whether the folder exists."""
        return self.is_group("")

    def is_group(self, config_path: str) -> bool:
        """Whether this is a folder of configuration files."""
        return self._path(config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        """Whether this is a configuration file."""
        return self._path(f"{config_path}.yaml").is_file()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """The names of the files and folders in a group."""
        paths = sorted(self._path(config_path).iterdir())
        groups = [p.name for p in paths if p.is_dir() and results_filter in (None, ObjectType.GROUP)]
        files = [p.stem for p in paths if p.suffix == ".yaml" and p.is_file()]
        return groups + (files if results_filter in (None, ObjectType.CONFIG) else [])

    def _path(self, config_path: str) -> Path:
        return Path(os.path.realpath(Path(self.path, config_path)))


class OwnFolder(SearchPathPlugin):
    """Lets Hydra read `conf/` through `SettingsFiles`; other programs' folders stay as they are."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Hydra calls this before it looks for files."""
        for element in search_path.get_path():
            if element.path == str(CONF):
                element.path = _url(CONF)


Plugins.instance().register(SettingsFiles)
Plugins.instance().register(OwnFolder)
for _name, _executor in executors.EXECUTORS.items():
    ConfigStore.instance().store(group="hydra/launcher", name=_name, node={"executor": _name, **defaults(_executor)})


class Loader:
    """Composes configurations from `conf/` and, if given, a user's folder, which must exist."""

    def __init__(self, folder: str | None = None) -> None:
        if folder is not None and not os.path.isdir(folder):
            raise ConfigError(f"--config-dir {shown(folder)}: must be a folder that is there")
        quoted = _url(folder or "").replace("'", "\\'")
        self.own = [] if folder is None else [f"hydra.searchpath=['{quoted}']"]  # read as `SettingsFiles`

    def load(self, overrides: Sequence[str]) -> DictConfig:
        """Compose a configuration with Hydra's own node. It is cached: do not change it. `explained` wraps errors."""
        arguments = (*self.own, *overrides)
        if self.own:
            return _composed.__wrapped__(arguments, 0)
        return _composed(arguments, max(file.stat().st_mtime_ns for file in CONF.rglob("*.yaml")))


@functools.lru_cache(maxsize=512)
def _composed(arguments: tuple[str, ...], state: int) -> DictConfig:
    """Compose with Hydra. Cached until a file in `conf/` changes, since it takes 0.1 s."""
    try:
        with warnings.catch_warnings(), initialize_config_dir(str(CONF), job_name="bench", version_base="1.3"):
            warnings.simplefilter("ignore")
            config = compose(NAME, list(arguments), return_hydra_config=True)
    except (ConfigError, HydraException, OmegaConfBaseException, YAMLError):
        raise
    except Exception as error:  # a list instead of a mapping, say, which Hydra does not expect
        typed = " ".join(argument for argument in arguments if not argument.startswith("hydra.searchpath="))
        raise ConfigError(f"{shown(typed or NAME)}: cannot be composed: {one_line(error)}") from error
    raw: Any = OmegaConf.to_container(config, resolve=False)
    _require_own(raw.pop("hydra"))
    require_data(raw)
    return config


def _url(folder: str | Path) -> str:
    return f"{SettingsFiles.scheme()}://{os.path.abspath(folder)}"


def _read(file: Path) -> Any:
    """Parse a YAML file with OmegaConf."""
    try:
        return OmegaConf.load(file)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8: {one_line(error)}") from None
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply") from None
    except (OmegaConfBaseException, MarkedYAMLError):
        raise
    except Exception as error:  # a tag such as !!int, say
        raise ConfigError(f"{file}: {one_line(error)}") from error


def _completed(config: DictConfig, group: str, is_global: bool) -> DictConfig:
    """A file's settings, merged over the defaults of the class that its group and `name` select."""
    node = config.get(group) if is_global else config
    if not isinstance(node, DictConfig):
        return config
    complete = OmegaConf.merge(settings.defaults(group, node.get("name")), node)
    return OmegaConf.merge(config, {group: complete}) if is_global else complete  # type: ignore[return-value]


@functools.cache
def _own() -> Any:
    """Hydra's own node, as `conf/` sets it."""
    with initialize_config_dir(str(CONF), job_name="bench", version_base="1.3"):
        return OmegaConf.to_container(compose(NAME, return_hydra_config=True).hydra)


def _require_own(node: dict[str, Any]) -> None:
    """Refuse settings that would make Hydra run code, write elsewhere, or not run a sweep."""
    for key, value in node.items():
        if key not in WRITTEN and value != _own().get(key):
            raise ConfigError(f"hydra.{key}: must stay as it is, configs are data and every command is a sweep")
    executors.check(node["launcher"])
