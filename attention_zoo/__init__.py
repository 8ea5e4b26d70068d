"""The attention zoo: efficient attention mechanisms behind one interface."""

import importlib
import os
import pkgutil

from attention_zoo.base import (
    Attention,
    AttentionInfo,
    Executed,
    UnsupportedError,
    attention_class,
    create,
    hyperparameters,
    info,
    list_attentions,
    register,
)

__all__ = [
    "Attention",
    "AttentionInfo",
    "Executed",
    "UnsupportedError",
    "attention_class",
    "create",
    "hyperparameters",
    "info",
    "list_attentions",
    "register",
]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

# Mechanisms from outside the package: importable modules that call `register` (comma-separated names).
for _plugin in filter(None, os.environ.get("ATTENTION_ZOO_PLUGINS", "").split(",")):
    importlib.import_module(_plugin)
