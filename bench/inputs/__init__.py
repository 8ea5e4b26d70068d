"""Where query, key and value come from. A closed registry: a config can name a source, never import one."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from attention_zoo.checks import check_choice, require
from bench.inputs.base import Source
from bench.training import saved

# Imported by name: the code of one source is no part of a cell that reads another.
SOURCES = {
    "gaussian": ("bench.inputs.gaussian", "Gaussian"),
    "pretrained": ("bench.inputs.pretrained", "Pretrained"),
    "trained": ("bench.training.inputs", "Trained"),
}
# What a model is read with that has no task of its own; null is the default.
OF_TRANSFORMERS = ("text", "window")


def source(fields: Mapping[str, Any]) -> Source:
    """The source that a config's `inputs` describe: its `name` and the fields of that source.

    `pretrained` is `trained` where the model is a folder that `bench=train` left.

    Raises:
        ValueError: unknown name or field, or a value out of range.
    """
    values = dict(fields)
    name = check_choice("inputs.name", values.pop("name", None), tuple(SOURCES))
    values = {key: value for key, value in values.items() if value is not None or key not in OF_TRANSFORMERS}
    if name == "pretrained" and isinstance(model := values.get("model"), str) and saved.is_saved(model):
        name = "trained"
        for key in OF_TRANSFORMERS:
            allowed = f"null: {model} reads its own task's test split"
            require(f"inputs.{key}", values.get(key), key not in values, allowed)
    module, class_name = SOURCES[name]
    kind: type[Source] = getattr(importlib.import_module(module), class_name)
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in known:
            raise ValueError(f"inputs.{key}={value!r}: unknown; {name} takes {', '.join(known)}")
    return kind(**values)


def load(config: Mapping[str, Any], cache_dir: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of a cell: the same for every mechanism in a comparison.

    Args:
        config: a cell's resolved config; `inputs`, `seq_len`, `batch_size`, `num_heads`, `head_dim` and
            `seed` are read.
        cache_dir: where a source whose inputs are costly to make keeps them; the folder above it is there.

    Returns:
        Three float32 CPU tensors `(batch_size, num_heads, seq_len, head_dim)`.

    Raises:
        ValueError: a value of the config is unknown, out of range or does not fit the model or the text.
        ModuleNotFoundError: a package is missing; the message gives the pip command.
        ConnectionError: a name on the Hugging Face hub cannot be read.
    """
    return source(config["inputs"]).load(config, cache_dir)


def check(config: Mapping[str, Any], cache_dir: Path) -> None:
    """Raise what `load` would raise, as far as that can be known without making the tensors; writes nothing."""
    source(config["inputs"]).check(config, cache_dir)
