"""One checked configuration: what a user may set, beside what benchmarks and inputs declare themselves."""

import dataclasses
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import attention_zoo
from bench import measures, models, tasks
from bench.common import schema
from bench.common.errors import ConfigError, one_line
from bench.common.schema import DTYPES, checked, described, setting
from bench.inputs import SOURCES, source
from bench.plan import executors
from bench.plan.data import is_data, leaves, require_data
from bench.training import settings as training

YEAR_S = 365 * 86400
# Of a size: two of them are a number of 64 bits.
LARGEST = 2**31 - 1
# Of benchmarks that train only; nothing is chosen where a file does not say so.
OF_TRAINING = ("model", "task", "training")


@dataclass
class Tracking:
    """Where runs are mirrored to."""

    name: str = setting("mlflow", "where runs are mirrored to", choices=("mlflow", "none"))
    experiment: str = setting("attention-zoo", "name of the experiment in the store")
    uri: str | None = setting(None, "address of an MLflow store; null: SQLite in results_dir")


@dataclass
class Config:
    """One cell, and how to run it."""

    attention: dict[str, Any]
    bench: dict[str, Any]
    inputs: dict[str, Any]
    tracking: dict[str, Any]
    # Of benchmarks that train.
    model: dict[str, Any] | None = None
    task: dict[str, Any] | None = None
    training: dict[str, Any] | None = None
    seq_len: int = setting(1024, "n, tokens of a sequence", minimum=1, maximum=LARGEST)
    batch_size: int | None = setting(None, "sequences; null: tokens_per_batch // seq_len", minimum=1, maximum=LARGEST)
    tokens_per_batch: int = setting(
        16384, "sequences times seq_len, where batch_size is null", minimum=1, maximum=LARGEST
    )
    num_heads: int = setting(12, "heads of attention", minimum=1, maximum=LARGEST)
    head_dim: int = setting(64, "h, numbers of a head", minimum=1, maximum=LARGEST)
    dtype: str = setting("float32", "of query, key and value", choices=DTYPES)
    causal: bool = setting(False, "whether a token sees only itself and those before it")
    device: str = setting("auto", "auto (a GPU where there is one), cpu, cuda or cuda:N")
    impl: str = setting(
        "auto",
        "auto (fused where it takes the input), reference (readable code) or fused (fast code)",
        choices=("auto", "reference", "fused"),
    )
    seed: int = setting(0, "number from which everything random is drawn", minimum=0)
    repeats: int = setting(
        10, "samples of a latency, rounds of a comparison, draws of an error", minimum=1, maximum=1_000_000
    )
    timeout: float = setting(
        600.0,
        "most seconds of a cell, without those in which Triton compiles or a task draws and reads what it keeps",
        above=0,
        maximum=YEAR_S,
    )
    rerun: str = setting(
        "failed", "which records to measure again, beside what is missing", choices=("failed", "disturbed", "all")
    )
    results_dir: str = setting("runs", "folder of the records")
    size: str = setting("laptop", "size of an experiment", choices=("minutes", "laptop", "night", "paper"))
    max_cells: int = setting(10_000, "most cells that a command may ask for", minimum=1)
    dry_run: bool = setting(False, "say what there is to measure and how long it may take, and do nothing")


def kind(group: str, name: Any) -> type | None:
    """The class that `name` means in a group of files; None for a name that nobody knows."""
    if group in ("config", "training", "tracking"):
        return {"config": Config, "training": training.Training, "tracking": Tracking}[group]
    if not isinstance(name, str):
        return None
    if group == "attention":
        return attention_zoo.attention_class(name) if name in attention_zoo.list_attentions() else None
    if group == "bench":
        return measures.find(name)
    if group == "inputs":
        return type(source({"name": name})) if name in SOURCES else None
    known: dict[str, Any] = {"model": models.MODELS, "task": tasks.TASKS, "hydra.launcher": executors.EXECUTORS}
    return known.get(group, {}).get(name)


def defaults(group: str, name: Any) -> dict[str, Any]:
    """The settings of what `name` means in a group of files, with their defaults; none for a name that nobody knows."""
    found = kind(group, name)
    if found is None or (group == "tracking" and name != "mlflow"):
        return {}
    if group == "inputs":
        return _inputs({"name": name})
    given = attention_zoo.hyperparameters(name) if group == "attention" else schema.defaults(found)
    return {
        key: value for key, value in given.items() if is_data(value) and (group != "config" or key not in OF_TRAINING)
    }


