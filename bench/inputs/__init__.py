"""The sources of query, key and value. A closed registry: a config can name a source, never import one."""

import importlib
from collections.abc import Mapping
from typing import Any

from attention_zoo.checks import require
from bench.common.schema import named
from bench.inputs.base import Source
from bench.training import saved

# Imported when used, so that a cell does not depend on the code of other sources.
SOURCES = {
    "gaussian": ("bench.inputs.gaussian", "Gaussian"),
    "pretrained": ("bench.inputs.pretrained", "Pretrained"),
    "trained": ("bench.training.inputs", "Trained"),
}
# Settings for models of transformers, which have no task of their own; null is the default.
OF_TRANSFORMERS = ("text", "window")


def source(fields: Mapping[str, Any]) -> Source:
    """The source that a config's `inputs` describe: its `name` and the settings of that source.

    `pretrained` becomes `trained` if the model is a folder that `bench=train` left.

    Raises:
        ConfigError: unknown name or setting, or a value out of range.
        ValueError: a setting that this model does not use.
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
