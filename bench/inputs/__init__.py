"""Where query, key and value come from. A closed registry: a config can name a source, never import one."""

import importlib
from collections.abc import Mapping
from typing import Any

from attention_zoo.checks import require
from bench.common.schema import named
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
        ConfigError: unknown name or field, or a value out of range.
        ValueError: a field that is not read with this model.
    """
    values = {key: value for key, value in fields.items() if value is not None or key not in OF_TRANSFORMERS}
    name = values.get("name")
    if name == "pretrained" and isinstance(model := values.get("model"), str) and saved.is_saved(model):
        name = values["name"] = "trained"
        for key in OF_TRANSFORMERS:
            allowed = f"null: {model} reads its own task's test split"
            require(f"inputs.{key}", values.get(key), key not in values, allowed)
    kinds: dict[str, type[Source]] = dict.fromkeys(SOURCES, Source)
    if isinstance(name, str) and name in SOURCES:
        module, kind = SOURCES[name]
        kinds[name] = getattr(importlib.import_module(module), kind)
    return named(kinds, values, "inputs")
