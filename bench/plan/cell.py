"""One measurement: a resolved configuration and the content id that names it."""

import functools
import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import attention_zoo
from bench import inputs, measures, models, tasks
from bench.common.errors import ConfigError, one_line
from bench.plan import sources as code
from bench.plan.config import Config
from bench.plan.data import is_data, spelled
from bench.plan.machine import THIS_MACHINE, Resources, choose_device, installed, measuring_identity
from bench.plan.sources import Source, calls, closure
from bench.training.settings import Training

# The keys in which the entries of a comparison may differ, and those that their labels show where they differ.
ENTRY = ("attention", "impl", "dtype", "model")
NAMED = ("impl", "dtype")
SIZES = ("seq_len", "batch_size", "num_heads", "head_dim", "dtype", "causal", "device", "impl", "seed", "repeats")
# The mechanism that computes exactly what others approximate, by function.
EXACT = {"softmax": "flash", "polynomial": "polynomial"}


@dataclass(frozen=True)
class Variant:
    """A mechanism's YAML file: its name, the settings in it, and the keys that the command line sets as well."""

    name: str
    attention: dict[str, Any]
    overridden: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Cell:
    """The measurement of one child process.

    `config` holds the label and all keys that determine the measurement, resolved. `sources` is the code that runs.
    `unsupported` is the reason why the mechanism cannot be built; None if it can, or if that was not checked yet.
    """

    config: dict[str, Any]
    cell_id: str
    timeout: float
    unsupported: str | None = None
    sources: tuple[Source, ...] = ()

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The configuration of each mechanism of a comparison, or the only one."""
        return [self.config, *({**self.config, **other} for other in self.config["bench"].get("against", ()))]

    @property
    def title(self) -> str:
        """A short name for progress lines and tables."""
        features = self.config["bench"].get("num_features")
        size = f" d={features}" if features else ""
        return f"{self.config['bench']['name']} {self.config['label']} n={self.config['seq_len']}{size}"


def make_cell(config: Config, variant: Variant, resources: Resources = THIS_MACHINE) -> Cell:
    """Resolve a checked configuration into a cell for `resources`. Nothing is built here: a child process tries that.

    Raises `ConfigError` for a value that cannot be used, or two values that contradict each other.
    """
    return _cell(_resolve(config, variant, resources), config.timeout, resources)


def merge_compared(cells: list[Cell], resources: Resources = THIS_MACHINE) -> list[Cell]:
    """Merge cells of a comparing benchmark that differ only in mechanism, implementation, dtype and model into one.

    The first entry is the baseline; a comparison of one entry raises `ConfigError`. Two equal entries with different
    labels stay two: that is how the comparison itself is tested.
    """
    merged: list[Cell] = []
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        if not measures.get(cell.config["bench"]["name"]).compares:
            merged.append(cell)
            continue
        shared = {key: value for key, value in cell.config.items() if key not in ("label", *ENTRY)}
        groups.setdefault(json.dumps(shared, sort_keys=True), []).append(cell)
    for group in groups.values():
        told = [
            {key: cell.config[key] for key in NAMED}
            | {f"model.{key}": value for key, value in cell.config.get("model", {}).items()}
            for cell in group
        ]
        keys = dict.fromkeys(key for each in told for key in each)
        named = [key for key in keys if len({json.dumps(each.get(key)) for each in told}) > 1]
        entries: dict[str, Cell] = {}
        for cell, each in zip(group, told, strict=True):
            words = (f"{key}={each.get(key)}" for key in named)
            entries.setdefault(" ".join([cell.config["label"], *words]), cell)
        (label, first), *others = entries.items()
        if not others:
            bench = first.config["bench"]["name"]
            raise ConfigError(f"attention={label}: bench={bench} needs two or more, as in attention=flash,polysketch")
        against = [{"label": name, **{key: c.config[key] for key in ENTRY if key in c.config}} for name, c in others]
        config = {**first.config, "label": label, "bench": {**first.config["bench"], "against": against}}
        merged.append(_cell(config, first.timeout, resources))
    return merged


def content_id(config: dict[str, Any], sources: tuple[Source, ...], resources: Resources = THIS_MACHINE) -> str:
    """The hash of all that determines a measurement: configuration, code, device and library versions, not labels."""
    content = {
        "config": _measured(config),
        "sources": {source.name: source.sha256 for source in sources},
        "packages": {package: installed(package) for package in _packages(config)},
        "machine": measuring_identity(config["device"], resources),
        "inputs": _identity(json.dumps(config["inputs"])) if "task" not in config else {},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def clear_caches() -> None:
    """Clear the caches of source code and inputs, since files may change before the next plan."""
    code.clear_caches()
    _identity.cache_clear()
    _own_files.cache_clear()


def _cell(config: dict[str, Any], timeout: float, resources: Resources) -> Cell:
    try:
        sources = _sources(config)
        files = _own_files(json.dumps(config["task"])) if "task" in config else {}
        config |= {"files": files} if files else {}  # figures compare no trainings on different contents
        return Cell(config, content_id(config, sources, resources), timeout, sources=sources)
    except ValueError as error:  # a file or model that the inputs come from is missing
        raise ConfigError(one_line(error)) from None


@functools.cache
def _identity(source: str) -> dict[str, Any]:
    """The identity of the inputs that a JSON text describes. Cached for all cells, since files may be large."""
    return inputs.source(json.loads(source)).identity()


@functools.cache
def _own_files(task: str) -> dict[str, Any]:
    """The user's own files that the examples of a task, a JSON text, are read from."""
    return tasks.settings(json.loads(task)).own_files()


