"""The suite's own launchers by name, with their settings (`hydra.launcher.*` on the command line).

Settings have the names that users know from Hydra's own launchers.
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
    """How to run the cells of a plan."""

    name: ClassVar[str]

    timings_alone: bool = setting(True, "run comparisons and CPU timings with nothing else on the machine")

    @property
    def resources(self) -> Resources:
        """The machine, and its cores, that the cells run on."""
        return THIS_MACHINE


@dataclass
class Cells(Executor):
    """One cell after the other on this machine, each in its own process."""

    name = "cells"


@dataclass
class Devices(Executor):
    """On this machine, in parallel: one worker for each GPU and each set of CPU cores."""

    name = "devices"

    cores_per_worker: int | None = setting(None, "cores per CPU worker; null: one worker with all cores", minimum=1)

    @property
    def resources(self) -> Resources:
        """This machine, with the cores of one worker."""
        return Resources(cores=self.cores_per_worker)


@dataclass
class Ray(Executor):
    """As Ray tasks, on a running cluster or on a local one that is started for the sweep."""

    name = "ray"

    address: str | None = setting(None, "running cluster: auto or HOST:PORT; null: start a local one")
    num_cpus: int = setting(1, "CPU cores per task, and threads of its cell", minimum=1)
    num_gpus: int = setting(0, "GPUs per task, for cells that run on a GPU", minimum=0)
    max_retries: int = setting(3, "retries of a cell after its task, worker or node was lost", minimum=0)

    def __post_init__(self) -> None:
        """Refuse a malformed address."""
        if self.address is not None and not re.fullmatch(r"auto|[\w.-]+:\d{1,5}", self.address):
            raise ConfigError(f"hydra.launcher.address={self.address!r}: must be auto, HOST:PORT or null")

    @property
    def resources(self) -> Resources:
        """This machine, or a cluster's nodes, whose hardware is not known in advance."""
        return Resources("ray" if self.address else "", self.num_cpus, self.num_gpus > 0)


# Options of sbatch that the suite sets itself.
OURS = ("array", "error", "job-name", "open-mode", "output", "requeue", "signal")


@dataclass
class Slurm(Executor):
    """As arrays of Slurm jobs; a job runs its cells one after the other, or in parallel on its GPUs."""

    name = "slurm"

    cells_per_job: int = setting(10, "cells per job", minimum=1)
    timeout_min: int = setting(60, "time limit of a job, in minutes", minimum=1)
    cpus_per_task: int = setting(1, "CPU cores per job", minimum=1)
    gpus_per_node: int = setting(0, "GPUs per job", minimum=0)
    mem_gb: float | None = setting(None, "memory per job in GB; null: the cluster's default", minimum=0)
    partition: str | None = setting(None, "option of sbatch")
    qos: str | None = setting(None, "option of sbatch")
    account: str | None = setting(None, "option of sbatch")
    constraint: str | None = setting(None, "option of sbatch")
    exclude: str | None = setting(None, "option of sbatch")
    gres: str | None = setting(None, "option of sbatch")
    array_parallelism: int = setting(256, "largest number of jobs that run at the same time", minimum=1)
    signal_delay_s: int = setting(60, "seconds before a job's time limit when it is told to stop and save", minimum=20)
    max_num_timeout: int = setting(
        3, "restarts, preemptions too, up to which a job out of time requeues itself", minimum=0
    )
    setup: list[str] | None = setting(None, "shell commands to run before the job")
    additional_parameters: dict[str, Any] | None = setting(None, "more options of sbatch, by name")

    def __post_init__(self) -> None:
        """Refuse text that would end a line of the batch script: what follows would run as shell."""
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
        """The requested options that decide what kind of node a job runs on."""
        asked = {key: getattr(self, key) for key in ("partition", "constraint", "gres")}
        name = " ".join(["slurm", *(f"{key}={value}" for key, value in asked.items() if value is not None)])
        return Resources(name, self.cpus_per_task, self.gpus_per_node > 0 or "gpu" in (self.gres or ""))


EXECUTORS: dict[str, type[Executor]] = {cls.name: cls for cls in (Cells, Devices, Ray, Slurm)}


def check(node: Any) -> Executor:
    """The executor that a `hydra.launcher` node describes; raises `ConfigError` for an unknown one."""
    if not isinstance(node, Mapping) or "executor" not in node:
        raise ConfigError(f"hydra/launcher: must be one of {', '.join(EXECUTORS)}; the suite uses no other one")
    name = node["executor"]
    if name not in list(EXECUTORS):  # a list, since the name may not be hashable
        raise ConfigError(f"hydra.launcher.executor={shown(name)}: must be one of {', '.join(EXECUTORS)}")
    values = {key: value for key, value in node.items() if key != "executor"}
    return checked(EXECUTORS[name], values, "hydra.launcher.")
