"""The attention zoo: efficient attention mechanisms behind one interface."""

import contextlib
import importlib
import os
import pkgutil
from importlib.metadata import PackageNotFoundError, version

from attention_zoo.base import Attention
from attention_zoo.info import AttentionInfo, Executed, UnsupportedError
from attention_zoo.registry import attention_class, create, hyperparameters, info, list_attentions, register

__version__ = "0+checkout"
with contextlib.suppress(PackageNotFoundError):  # not installed, only checked out
    __version__ = version("attention-zoo")

__all__ = [
    "Attention",
    "AttentionInfo",
    "Executed",
    "UnsupportedError",
    "__version__",
    "attention_class",
    "create",
    "hyperparameters",
    "import_plugins",
    "info",
    "list_attentions",
    "register",
]


def import_plugins() -> None:
    """Import the mechanisms from outside the package: modules that call `register`, named (comma-separated) in the
    environment variable ATTENTION_ZOO_PLUGINS.

    Raises:
        ImportError: there is no such module, or a name is empty.
    """
    for plugin in (named := os.environ.get("ATTENTION_ZOO_PLUGINS", "")) and named.split(","):
        if not plugin:
            raise ImportError("a name is empty")
        importlib.import_module(plugin)


for _package in (__name__, f"{__name__}.third_party"):
    for _module in pkgutil.iter_modules(importlib.import_module(_package).__path__):
        if not _module.ispkg:  # `hf` needs transformers
            importlib.import_module(f"{_package}.{_module.name}")
import_plugins()
