"""One checked configuration: what a user may set, beside what benchmarks and inputs declare themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bench import measures
from bench.errors import ConfigError, keyed
from bench.inputs import source
from bench.schema import DTYPES, checked, setting

LARGEST = 2**63 - 1


@dataclass
class Tracking:
    """Where runs are mirrored to."""

    name: str = setting("mlflow", choices=("mlflow", "none"))
    experiment: str = "attention-zoo"
    uri: str | None = None  # of an MLflow store; None: SQLite in results_dir


@dataclass
class Config:
    """One cell, and how to run it; conf/config.yaml says the same with the same defaults."""

    attention: dict[str, Any]
    bench: dict[str, Any]
    inputs: dict[str, Any]
    tracking: dict[str, Any]
    seq_len: int = setting(1024, minimum=1)
    batch_size: int | None = setting(None, minimum=1)  # None: tokens_per_batch // seq_len
    tokens_per_batch: int = setting(16384, minimum=1)
    num_heads: int = setting(12, minimum=1)
    head_dim: int = setting(64, minimum=1)
    dtype: str = setting("float32", choices=DTYPES)
    causal: bool = False
    device: str = "auto"  # a GPU where there is one; cpu, cuda, cuda:N
    impl: str = setting("auto", choices=("auto", "reference", "fused"))
    seed: int = setting(0, minimum=0)
    repeats: int = setting(10, minimum=1)
    timeout: float = setting(600.0, minimum=0)
    rerun: str = setting("failed", choices=("failed", "all"))
    results_dir: str = "runs"
    size: str = setting("laptop", choices=("laptop", "paper"))
    max_cells: int = setting(10_000, minimum=1)


def check(values: Mapping[str, Any]) -> Config:
    """Validate a composed configuration: types, names, bounds.

    Raises:
        ConfigError: naming the key, its value and what is allowed.
    """
    config = checked(Config, _plain(values))
    if not config.results_dir.strip():
        raise ConfigError(f"results_dir={config.results_dir!r}: must be a folder, or the name of a new one")
    config.bench = measures.check(config.bench)
    config.inputs = _inputs(config.inputs)
    tracking = {"name": "mlflow", **config.tracking}
    config.tracking = dataclasses.asdict(checked(Tracking, tracking, "tracking."))
    if not isinstance(config.attention.get("name"), str):
        raise ConfigError(f"attention={config.attention!r}: must be the name of a file in conf/attention")
    return config


def split(config: Config) -> list[Config]:
    """A configuration for each cell: what cannot be measured of one pass must not cost the others."""
    return [dataclasses.replace(config, bench=bench) for bench in measures.split(config.bench)]


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
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ConfigError(f"{key}={value}: must fit into 64 bits")
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


def _inputs(values: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"name": values.get("name"), **dataclasses.asdict(source(values))}
    except ValueError as error:
        raise ConfigError(str(error)) from None