def meanings(group: str, name: Any) -> dict[str, str]:
    """What the settings of what `name` means in a group mean, in a few words each."""
    found = kind(group, name)
    if group == "attention":
        lines = [schema.documented(inspect.getdoc(base) or "") for base in reversed(found.__mro__)] if found else []
        return {key: says for own in lines for key, says in own.items()}
    return {field.name: field.metadata.get("meaning", "") for field in dataclasses.fields(found)} if found else {}


def keys_that_end(name: str) -> str:
    """The settings of groups that have this name behind their dot, and of what: `bench.num_features (of flops)`."""
    groups: dict[str, list[str]] = {"attention": attention_zoo.list_attentions(), "bench": measures.list_benchmarks()}
    groups |= {"inputs": [*SOURCES], "model": [*models.MODELS], "task": [*tasks.TASKS], "training": [""]}
    having = {group: [one for one in names if name in defaults(group, one)] for group, names in groups.items()}
    found = [
        f"{group}.{name}" + (f" (of {', '.join(own[:3])})" if own[0] else "") for group, own in having.items() if own
    ]
    return " or ".join(found)


def check(values: Mapping[str, Any]) -> Config:
    """Validate a composed configuration; a `ConfigError` names the key, its value and what is allowed."""
    config = checked(Config, _plain(values))
    if not config.results_dir.strip() or re.match(r"\w+://", config.results_dir):
        raise ConfigError(f"results_dir={config.results_dir!r}: must be a folder, or the name of a new one")
    config.bench = measures.check(config.bench)
    bench, trains = config.bench["name"], measures.get(config.bench["name"]).trains
    given = _inputs(config.inputs)
    if trains:
        _check_training(config, bench)
        _require_default(
            "inputs", {**given, **config.inputs}, _inputs({"name": "gaussian"}), f"bench={bench} reads a task"
        )
        config.inputs = {"name": config.task["name"]}  # type: ignore[index]
    else:
        for key in ("model", "task"):
            if getattr(config, key) is not None:
                raise ConfigError(f"{key}={getattr(config, key).get('name')}: bench={bench} reads none")
        _require_default("training", config.training or {}, training.check({}), f"bench={bench} does not train")
        config.training, config.inputs = None, given
    config.tracking = dataclasses.asdict(checked(Tracking, {"name": "mlflow", **config.tracking}, "tracking."))
    if not config.tracking["experiment"].strip():
        raise ConfigError("tracking.experiment='': must be a name")
    if not isinstance(config.attention.get("name"), str):
        raise ConfigError(f"attention={config.attention!r}: must be the name of a file in conf/attention")
    return config


def _check_training(config: Config, bench: str) -> None:
    """What a benchmark that trains reads instead of inputs."""
    for key, example in (("model", "transformer_tiny"), ("task", "reversal"), ("training", "default")):
        if getattr(config, key) is None:
            raise ConfigError(f"{key}=null: bench={bench} needs one, such as {key}={example}")
    assert config.model is not None and config.task is not None and config.training is not None
    if config.dtype == "float16":  # whose gradients vanish where losses are not scaled
        raise ConfigError(f"dtype=float16: bench={bench} trains in float64, float32 or bfloat16")
    config.model = described(models.settings(config.model))
    config.task = described(tasks.settings(config.task))
    config.training = training.check(config.training)


def _require_default(group: str, given: Mapping[str, Any], default: Mapping[str, Any], why: str) -> None:
    """Refuse a group's settings that would be ignored, by the first one that somebody has set."""
    for key, value in given.items():
        if key not in default or value != default[key]:
            raise ConfigError(f"{group if key == 'name' else f'{group}.{key}'}={value}: {why}, leave it out")


def split(config: Config) -> list[Config]:
    """A configuration for each cell: what cannot be measured of one pass must not cost the others."""
    return [dataclasses.replace(config, bench=bench) for bench in measures.split(config.bench)]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with interpolations between keys resolved, and everything that runs code refused."""
    require_data(values)
    if not any(isinstance(value, str) and ("${" in value or value == "???") for _, value in leaves(values)):
        return dict(values)
    try:
        return OmegaConf.to_container(OmegaConf.create(dict(values)), resolve=True, throw_on_missing=True)  # type: ignore
    except OmegaConfBaseException as error:
        raise ConfigError(one_line(error)) from None


def _inputs(values: dict[str, Any]) -> dict[str, Any]:
    try:
        return described(source(values))
    except ValueError as error:  # a folder that is not there, or is not read with these
        raise ConfigError(str(error)) from None
