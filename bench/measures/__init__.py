"""The benchmarks: one file each, with its settings, its measurement, and what its numbers say.

A file imports torch only where it measures: reading records needs none. Benchmarks from outside the package are in the
modules that the environment variable `ATTENTION_ZOO_PLUGINS` names (comma-separated), beside mechanisms.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from bench.common.errors import ConfigError
from bench.common.schema import checked, setting
from bench.measures.progress import Point
from bench.records.metrics import Metric

if TYPE_CHECKING:
    from bench.measures.context import CellContext


@dataclass
class Benchmark:
    """A benchmark: its fields are the settings `bench.*` of a cell, each a `setting` with a default.

    `conf/bench/<name>.yaml` names it, and says what differs from the defaults. What is measured may hold `features`:
    the papers' d, None where the mechanism has none.
    """

    name: ClassVar[str]
    axis: ClassVar[str] = "seq_len"
    """What its curves run over: `seq_len`, or `features`, the papers' d."""
    compares: ClassVar[bool] = False
    """Whether it measures all mechanisms of the sweep in one cell, the first of them being the baseline."""
    trains: ClassVar[bool] = False
    """Whether it is about a model (`model.*`) that learns a task (`task.*`, `training.*`)."""
    one_process: ClassVar[bool] = False
    """Whether it trains in one process only: several would not agree how often to call."""
    timed: ClassVar[bool] = False
    """Whether what it measures is time, which others on the device would change."""
    judges_memory: ClassVar[bool] = False
    """Whether on a CPU it holds what it measures to `memory_limit` itself, so that its process may take more."""
    replicates: ClassVar[str | None] = None
    """What its intervals are over, in words such as `rounds`: units of which each gives one independent sample. What
    else varies inside one (heads, calls, redraws) is averaged there. None where it gives no intervals."""
    cell_per: ClassVar[str | None] = None
    """The setting, a list, of which every entry becomes a cell of its own."""
    headline_format: ClassVar[str | None] = None
    """The words of `headline`, such as `{loss}, {steps_per_second}`, with metrics in braces; null: all of them."""

    memory_limit: float | None = setting(
        None, "GiB that a cell may allocate; null: all there is", above=0, maximum=2**30, condition=False
    )

    def measure(self, context: CellContext) -> dict[str, Any]:
        """Measure in this process: raw samples, as JSON takes them."""
        raise NotImplementedError

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """What the measurements say. Unless a benchmark knows better: its numbers, by their dotted path."""
        for path, value in flatten(measurements).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                yield Metric(path, float(value))

    @classmethod
    def curves(cls, measurements: Mapping[str, Any]) -> dict[str, list[Point]]:
        """What changed step by step, where anything did, by name."""
        return {}

    @classmethod
    def headline(cls, quantities: Sequence[Metric]) -> str:
        """The words of the cell's line in the table at the end of a sweep."""
        if cls.headline_format is not None:
            return cls.headline_format.format_map({one.metric: one.text for one in quantities})
        return ", ".join(f"{quantity.metric} {quantity.text}" for quantity in quantities if quantity.shown)


@dataclass
class Sized(Benchmark):
    """A benchmark that gives the mechanism a size d: columns, rows, projection dimension or features."""

    num_features: int | None = setting(
        None, "d, landmarks, samples or features; null: the mechanism's own", minimum=1, condition=False
    )


Registered = TypeVar("Registered", bound=type[Benchmark])
_REGISTRY: dict[str, type[Benchmark]] = {}


def register(cls: Registered) -> Registered:
    """Make a benchmark known by its name; a decorator."""
    if _REGISTRY.setdefault(cls.name, cls) is not cls:
        raise ValueError(f"bench={cls.name}: is registered already, by {_REGISTRY[cls.name].__module__}")
    return cls


def find(name: Any) -> type[Benchmark] | None:
    """The benchmark of that name, if there is one; plugins are imported where it is none of the package's own."""
    if not isinstance(name, str):
        return None
    if name not in _REGISTRY:
        _import_own()
    if name not in _REGISTRY:
        _import_plugins()
    return _REGISTRY.get(name)


def get(name: Any) -> type[Benchmark]:
    """The benchmark of that name.

    Raises:
        ConfigError: there is none.
    """
    benchmark = find(name)
    if benchmark is None:
        raise ConfigError(f"bench={name!r}: must be one of {', '.join(list_benchmarks())}")
    return benchmark


def list_benchmarks() -> list[str]:
    """The names of all benchmarks."""
    _import_own()
    _import_plugins()
    return sorted(_REGISTRY)


def load(settings: Mapping[str, Any]) -> Benchmark:
    """The benchmark that a cell's resolved `bench` settings describe."""
    benchmark = get(settings["name"])
    return benchmark(
        **{field.name: settings[field.name] for field in dataclasses.fields(benchmark) if field.name in settings}
    )


def check(values: Mapping[str, Any]) -> dict[str, Any]:
    """The `bench` settings of a configuration with their defaults, `name` among them.

    Raises:
        ConfigError: naming the key, its value and what is allowed.
    """
    benchmark = get(values.get("name"))
    own = {key: value for key, value in values.items() if key != "name"}
    return {"name": benchmark.name, **dataclasses.asdict(checked(benchmark, own, "bench."))}


def split(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings of each cell that checked ones stand for: several where the benchmark has a `cell_per`."""
    key = get(settings["name"]).cell_per
    return [{**settings, key: [entry]} for entry in settings[key]] if key else [dict(settings)]


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves of nested mappings by their dotted path: `{"a": {"b": 1}}` -> `{"a.b": 1}`."""
    leaves: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            leaves.update(flatten(value, f"{prefix}{key}."))
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


def _import_own() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def _import_plugins() -> None:
    for plugin in filter(None, os.environ.get("ATTENTION_ZOO_PLUGINS", "").split(",")):
        importlib.import_module(plugin)
