"""The benchmarks: one file each, with its settings, its measurement, and the metrics computed from it.

A file imports torch only for measuring: records can be read without it. The environment variable
`ATTENTION_ZOO_PLUGINS` names modules with other benchmarks and mechanisms (comma-separated).
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
from bench.common.schema import checked, flatten, setting
from bench.measures.progress import Point
from bench.records.metrics import Metric

if TYPE_CHECKING:
    from bench.measures.context import CellContext


@dataclass
class Benchmark:
    """A benchmark: its fields are the settings `bench.*` of a cell, each a `setting` with a default.

    `conf/bench/<name>.yaml` names it, and sets what differs from the defaults. Measurements may contain `features`:
    the papers' d, None if the mechanism has none.
    """

    name: ClassVar[str]
    axis: ClassVar[str] = "seq_len"
    """The x-axis of its curves: `seq_len`, or `features`, the papers' d."""
    compares: ClassVar[bool] = False
    """Whether one cell measures all mechanisms of the sweep; the first one is the baseline."""
    trains: ClassVar[bool] = False
    """Whether a model (`model.*`) is trained on a task (`task.*`, `training.*`)."""
    one_process: ClassVar[bool] = False
    """Whether it trains in one process only: several would not agree on the number of calls."""
    timed: ClassVar[bool] = False
    """Whether it measures times, which other processes on the device would change."""
    judges_memory: ClassVar[bool] = False
    """Whether it compares memory with `memory_limit` itself on a CPU; its process may then use more."""
    replicates: ClassVar[str | None] = None
    """The units that its intervals are over, such as `rounds`: each unit gives one independent sample. Other variation
    within a unit (heads, calls, redraws) is averaged. None if it has no intervals."""
    cell_per: ClassVar[str | None] = None
    """The name of a list setting; each of its entries becomes a cell."""
    headline_format: ClassVar[str | None] = None
    """The text of `headline`, such as `{loss}, {steps_per_second}`, with metrics in braces; None: all metrics."""

    memory_limit: float | None = setting(
        None, "memory limit of a cell in GiB; null: all that is free", above=0, maximum=2**30, condition=False
    )

    def measure(self, context: CellContext) -> dict[str, Any]:
        """Measure in this process; returns raw samples that JSON can store."""
        raise NotImplementedError

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """The metrics of the measurements. By default all numbers, named by their dotted path."""
        for path, value in flatten(measurements).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                yield Metric(path, float(value))

    @classmethod
    def curves(cls, measurements: Mapping[str, Any]) -> dict[str, list[Point]]:
        """Values by step, such as losses, by name; empty if nothing was recorded step by step."""
        return {}

    @classmethod
    def headline(cls, quantities: Sequence[Metric]) -> str:
        """The text of the cell's line in the table at the end of a sweep."""
        if cls.headline_format is not None:
            return cls.headline_format.format_map({one.metric: one.text for one in quantities})
        return ", ".join(f"{quantity.metric} {quantity.text}" for quantity in quantities if quantity.shown)


@dataclass
class Sized(Benchmark):
    """A benchmark that sets the mechanism's size d: columns, rows, projection dimension or features."""

    num_features: int | None = setting(
        None, "size d: landmarks, samples or features; null: the mechanism's own", minimum=1, condition=False
    )


Registered = TypeVar("Registered", bound=type[Benchmark])
_REGISTRY: dict[str, type[Benchmark]] = {}


def register(cls: Registered) -> Registered:
    """A decorator that registers a benchmark by its name."""
    if _REGISTRY.setdefault(cls.name, cls) is not cls:
        raise ValueError(f"bench={cls.name}: is registered already, by {_REGISTRY[cls.name].__module__}")
    return cls


def find(name: Any) -> type[Benchmark] | None:
    """The benchmark with this name, or None; plugins are imported only if the suite has no such benchmark."""
    if not isinstance(name, str):
        return None
    if name not in _REGISTRY:
        _import_own()
    if name not in _REGISTRY:
        _import_plugins()
    return _REGISTRY.get(name)


def get(name: Any) -> type[Benchmark]:
    """The benchmark with this name.

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
    """A benchmark object with a cell's resolved `bench` settings."""
    benchmark = get(settings["name"])
    own = {field.name for field in dataclasses.fields(benchmark)}
    return benchmark(**{name: value for name, value in settings.items() if name in own})


def check(values: Mapping[str, Any]) -> dict[str, Any]:
    """The `bench` settings of a configuration with their defaults and `name`.

    Raises:
        ConfigError: names the key, its value and what is allowed.
    """
    benchmark = get(values.get("name"))
    own = {key: value for key, value in values.items() if key != "name"}
    return {"name": benchmark.name, **dataclasses.asdict(checked(benchmark, own, "bench."))}


def split(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The `bench` settings of each cell: one per entry of the setting that `cell_per` names, else a single one."""
    key = get(settings["name"]).cell_per
    return [{**settings, key: [entry]} for entry in settings[key]] if key else [dict(settings)]


def _import_own() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def _import_plugins() -> None:
    for plugin in filter(None, os.environ.get("ATTENTION_ZOO_PLUGINS", "").split(",")):
        importlib.import_module(plugin)
