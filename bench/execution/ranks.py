"""Several processes run one sweep together, as torchrun starts them: rank 0 leads, the others follow.

All ranks plan the same cells and train them together; only rank 0 locks, records, mirrors and prints.
"""

import os
from collections.abc import Sequence

from bench import measures
from bench.common.errors import ConfigError
from bench.plan.cell import Cell


def processes() -> int:
    """The number of processes (WORLD_SIZE)."""
    return _number("WORLD_SIZE", 1)


def follows() -> bool:
    """Whether this process is not rank 0."""
    return processes() > 1 and _number("RANK", 0) > 0


def _number(name: str, default: int) -> int:
    """An environment variable of torchrun, as a number."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise ConfigError(f"{name}={text!r}: must be a number, as torchrun sets")
    return int(text)


def require_joint(cells: Sequence[Cell], launcher: str) -> None:
    """Raise `ConfigError` for what several processes cannot run together."""
    size, port = processes(), os.environ.get("MASTER_PORT", "")
    if size == 1:
        return
    if not port.isdecimal() or port == "0":
        allowed = f"the port where WORLD_SIZE={size} processes meet, as torchrun sets"
        raise ConfigError(f"MASTER_PORT={port}: must be {allowed}")
    if launcher != "cells":
        raise ConfigError(f"WORLD_SIZE={size}: must be 1 for hydra/launcher={launcher}, which starts processes itself")
    for cell in cells:
        name, batch_size = cell.config["bench"]["name"], cell.config["batch_size"]
        if not measures.get(name).trains or measures.get(name).one_process:
            raise ConfigError(f"WORLD_SIZE={size}: must be 1 for bench={name}, which measures in one process")
        parts = size * cell.config["training"]["accumulate"]
        if batch_size % parts:
            allowed = f"divisible by WORLD_SIZE * training.accumulate = {parts}"
            raise ConfigError(f"batch_size={batch_size}: must be {allowed}")
