"""The machine (without initialising a GPU) and the version of the code, for records and cell ids."""

import dataclasses
import functools
import importlib.metadata
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from packaging.version import Version

from bench.common.errors import ConfigError

LIBRARIES = ("torch", "triton", "numpy", "flash-attn", "fla-core", "xformers", "retention", "transformers")
ON_CPU = ("cpu_model", "cpu_vectors", "cpu_count", "omp_num_threads", "torch")
# The host's CPU launches the kernels, and for short kernels launching takes longest.
ON_GPU = ("gpu_name", "gpu_driver", "torch", "torch_cuda", "cudnn", "triton", "flash-attn", "cpu_model")
# Versions of Triton with a known wrong compilation: from the first, before the second, and what is wrong.
MISCOMPILES = (
    ("3.4", "3.7.1", "products with the transpose of an accumulator on sm_90 (flash-linear-attention 640 and 983)"),
    ("3.7.1", "3.7.2", "a kernel of flash-linear-attention with some numbers of warps (its 984 and 988)"),
)
# Facts about a node that are unknown until a scheduler has chosen it.
OF_A_NODE = ("cpu_model", "cpu_vectors", "gpu_name", "gpu_driver")
# Records may be in git, too; new ones change nothing that is measured.
MEASURING = (":/attention_zoo", ":/bench", ":/conf")
# `git archive` writes the commit to `commit.txt` here, for machines that have neither git nor a checkout.
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Resources:
    """Where cells will run, as far as their ids depend on it: on this machine, or on a node from a scheduler.

    The node is unknown when cells are planned for a scheduler. Their ids contain the request, such as `slurm a100`,
    and records name the node.
    """

    name: str = ""  # empty: this machine, whose facts are then in the ids
    cores: int | None = None  # cores of a worker; None: all that this process may use
    gpus: bool = False  # whether a scheduler's workers have a GPU


THIS_MACHINE = Resources()


@dataclass(frozen=True)
class Gpu:
    """A GPU, as its driver describes it; for a MIG slice, `part_of` is the UUID of the whole GPU."""

    index: str
    uuid: str
    name: str
    memory: str
    driver: str
    part_of: str | None = None


def is_gpu(device: str) -> bool:
    """Whether a resolved configuration's device (`cpu`, `cuda:0`, `cuda:1`, ...) is a GPU."""
    return device != "cpu"


def choose_device(setting: str, resources: Resources = THIS_MACHINE) -> str:
    """Resolve `auto`, `cpu`, `cuda` or `cuda:N` to a device; N counts the GPUs of CUDA_VISIBLE_DEVICES.

    Raises `ConfigError` for a device that does not exist, or that the installed torch cannot use.
    """
    if setting != "auto" and not re.fullmatch(r"cpu|cuda(:\d+)?", setting):
        raise ConfigError(f"device={setting!r}: must be one of auto, cpu, cuda, cuda:0, cuda:1, ...")
    if resources.name:  # a scheduler's worker sees one GPU or none
        count, reason = int(resources.gpus), f"{resources.name} is asked for no GPU; hydra.launcher says for how many"
    elif torch_cuda():
        count, reason = len(visible_gpus()), "this machine shows no GPU; must be auto or cpu"
    else:
        count, reason = 0, "the installed torch has no CUDA; must be auto or cpu"
    if setting == "cpu" or (setting == "auto" and not count):
        return "cpu"
    if not count:
        raise ConfigError(f"device={setting!r}: {reason}")
    count = 1 if resources.name else count
    index = int(setting.partition(":")[2] or 0)
    if index >= count:
        names = ", ".join(f"cuda:{number}" for number in range(count))
        raise ConfigError(f"device={setting!r}: there is no such GPU; must be auto, cpu, cuda or one of {names}")
    return f"cuda:{index}"


def gpu(device: str) -> Gpu | None:
    """The GPU of a resolved device such as `cuda:0`; None for `cpu`."""
    return visible_gpus()[int(device.partition(":")[2] or 0)] if is_gpu(device) else None


def gpus_like_the_first() -> list[str]:
    """The devices with the measuring identity of `cuda:0`, itself included."""
    devices = [f"cuda:{index}" for index in range(len(visible_gpus()))]
    return [device for device in devices if measuring_identity(device) == measuring_identity("cuda:0")]


