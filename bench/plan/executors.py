"""The suite's own launchers by name, with what a command line may say of each under `hydra.launcher`.

Parameters have the names that users of Hydra's own launchers know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from bench.errors import ConfigError
from bench.plan.place import HERE, Place
from bench.schema import checked, setting


@dataclass
class Executor:
    """How the cells of a plan are run."""

    name: ClassVar[str]

    timings_alone: bool = True  # whether what is timed on a CPU, and comparisons, have the machine for themselves

    @property
    def place(self) -> Place:
        """Where the cells run."""
        return HERE


@dataclass
class Cells(Executor):
    """In turn, each in a process of its own, on this machine."""

    name = "cells"


@dataclass
class Devices(Executor):
    """On this machine, as many together as there are GPUs, and sets of cores."""

    name = "devices"

    cores_per_worker: int | None = setting(None, minimum=1)  # of CPU cells; None: one worker, with all cores

    @property
    def place(self) -> Place:
        """Here, with the cores of a worker."""
        return Place(cores=self.cores_per_worker)


@dataclass
class Ray(Executor):
    """As tasks of Ray, on a cluster that runs or on one on this machine that it starts."""

    name = "ray"

    address: str | None = None  # `auto` or HOST:PORT of a cluster that runs; None: one here
    num_cpus: int = setting(1, minimum=1)  # of a task: cores, and threads of its cell
    num_gpus: int = setting(0, minimum=0)  # of a task whose cell runs on one
    max_retries: int = setting(3, minimum=0)  # of a cell whose task, worker or node was lost

    def __post_init__(self) -> None:
        """Refuse an address that is none."""
        if self.address is not None and not re.fullmatch(r"auto|[\w.-]+:\d{1,5}", self.address):
            raise ConfigError(f"hydra.launcher.address={self.address!r}: must be auto, HOST:PORT or null")

    @property
    def place(self) -> Place:
        """Here, or on nodes of which nobody knows the model."""
        return Place("ray" if self.address else "", self.num_cpus, self.num_gpus > 0)


EXECUTORS: dict[str, type[Executor]] = {cls.name: cls for cls in (Cells, Devices, Ray)}


def check(node: Mapping[str, Any]) -> Executor:
    """The executor that Hydra's node of a launcher describes.

    Raises:
        ConfigError: a parameter that it does not have, or whose value it does not take.
    """
    values = {key: value for key, value in node.items() if key not in ("_target_", "executor")}
    return checked(EXECUTORS[node["executor"]], values, "hydra.launcher.")
