"""Figures: each file has one, or several of one kind.

A figure is a function of the frame of `analysis.frame.load`. It raises `MissingRecords` where the frame does not hold
what it shows. Cells that did not measure are marked at their place; captions say the conditions, and what was left out.
"""

import importlib
import warnings
from types import SimpleNamespace
from typing import Any

# Where the figures of files that are no more are: name of the file -> of the function in it -> of that in `scaling`.
_MOVED = {"memory": {"figure": "memory"}, "polysketchformer": {"figure1": "latency"}}


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = ", ".join(f"analysis.plots.scaling.{function}" for function in _MOVED[name].values())
    warnings.warn(f"analysis.plots.{name} is {new}", DeprecationWarning, stacklevel=2)
    scaling = importlib.import_module("analysis.plots.scaling")
    return SimpleNamespace(**{old: getattr(scaling, function) for old, function in _MOVED[name].items()})
