"""The schema of every configuration: what a user may set, with help and bounds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bench.errors import ConfigError, keyed, one_line
from bench.inputs import source

DTYPES = ("float64", "float32", "bfloat16")
PASSES = ("forward", "backward", "forward_backward")
MEMORY_PASSES = ("forward", "forward_backward")


def setting(default: Any, help: str, *, minimum: float | None = None, choices: tuple[str, ...] | None = None) -> Any:
    """A dataclass field with its help and bounds."""
    metadata = {"help": help, "minimum": minimum, "choices": choices}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class Latency:
    """Time of one call: forward, backward and both, at constant tokens per batch."""

    name: str = "latency"
    passes: list[str] = setting(list(PASSES), "which passes to time", choices=PASSES)
    min_sample_ms: float = setting(20.0, "calls are repeated until one sample lasts this long", minimum=0)
    memory_limit: float | None = setting(None, "GiB the cell may allocate; null: what is available", minimum=0)


@dataclass
class Memory:
    """Peak bytes over the baseline, and the largest batch or length that fits."""

    name: str = "memory"
    passes: list[str] = setting(list(MEMORY_PASSES), "which passes to run", choices=MEMORY_PASSES)
    largest: str | None = setting(
        None, "also bisect for the largest value that fits", choices=("batch_size", "seq_len")
    )
    largest_limit: int = setting(65536, "where the bisection stops looking", minimum=1)
    memory_limit: float | None = setting(None, "GiB the cell may allocate; null: what is available", minimum=0)


@dataclass
class SpectralNorm:
    """||BV - R||_2 against exact attention, absolute and relative to ||BV||_2; `repeats` draws per sequence."""

    name: str = "spectral_norm"
    num_features: int | None = setting(
        None, "d: columns, rows, projection dimension or features of the mechanism; null: its own", minimum=1
    )
    memory_limit: float | None = setting(None, "GiB the cell may allocate; null: what is available", minimum=0)


@dataclass
class SketchError:
    """Errors and signs of sketched polynomial weights (ICML paper, Theorem 1.1); `repeats` draws per sequence."""

    name: str = "sketch_error"
    num_features: int | None = setting(None, "r; null: the mechanism's own", minimum=1)
    memory_limit: float | None = setting(None, "GiB the cell may allocate; null: what is available", minimum=0)


@dataclass
class Flops:
    """FLOPs of one forward pass: the mechanism's formula beside a counted run."""

    name: str = "flops"
    num_features: int | None = setting(
        None, "d: columns, rows, projection dimension or features of the mechanism; null: its own", minimum=1
    )
    memory_limit: float | None = setting(None, "GiB the cell may allocate; null: what is available", minimum=0)


@dataclass
class Decode:
    """Time of one decoding step and bytes of the state at the end of a context of seq_len tokens; causal only."""

    name: str = "decode"
    steps: int = setting(16, "steps timed from one copied state, the last ones of the context", minimum=1)
    min_sample_ms: float = setting(20.0, "steps are repeated until one sample lasts this long", minimum=0)
    memory_limit: float | None = setting(None, "GiB the cell may allocate; null: what is available", minimum=0)


@dataclass
class Compare:
    """Interleaved rounds of all mechanisms of the sweep in one process; the first one is the baseline."""

    name: str = "compare"
    measured_pass: str = setting("forward", "the pass to time", choices=PASSES)
    min_sample_ms: float = setting(20.0, "calls are repeated until one sample lasts this long", minimum=0)
    memory_limit: float | None = setting(None, "GiB the cell may allocate; null: what is available", minimum=0)


@dataclass
class Tracking:
    """Where runs are mirrored to."""

    name: str = setting("mlflow", "mlflow or none", choices=("mlflow", "none"))
    experiment: str = setting("attention-zoo", "MLflow experiment")
    uri: str | None = setting(None, "MLflow store; null: SQLite in results_dir")


