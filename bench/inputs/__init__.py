"""Where query, key and value come from. A closed registry: a config can name a source, never import one."""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

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