def _packages(config: dict[str, Any]) -> Iterator[str]:
    """The packages, besides PyTorch, that mechanisms run in and that examples are made of."""
    yield from (info.package for info in _infos(config) if info.package)
    if "task" in config:
        yield from tasks.settings(config["task"]).packages()


def _measured(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without labels, and with only the kind of device: the machine's identity names the model.

    A comparison's `num_features` is left out, since the hyperparameters of its mechanisms include it. How often a
    training is saved changes nothing that is measured.
    """
    bench = dict(config["bench"])
    if "against" in bench:
        bench.pop("num_features", None)
        bench["against"] = [
            {key: value for key, value in other.items() if key != "label"} for other in bench["against"]
        ]
    measured = {**config, "bench": bench, "device": config["device"].partition(":")[0]}
    del measured["label"]
    if "checkpoint_seconds" in config.get("training", {}):
        measured["training"] = config["training"] | {"checkpoint_seconds": Training.checkpoint_seconds}
    return measured


def _sources(config: dict[str, Any]) -> tuple[Source, ...]:
    """The code that a measurement runs: child process, benchmark, inputs, and every mechanism that these use."""
    names = {info.name for info in _infos(config)}
    suite = ["bench.execution.child", measures.get(config["bench"]["name"]).__module__]
    through: frozenset[str] = frozenset()
    if "task" not in config:  # a benchmark that trains reads its task instead
        source = inputs.source(config["inputs"])
        suite, through = [*suite, type(source).__module__], source.mechanisms()
    if calls(closure(tuple(suite)), "exact"):
        functions = {info.approximates for info in _infos(config)}
        names |= {exact for function, exact in EXACT.items() if function in functions}
    modules = {attention_zoo.attention_class(name).__module__ for name in names | through}
    return closure((*suite, *sorted(modules)))


def _infos(config: dict[str, Any]) -> list[attention_zoo.AttentionInfo]:
    """The registry's entries for the mechanisms of a cell."""
    mechanisms = [config["attention"], *(other["attention"] for other in config["bench"].get("against", ()))]
    return [attention_zoo.info(mechanism["name"]) for mechanism in mechanisms]


def _resolve(config: Config, variant: Variant, resources: Resources) -> dict[str, Any]:
    try:
        attention = _complete(config.attention)
        size = attention_zoo.info(attention["name"]).size
    except ValueError as error:
        raise ConfigError(one_line(error)) from None
    label = _label(variant, attention)
    bench = spelled(config.bench)
    if "num_features" in bench:
        asked = bench["num_features"]
        if size is not None and asked is not None:
            if f"attention.{size}" in variant.overridden and attention[size] != asked:
                raise ConfigError(f"attention.{size}={attention[size]}: contradicts bench.num_features={asked}")
            attention[size] = asked
        elif not measures.get(bench["name"]).compares:  # in a comparison, another entry may have a size
            bench["num_features"] = None if size is None else attention[size]  # None: one cell for all values
    sizes = {key: getattr(config, key) for key in SIZES}
    sizes["batch_size"] = config.batch_size or config.tokens_per_batch // config.seq_len
    if not sizes["batch_size"]:
        allowed = f"at least seq_len={config.seq_len}, or set batch_size"
        raise ConfigError(f"tokens_per_batch={config.tokens_per_batch}: must be {allowed}")
    trained = {}
    if config.model is not None and config.task is not None and config.training is not None:
        trained = {"model": config.model, "task": config.task, "training": config.training}
        model, task = models.settings(config.model), tasks.settings(config.task)
        model.require_answers(task.classes)
        model.require_fits({**sizes, "attention": attention, "training": config.training})
        task.require_fits(sizes)
        if not model.has_attention:
            label = model.name
        if sizes["batch_size"] % (parts := config.training["accumulate"]):
            raise ConfigError(f"training.accumulate={parts}: must divide batch_size={sizes['batch_size']}")
    sizes["device"] = choose_device(config.device, resources)
    return {"label": label, "attention": attention, "bench": bench, "inputs": config.inputs, **sizes, **trained}


def _complete(attention: Mapping[str, Any]) -> dict[str, Any]:
    """A mechanism with all hyperparameters; equal values get one spelling: `scale=1` and `scale=1.0` are both 1.0."""
    defaults, floats = _hyperparameters(attention_zoo.attention_class(attention["name"]))  # type: ignore[arg-type]
    return spelled({"name": None, **defaults, **attention}, floats)


@functools.cache
def _hyperparameters(mechanism: type[attention_zoo.Attention]) -> tuple[dict[str, Any], frozenset[str]]:
    """A mechanism's defaults that a configuration can express, and the names of the hyperparameters that are floats."""
    parameters = inspect.signature(mechanism.__init__).parameters
    floats = (key for key, p in parameters.items() if "float" in str(p.annotation) or isinstance(p.default, float))
    defaults = attention_zoo.hyperparameters(mechanism.info.name)
    return {key: value for key, value in defaults.items() if is_data(value)}, frozenset(floats)


def _label(variant: Variant, attention: dict[str, Any]) -> str:
    """The variant's name and the hyperparameters whose values do not come from its file."""
    own = {**_complete({**variant.attention, "name": attention["name"]}), "name": variant.attention.get("name")}
    words = (
        f"{key}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'), default=str)}"
        for key, value in attention.items()
        if key not in own or own[key] != value
    )
    return " ".join([variant.name, *words])
