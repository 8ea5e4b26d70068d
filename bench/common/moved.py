"""Modules that have another name than in version 0.1: the old ones go on working, with a warning."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

# Those that a tutorial or a document of version 0.1 names.
MOVED = {
    "analysis.plots.memory": "analysis.plots.scaling",
    "analysis.plots.page": "analysis.plots.layout",
    "analysis.plots.polysketchformer": "analysis.plots.scaling",
    "bench.records.quantities": "bench.records.metrics",
    "bench.schema": "bench.common.schema",
    "bench.wait": "bench.cli.wait",
}


class OldNames(MetaPathFinder):
    """Finds a module by its old name, also for `python -m`."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The module's place; None for a name that was never one."""
        if fullname not in MOVED:
            return None
        new = MOVED[fullname]
        warnings.warn(f"{fullname} is {new} now, and the old name goes in 0.3", FutureWarning, stacklevel=2)
        return ModuleSpec(fullname, _Renamed(new), origin=new)


class _Renamed(InspectLoader):
    def __init__(self, new: str) -> None:
        self.new = new

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.new)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec

    def get_code(self, fullname: str) -> CodeType | None:
        spec = importlib.util.find_spec(self.new)
        assert spec is not None and isinstance(spec.loader, InspectLoader)
        return spec.loader.get_code(self.new)

    def get_source(self, fullname: str) -> str | None:
        return None
