"""The checked configuration of one cell: all settings except those that benchmarks and inputs declare themselves."""

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
from bench.plan.data import LARGEST_INTEGER, is_data, leaves, require_data
from bench.training import settings as training

YEAR_S = 365 * 86400
# Largest size: the product of two must fit in int64.
LARGEST = 2**31 - 1
# Only for benchmarks that train; None unless a file chooses one.
OF_TRAINING = ("model", "task", "training")


@dataclass
class Tracking:
    """Tracking of runs in MLflow."""

    name: str = setting("mlflow", "tracking server that runs are copied to: mlflow or none", choices=("mlflow", "none"))
    experiment: str = setting("attention-zoo", "name of the MLflow experiment")
    uri: str | None = setting(None, "MLflow tracking URI; null: an SQLite file in results_dir")


@dataclass
class Config:
    """The settings of one cell, and of the sweep that runs it."""

    attention: dict[str, Any]
    bench: dict[str, Any]
    inputs: dict[str, Any]
    tracking: dict[str, Any]
    # Only for benchmarks that train.
    model: dict[str, Any] | None = None
    task: dict[str, Any] | None = None
    training: dict[str, Any] | None = None
    seq_len: int = setting(1024, "sequence length n, in tokens", minimum=1, maximum=LARGEST)
    batch_size: int | None = setting(None, "sequences; null: tokens_per_batch // seq_len", minimum=1, maximum=LARGEST)
    tokens_per_batch: int = setting(
        16384, "tokens per batch (batch size times seq_len), if batch_size is null", minimum=1, maximum=LARGEST
    )
    num_heads: int = setting(12, "number of attention heads", minimum=1, maximum=LARGEST)
    head_dim: int = setting(64, "dimension h of each head", minimum=1, maximum=LARGEST)
    dtype: str = setting("float32", "dtype of query, key and value", choices=DTYPES)
    causal: bool = setting(False, "causal attention: a token attends to itself and earlier tokens only")
    device: str = setting("auto", "auto (a GPU if there is one), cpu, cuda or cuda:N")
    impl: str = setting(
        "auto",
        "implementation: auto (fused if it supports the input), reference (readable code) or fused (fast code)",
        choices=("auto", "reference", "fused"),
    )
    seed: int = setting(0, "random seed", minimum=0, maximum=LARGEST_INTEGER)
    repeats: int = setting(
        10, "samples of a latency, rounds of a comparison, or random draws of an error", minimum=1, maximum=1_000_000
    )
    timeout: float = setting(
        600.0,
        "time limit of a cell in seconds, not counting Triton's compilation and what a task draws and reads once",
        above=0,
        maximum=YEAR_S,
    )
    rerun: str = setting(
        "failed",
        "records to measure again: failed, also disturbed, also those with a final status such as oom, or all",
        choices=("failed", "disturbed", "oom", "unsupported", "incorrect", "nonfinite", "all"),
    )
    results_dir: str = setting("runs", "folder for the records")
    size: str = setting("laptop", "size of the experiment", choices=("minutes", "laptop", "night", "paper"))
    max_cells: int = setting(10_000, "largest number of combinations of values in one command", minimum=1)
    dry_run: bool = setting(False, "only print what would be measured and how long it may take")


def schema_class(group: str, name: Any) -> type | None:
    """The class that defines the settings of `name` in a configuration group; None if the name is unknown."""
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
    """The default settings of `name` in a configuration group; empty if the name is unknown."""
    found = schema_class(group, name)
    if found is None or (group == "tracking" and name != "mlflow"):
        return {}
    if group == "inputs":
        return _inputs({"name": name})
    given = attention_zoo.hyperparameters(name) if group == "attention" else schema.defaults(found)
    left_out = OF_TRAINING if group == "config" else ()
    return {key: value for key, value in given.items() if is_data(value) and key not in left_out}


def meanings(group: str, name: Any) -> dict[str, str]:
    """A short description of each setting of `name` in a configuration group."""
    found = schema_class(group, name)
    if group == "attention":
        lines = [schema.documented(inspect.getdoc(base) or "") for base in reversed(found.__mro__)] if found else []
        return {key: says for own in lines for key, says in own.items()}
    return {field.name: field.metadata.get("meaning", "") for field in dataclasses.fields(found)} if found else {}


def keys_that_end(name: str) -> str:
    """The group settings with this last name, and whose they are, such as `bench.num_features (of flops)`."""
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
        gaussian = _inputs({"name": "gaussian"})
        _require_default("inputs", {**given, **config.inputs}, gaussian, f"bench={bench} reads a task")
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
    """Check model, task and training, which a benchmark that trains reads instead of inputs."""
    for key, example in (("model", "transformer_tiny"), ("task", "reversal"), ("training", "default")):
        if getattr(config, key) is None:
            raise ConfigError(f"{key}=null: bench={bench} needs one, such as {key}={example}")
    assert config.model is not None and config.task is not None and config.training is not None
    if config.dtype == "float16":  # its gradients underflow without loss scaling
        raise ConfigError(f"dtype=float16: bench={bench} trains in float64, float32 or bfloat16")
    config.model = described(models.settings(config.model))
    config.task = described(tasks.settings(config.task))
    config.training = training.check(config.training)


def _require_default(group: str, given: Mapping[str, Any], default: Mapping[str, Any], why: str) -> None:
    """Refuse the first setting of a group that differs from its default, if the group would be ignored."""
    for key, value in given.items():
        if key not in default or value != default[key]:
            raise ConfigError(f"{group if key == 'name' else f'{group}.{key}'}={value}: {why}, leave it out")


def split(config: Config) -> list[Config]:
    """One configuration per cell: forward and backward pass, say, so that one that fails does not cost the other."""
    return [dataclasses.replace(config, bench=bench) for bench in measures.split(config.bench)]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with interpolations between keys resolved; refuses everything that would run code."""
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
    except ValueError as error:  # a missing folder, or settings that do not fit it
        raise ConfigError(str(error)) from None
