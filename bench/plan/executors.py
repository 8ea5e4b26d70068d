"""The suite's own launchers by name, with what a command line may say of each under `hydra.launcher`.

Parameters have the names that users of Hydra's own launchers know.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from bench.common.errors import ConfigError
from bench.common.schema import checked, setting
from bench.plan.data import shown
from bench.plan.machine import THIS_MACHINE, Resources


@dataclass
class Executor:
    """How the cells of a plan are run."""

    name: ClassVar[str]

    timings_alone: bool = setting(
        True, "whether what is timed on a CPU, and comparisons, have the machine for themselves"
    )

    @property
    def resources(self) -> Resources:
        """Where the cells run."""
        return THIS_MACHINE


@dataclass
class Cells(Executor):
    """In turn, each in a process of its own, on this machine."""

    name = "cells"


@dataclass
class Devices(Executor):
    """On this machine, as many together as there are GPUs, and sets of cores."""

    name = "devices"

    cores_per_worker: int | None = setting(None, "cores of a worker on a CPU; null: one worker, with all", minimum=1)

    @property
    def resources(self) -> Resources:
        """Here, with the cores of a worker."""
        return Resources(cores=self.cores_per_worker)


@dataclass
class Ray(Executor):
    """As tasks of Ray, on a cluster that runs or on one on this machine that it starts."""

    name = "ray"

    address: str | None = setting(None, "auto or HOST:PORT of a cluster that runs; null: one here")
    num_cpus: int = setting(1, "cores of a task, and threads of its cell", minimum=1)
    num_gpus: int = setting(0, "GPUs of a task whose cell runs on one", minimum=0)
    max_retries: int = setting(3, "how often a cell is tried again whose task, worker or node was lost", minimum=0)

    def __post_init__(self) -> None:
        """Refuse an address that is none."""
        if self.address is not None and not re.fullmatch(r"auto|[\w.-]+:\d{1,5}", self.address):
            raise ConfigError(f"hydra.launcher.address={self.address!r}: must be auto, HOST:PORT or null")

    @property
    def resources(self) -> Resources:
        """Here, or on nodes of which nobody knows the model."""
        return Resources("ray" if self.address else "", self.num_cpus, self.num_gpus > 0)


# What the suite itself tells sbatch.
OURS = ("array", "error", "job-name", "open-mode", "output", "requeue", "signal")


@dataclass
class Slurm(Executor):
    """In arrays of Slurm jobs; a job measures its cells in turn, or as many together as it has GPUs."""

    name = "slurm"

    cells_per_job: int = setting(10, "cells that a job measures", minimum=1)
    timeout_min: int = setting(60, "minutes of a job", minimum=1)
    cpus_per_task: int = setting(1, "cores of a job", minimum=1)
    gpus_per_node: int = setting(0, "GPUs of a job", minimum=0)
    mem_gb: float | None = setting(None, "memory of a job; null: the cluster's default", minimum=0)
    partition: str | None = setting(None, "option of sbatch")
    qos: str | None = setting(None, "option of sbatch")
    account: str | None = setting(None, "option of sbatch")
    constraint: str | None = setting(None, "option of sbatch")
    exclude: str | None = setting(None, "option of sbatch")
    gres: str | None = setting(None, "option of sbatch")
    array_parallelism: int = setting(256, "jobs that run at once", minimum=1)
    signal_delay_s: int = setting(60, "seconds before the end of its time in which a job saves what it has", minimum=20)
    max_num_timeout: int = setting(3, "how often a job whose time is over queues again by itself", minimum=0)
    setup: list[str] | None = setting(None, "lines of shell before the job")
    additional_parameters: dict[str, Any] | None = setting(None, "further options of sbatch")

    def __post_init__(self) -> None:
        """Refuse what would end a line of the batch script, which goes on as shell there."""
        texts = ("partition", "qos", "account", "constraint", "exclude", "gres")
        own = {key: getattr(self, key) for key in texts if getattr(self, key) is not None}
        for name, value in [*own.items(), *(self.additional_parameters or {}).items()]:
            key = name if name in own else f"additional_parameters.{name}"
            why = None
            if not re.fullmatch(r"[a-z][a-z_-]*", str(name)):
                why = "must have the name of an option of sbatch"
            elif name.replace("_", "-") in OURS:
                why = "the suite says this itself"
            elif not isinstance(value, str | int | float) or not str(value).isprintable():
                why = "must be a number, true or one line of text"
            if why:
                raise ConfigError(f"hydra.launcher.{key}={value!r}: {why}")

    @property
    def resources(self) -> Resources:
        """What a job asks for, as far as that decides on what kind of node it runs."""
        asked = {key: getattr(self, key) for key in ("partition", "constraint", "gres")}
        name = " ".join(["slurm", *(f"{key}={value}" for key, value in asked.items() if value is not None)])
        return Resources(name, self.cpus_per_task, self.gpus_per_node > 0 or "gpu" in (self.gres or ""))


EXECUTORS: dict[str, type[Executor]] = {cls.name: cls for cls in (Cells, Devices, Ray, Slurm)}


def check(node: Any) -> Executor:
    """The executor that Hydra's node of a launcher describes; a `ConfigError` where there is none."""
    if not isinstance(node, Mapping) or "executor" not in node:
        raise ConfigError(f"hydra/launcher: must be one of {', '.join(EXECUTORS)}; the suite uses no other one")
    name = node["executor"]
    if name not in list(EXECUTORS):  # it may be anything
        raise ConfigError(f"hydra.launcher.executor={shown(name)}: must be one of {', '.join(EXECUTORS)}")
    values = {key: value for key, value in node.items() if key != "executor"}
    return checked(EXECUTORS[name], values, "hydra.launcher.")
