"""One measurement: a resolved configuration and the content id that names it."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attention_zoo
from bench.measures.workbench import build_attention
from bench.plan.config import Config, ConfigError
from bench.plan.machine import has_gpu, machine, measuring_identity

HERE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Cell:
    """What one child process measures.

    `config` holds the keys that determine the measurement, all resolved; `unsupported` is the reason why the
    mechanism cannot be built for it, where that is known already.
    """

    config: dict[str, Any]
    cell_id: str
    timeout: float
    unsupported: str | None = None

    @property
    def title(self) -> str:
        """A short name for progress and tables."""
        features = self.config["bench"].get("num_features")
        size = f" d={features}" if features else ""
        return f"{self.config['bench']['name']} {self.config['label']} n={self.config['seq_len']}{size}"


def make_cell(config: Config, label: str) -> Cell:
    """Resolve a checked configuration into a cell, and build its mechanism once to see that it can be built.

    Raises:
        ConfigError: a value that cannot be used, or two that contradict each other.
    """
    resolved = _resolve(config, label)
    unsupported = None
    try:
        build_attention(resolved)
    except attention_zoo.UnsupportedError as error:
        unsupported = str(error)
    except ValueError as error:
        raise ConfigError(_with_group(str(error), config)) from None
    return Cell(resolved, content_id(resolved), config.timeout, unsupported)


def merge_compared(cells: list[Cell]) -> list[Cell]:
    """Cells of `bench=compare` that differ in their mechanism only become one cell: the first is the baseline.

    Raises:
        ConfigError: fewer than two mechanisms to compare.
    """
    merged: list[Cell] = []
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.config["bench"]["name"] != "compare":
            merged.append(cell)
            continue
        shared = {key: value for key, value in cell.config.items() if key not in ("label", "attention")}
        groups.setdefault(json.dumps(shared, sort_keys=True), []).append(cell)
    for group in groups.values():
        labels = [cell.config["label"] for cell in group]
        if len(set(labels)) < 2:
            raise ConfigError(
                f"attention={labels[0]}: bench=compare needs two or more, as in attention=flash,polysketch"
            )
        against = [{"label": c.config["label"], "attention": c.config["attention"]} for c in group[1:]]
        first = group[0].config
        config = {**first, "bench": {**first["bench"], "against": against}}
        reasons = [f"{c.config['label']}: {c.unsupported}" for c in group if c.unsupported]
        merged.append(Cell(config, content_id(config), group[0].timeout, "; ".join(reasons) or None))
    return merged


def content_id(config: dict[str, Any]) -> str:
    """The hash of what determines a measurement: configuration, code, device, library versions."""
    content = {
        "config": config,
        "sources": sources_sha256(config),
        "packages": {package: machine()[package] for package in _packages(config)},
        "machine": measuring_identity(config["device"]),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sources_sha256(config: dict[str, Any]) -> str:
    """The hash of the code that a measurement runs: mechanisms, what they share, the benchmark, the inputs."""
    return _hash_sources(_mechanisms(config), config["bench"]["name"])


def _mechanisms(config: dict[str, Any]) -> tuple[str, ...]:
    mechanisms = [config["attention"], *(other["attention"] for other in config["bench"].get("against", ()))]
    return tuple(sorted({mechanism["name"] for mechanism in mechanisms}))


def _packages(config: dict[str, Any]) -> set[str]:
    return {info.package for info in map(attention_zoo.info, _mechanisms(config)) if info.package}


@functools.cache
def _hash_sources(mechanisms: tuple[str, ...], bench: str) -> str:
    zoo = Path(attention_zoo.__file__).parent
    files = {
        zoo / "base.py",
        *zoo.glob("ops/*.py"),
        HERE / "measures" / "timing.py",
        HERE / "measures" / "workbench.py",
    }
    files |= {HERE / "measures" / f"{bench}.py", *HERE.glob("inputs/*.py")}
    for name in mechanisms:
        ancestors = attention_zoo.attention_class(name).__mro__
        own = [
            cls for cls in ancestors if cls is not attention_zoo.Attention and issubclass(cls, attention_zoo.Attention)
        ]
        files |= {Path(inspect.getsourcefile(cls) or "") for cls in own}
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _resolve(config: Config, label: str) -> dict[str, Any]:
    attention, bench = dict(config.attention), dict(config.bench)
    try:
        size = attention_zoo.info(attention["name"]).size
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if "num_features" in bench:
        if size is None:
            bench["num_features"] = None  # one cell, whatever d the sweep asks for
        elif bench["num_features"] is not None:
            attention[size] = bench["num_features"]
        else:
            bench["num_features"] = attention.get(size, attention_zoo.hyperparameters(attention["name"])[size])
    if config.batch_size is None and config.tokens_per_batch < config.seq_len:
        raise ConfigError(
            f"tokens_per_batch={config.tokens_per_batch}: must be at least seq_len={config.seq_len}, or set batch_size"
        )
    if config.device == "cuda" and not has_gpu():
        raise ConfigError("device='cuda': this machine shows no GPU; must be auto or cpu")
    return {
        "label": label,
        "attention": attention,
        "bench": bench,
        "inputs": config.inputs,
        "seq_len": config.seq_len,
        "batch_size": config.batch_size or config.tokens_per_batch // config.seq_len,
        "num_heads": config.num_heads,
        "head_dim": config.head_dim,
        "dtype": config.dtype,
        "causal": config.causal,
        "device": ("cuda" if has_gpu() else "cpu") if config.device == "auto" else config.device,
        "impl": config.impl,
        "seed": config.seed,
        "repeats": config.repeats,
    }


def _with_group(message: str, config: Config) -> str:
    key = message.split("=", 1)[0]
    return f"attention.{message}" if key in config.attention else message