@dataclass
class Config:
    """One cell, and how to run it."""

    attention: dict[str, Any]
    bench: dict[str, Any]
    inputs: dict[str, Any]
    tracking: dict[str, Any]
    seq_len: int = setting(1024, "tokens of one sequence", minimum=1)
    batch_size: int | None = setting(None, "sequences; null: tokens_per_batch // seq_len", minimum=1)
    tokens_per_batch: int = setting(16384, "held constant over seq_len", minimum=1)
    num_heads: int = setting(12, "heads", minimum=1)
    head_dim: int = setting(64, "h", minimum=1)
    dtype: str = setting("float32", "of queries, keys, values and parameters", choices=DTYPES)
    causal: bool = setting(False, "position i sees positions j <= i only")
    device: str = setting("auto", "auto: a GPU where there is one; cpu, cuda, cuda:N")
    impl: str = setting("auto", "implementation", choices=("auto", "reference", "fused"))
    seed: int = setting(0, "of inputs and mechanisms", minimum=0)
    repeats: int = setting(10, "samples, rounds, or draws per sequence", minimum=1)
    timeout: float = setting(600.0, "seconds until a cell is ended", minimum=0)
    rerun: str = setting("failed", "what to measure again beside what is missing", choices=("failed", "all"))
    results_dir: str = setting("runs", "folder of the records")
    size: str = setting("laptop", "of an experiment", choices=("laptop", "paper"))


BENCHES: dict[str, type] = {
    "latency": Latency,
    "memory": Memory,
    "spectral_norm": SpectralNorm,
    "compare": Compare,
    "decode": Decode,
    "sketch_error": SketchError,
    "flops": Flops,
}


def check(values: Mapping[str, Any]) -> Config:
    """Validate a composed configuration: types, names, bounds.

    Raises:
        ConfigError: naming the key, its value and what is allowed.
    """
    plain = _plain(values)
    config: Config = _checked(Config, plain, "")
    config.bench = dataclasses.asdict(_group(config.bench, BENCHES, "bench"))
    config.inputs = _inputs(config.inputs)
    tracking = {"name": "mlflow", **config.tracking}
    config.tracking = dataclasses.asdict(_checked(Tracking, tracking, "tracking."))
    if not isinstance(config.attention.get("name"), str):
        raise ConfigError(f"attention={config.attention!r}: must be the name of a file in conf/attention")
    return config


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain containers, with interpolations between keys resolved and everything that runs code refused."""
    if not isinstance(values, DictConfig):
        values = OmegaConf.create(dict(values))
    raw = OmegaConf.to_container(values, resolve=False)
    for key, value in _leaves(raw, ""):
        if isinstance(value, str) and "${" in value and ":" in value:
            raise ConfigError(f"{key}={value!r}: must not use a resolver")
        if key.rsplit(".", 1)[-1].startswith("_") and not key.startswith("hydra"):
            raise ConfigError(f"{key}={value!r}: keys that start with _ are not allowed, configs are data")
    try:
        return OmegaConf.to_container(values, resolve=True, throw_on_missing=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise ConfigError(keyed(error)) from None


def _leaves(node: Any, key: str) -> list[tuple[str, Any]]:
    if isinstance(node, dict):
        return [leaf for name, child in node.items() for leaf in _leaves(child, f"{key}.{name}".lstrip("."))]
    if isinstance(node, list):
        return [leaf for index, child in enumerate(node) for leaf in _leaves(child, f"{key}[{index}]")]
    return [(key, node)]


def _group(values: dict[str, Any], known: dict[str, type], group: str) -> Any:
    name = values.get("name")
    if name not in known:
        raise ConfigError(f"{group}={name!r}: must be one of {', '.join(known)}")
    return _checked(known[name], values, f"{group}.")


def _inputs(values: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"name": values.get("name"), **dataclasses.asdict(source(values))}
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _checked(schema: type, values: dict[str, Any], prefix: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(schema)}
    for key, value in values.items():
        if key not in fields:
            raise ConfigError(f"{prefix}{key}={value!r}: unknown; known are {', '.join(fields)}")
    try:
        checked = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), values))
    except OmegaConfBaseException as error:
        key = prefix + (error.full_key or "")
        raise ConfigError(f"{key}={values.get(error.full_key or '')!r}: {one_line(error)}") from None
    for name, f in fields.items():
        _check_bounds(prefix + name, getattr(checked, name), f.metadata)
    return checked


def _check_bounds(key: str, value: Any, metadata: Mapping[str, Any]) -> None:
    minimum, choices = metadata.get("minimum"), metadata.get("choices")
    if value is None:
        return
    if isinstance(value, list) and not value:
        raise ConfigError(f"{key}=[]: must name at least one of {', '.join(choices or ())}")
    for item in value if isinstance(value, list) else [value]:
        if choices and item not in choices:
            raise ConfigError(f"{key}={item!r}: must be one of {', '.join(choices)}")
        if minimum is not None and not (math.isfinite(item) and item >= minimum):
            raise ConfigError(f"{key}={item!r}: must be a number of at least {minimum}")