def visible_gpus() -> tuple[Gpu, ...]:
    """The GPUs that the driver lists and CUDA_VISIBLE_DEVICES (indices of `nvidia-smi`, or UUIDs) leaves visible."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return _all_gpus()
    visible = []
    for entry in map(str.strip, wanted.split(",")):
        known = _slices() if entry.startswith("MIG-") else _all_gpus()
        matching = [g for g in known if entry == g.index or (len(entry) > 4 and g.uuid.startswith(entry))]
        if not matching:
            break  # CUDA, too, ignores all entries after an invalid one
        visible.append(matching[0])
    return tuple(visible)


def machine(device: str = "cpu", resources: Resources = THIS_MACHINE) -> dict[str, Any]:
    """Facts about this machine: CPU, memory, operating system, library versions, and the GPU of `device`.

    `device` is a resolved one; `resources` says how many cores a worker has.
    """
    used = gpu(device)
    return {
        **_host(),
        **_processors(resources),
        "device_name": used.name if used else _host()["cpu_model"],
        "gpu_name": used and used.name,
        "gpu_memory": used and used.memory,
        "gpu_driver": used and used.driver,
        "triton_miscompiles": _miscompiles(installed("triton")) if used else None,
    }


def _miscompiles(triton: str | None) -> str | None:
    """What this version of Triton is known to compile wrongly; None if nothing is known."""
    version = Version(triton or "0")
    return "; ".join(what for first, after, what in MISCOMPILES if Version(first) <= version < Version(after)) or None


def measuring_identity(device: str, resources: Resources = THIS_MACHINE) -> dict[str, Any]:
    """The facts that a measurement on `device` depends on, part of a cell's id. GPUs of the same model share it."""
    names = ON_GPU if is_gpu(device) else ON_CPU
    if resources.name:  # a scheduler's nodes are assumed to have the same libraries
        facts = {**_host(), **_processors(resources)}
        return {"place": resources.name, **{name: facts[name] for name in names if name not in OF_A_NODE}}
    facts = machine(device, resources)
    return {name: facts[name] for name in names}


def _processors(resources: Resources) -> dict[str, Any]:
    """The number of CPU cores, and so threads, of a cell, if it is set."""
    if resources.cores is None:
        return {"omp_num_threads": os.environ.get("OMP_NUM_THREADS")}
    return {"cpu_count": resources.cores, "omp_num_threads": str(resources.cores)}


def torch_cuda() -> str | None:
    """The CUDA version of the installed torch; None for a build without CUDA."""
    return torch.version.cuda


@functools.cache
def _host() -> dict[str, Any]:
    cuda = torch_cuda()
    return {
        "cpu_model": _cpu_info("model name") or platform.processor() or platform.machine(),
        "cpu_vectors": _cpu_vectors(),
        "cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch_cuda": cuda,
        "cudnn": installed(f"nvidia-cudnn-cu{cuda.partition('.')[0]}") if cuda else None,
        **{library: installed(library) for library in LIBRARIES},
    }


@functools.cache
def installed(package: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_info(name: str) -> str | None:
    """A line of /proc/cpuinfo about the first core."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(name))
    except (OSError, StopIteration):
        return None


def _cpu_vectors() -> str:
    """The vector instructions that torch uses, and those for bfloat16: `AVX512, avx512_bf16`.

    On virtual machines, models of different generations have the same name.
    """
    flags = (_cpu_info("flags") or "").split()
    return ", ".join([torch.backends.cpu.get_cpu_capability(), *(flag for flag in flags if flag.endswith("_bf16"))])


@functools.cache
def _all_gpus() -> tuple[Gpu, ...]:
    rows = _ask("nvidia-smi", "--query-gpu=index,uuid,name,memory.total,driver_version", "--format=csv,noheader")
    fields = [[part.strip() for part in row.split(",")] for row in (rows or "").splitlines()]
    return tuple(Gpu(*row) for row in fields if len(row) == 5)


@functools.cache
def _slices() -> tuple[Gpu, ...]:
    """The MIG slices of all GPUs; each slice is a device with its own model name."""
    slices, whole = [], None
    for row in (_ask("nvidia-smi", "-L") or "").splitlines():
        if match := re.match(r"GPU (\d+):", row):
            whole = next((g for g in _all_gpus() if g.index == match[1]), None)
        elif whole and (match := re.search(r"MIG (\S+) .*UUID: (MIG-[^)]+)", row)):
            name = f"{whole.name} MIG {match[1]}"
            slices.append(dataclasses.replace(whole, index="", uuid=match[2], name=name, part_of=whole.uuid))
    return tuple(slices)


@functools.cache
def code_identity() -> dict[str, Any]:
    """The package's version, its commit and, in a git checkout, whether measuring code has uncommitted changes."""
    identity = {"suite_version": installed("attention-zoo")}
    archived = (HERE / "commit.txt").read_text().strip() if (HERE / "commit.txt").exists() else ""
    if re.fullmatch("[0-9a-f]{40}", archived):
        return {**identity, "git_sha": archived, "git_dirty": None}
    git = ("git", "-C", str(HERE))
    status = _ask(*git, "status", "--porcelain", "--untracked-files=no", "--", *MEASURING)
    dirty = None if status is None else bool(status)
    return {**identity, "git_sha": _ask(*git, "rev-parse", "HEAD"), "git_dirty": dirty}


def _ask(*command: str) -> str | None:
    """The output of a program; None if it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
