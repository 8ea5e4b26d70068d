"""Modules that were renamed since version 0.1: the old names still work, with a warning."""

import importlib.util
import warnings
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Any

# Old names that a tutorial or document of version 0.1 used.
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
        """The spec of a renamed module; None for all other names."""
        new = importlib.util.find_spec(MOVED[fullname]) if fullname in MOVED else None
        if new is None or new.origin is None:
            return None
        warnings.warn(f"{fullname} is {new.name} now, and the old name goes in 0.3", FutureWarning, stacklevel=2)
        return ModuleSpec(fullname, _Renamed(fullname, new.origin), origin=new.origin)


class _Renamed(SourceFileLoader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(MOVED[spec.name])
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec
