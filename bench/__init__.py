"""The benchmark suite: measures the mechanisms of `attention_zoo`, one child process per cell."""

from typing import Any

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    # Reading records must not import torch and Hydra.
    if name == "run":
        from bench.api import run

        return run
    raise AttributeError(f"module 'bench' has no attribute {name!r}")
