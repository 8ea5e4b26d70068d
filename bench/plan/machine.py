"""The machine that a record comes from, without importing torch or touching a GPU."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from packaging.version import Version

from bench.common.errors import ConfigError
from bench.plan.place import HERE, Place

LIBRARIES = ("torch", "triton", "numpy", "flash-attn", "fla-core", "xformers", "retention", "transformers")
ON_CPU = ("cpu_model", "cpu_count", "omp_num_threads", "torch")
# The host's processor launches the kernels, and short ones take as long as that does.
ON_GPU = ("gpu_name", "gpu_driver", "torch", "torch_cuda", "cudnn", "triton", "flash-attn", "cpu_model")
# Versions of Triton from the first to before the second that are known to compile something wrongly, and what.
MISCOMPILES = (
    ("3.4", "3.7.1", "products with the transpose of an accumulator on sm_90 (flash-linear-attention 640 and 983)"),
    ("3.7.1", "3.7.2", "a kernel of flash-linear-attention with some numbers of warps (its 984 and 988)"),
)
# What nobody knows of a node before a scheduler has chosen it.
OF_A_NODE = ("cpu_model", "gpu_name", "gpu_driver")


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver names it."""

    index: str
    uuid: str
    name: str
    memory: str
    driver: str
    part_of: str | None = None
    """The UUID of the GPU that it is a part of (MIG)."""


def is_gpu(device: str) -> bool:
    """Whether a resolved configuration's device (`cpu`, `cuda:0`, `cuda:1`, ...) is a GPU."""
    return device != "cpu"


def choose_device(setting: str, place: Place = HERE) -> str:
    """The device that `auto`, `cpu`, `cuda` or `cuda:N` means; N counts the GPUs of CUDA_VISIBLE_DEVICES.

    Raises:
        ConfigError: no such device, or none that the installed torch can use.
    """
    if setting != "auto" and not re.fullmatch(r"cpu|cuda(:\d+)?", setting):
        raise ConfigError(f"device={setting!r}: must be one of auto, cpu, cuda, cuda:0, cuda:1, ...")
    if place.name:
        return _elsewhere(setting, place)
    gpus = visible_gpus() if torch_cuda() else ()
    if setting == "cpu" or (setting == "auto" and not gpus):
        return "cpu"
    if not gpus:
        reason = "this machine shows no GPU" if torch_cuda() else "the installed torch has no CUDA"
        raise ConfigError(f"device={setting!r}: {reason}; must be auto or cpu")
    index = int(setting.partition(":")[2] or 0)
    if index >= len(gpus):
        names = ", ".join(f"cuda:{number}" for number in range(len(gpus)))
        raise ConfigError(f"device={setting!r}: there is no such GPU; must be auto, cpu, cuda or one of {names}")
    return f"cuda:{index}"


def _elsewhere(setting: str, place: Place) -> str:
    """The device of a worker that sees one GPU, or none."""
    if setting == "cpu" or (setting == "auto" and not place.gpus):
        return "cpu"
    if not place.gpus:
        raise ConfigError(f"device={setting!r}: {place.name} is asked for no GPU; hydra.launcher says for how many")
    return "cuda:0"


def gpu(device: str) -> Gpu | None:
    """The GPU that a resolved configuration's device is; None for `cpu`."""
    return visible_gpus()[int(device.partition(":")[2] or 0)] if is_gpu(device) else None


def gpus_like_the_first() -> list[str]:
    """The devices whose measurements are those of `cuda:0`, itself among them."""
    devices = [f"cuda:{index}" for index in range(len(visible_gpus()))]
    return [device for device in devices if measuring_identity(device) == measuring_identity("cuda:0")]


def visible_gpus() -> tuple[Gpu, ...]:
    """The GPUs that the driver shows and CUDA_VISIBLE_DEVICES (indices as `nvidia-smi` counts, or UUIDs) leaves."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return _all_gpus()
    visible = []
    for entry in map(str.strip, wanted.split(",")):
        known = _slices() if entry.startswith("MIG-") else _all_gpus()
        matching = [g for g in known if entry == g.index or (len(entry) > 4 and g.uuid.startswith(entry))]
        if not matching:
            break  # CUDA, too, ignores what follows an entry that names no GPU
        visible.append(matching[0])
    return tuple(visible)


def machine(device: str = "cpu", place: Place = HERE) -> dict[str, Any]:
    """Facts about this machine: processor, memory, operating system, the versions of what computes, and the GPU used.

    Args:
        device: of a resolved configuration.
        place: of the cells, of which a worker here has some cores only.
    """
    used = gpu(device)
    return {
        **_host(),
        **_processors(place),
        "device_name": used.name if used else _host()["cpu_model"],
        "gpu_name": used and used.name,
        "gpu_memory": used and used.memory,
        "gpu_driver": used and used.driver,
        "triton_miscompiles": miscompiles(_version("triton")) if used else None,
    }


def miscompiles(triton: str | None) -> str | None:
    """What this version of Triton is known to compile wrongly; None where nothing is known of it."""
    if triton is None:
        return None
    known = [what for first, after, what in MISCOMPILES if Version(first) <= Version(triton) < Version(after)]
    return "; ".join(known) or None


def measuring_identity(device: str, place: Place = HERE) -> dict[str, Any]:
    """The facts that a measurement on `device` depends on: part of a cell's id. GPUs of one model are alike."""
    names = ON_GPU if is_gpu(device) else ON_CPU
    if place.name:  # the nodes there have what is installed here
        facts = {**_host(), **_processors(place)}
        known = {name: facts[name] for name in names if name not in OF_A_NODE}
        return {"place": place.name, **known}
    facts = machine(device, place)
    return {name: facts[name] for name in names}


def _processors(place: Place) -> dict[str, Any]:
    """How many of them a cell uses, where that is decided: it has a thread for each."""
    if place.cores is None:
        return {"omp_num_threads": os.environ.get("OMP_NUM_THREADS")}
    return {"cpu_count": place.cores, "omp_num_threads": str(place.cores)}


@functools.cache
def torch_cuda() -> str | None:
    """The CUDA version that the installed torch was built for; None for a build without CUDA."""
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        match = re.search(r"^cuda\b[^=]*= '([\d.]+)'", (Path(folder) / "version.py").read_text(), re.MULTILINE)
        if match:
            return match[1]
    return None


@functools.cache
def _host() -> dict[str, Any]:
    cuda = torch_cuda()
    return {
        "cpu_model": _cpu_model(),
        "cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch_cuda": cuda,
        "cudnn": _version(f"nvidia-cudnn-cu{cuda.partition('.')[0]}") if cuda else None,
        **{library: _version(library) for library in LIBRARIES},
    }


def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@functools.cache
def _all_gpus() -> tuple[Gpu, ...]:
    rows = _ask("--query-gpu=index,uuid,name,memory.total,driver_version", "--format=csv,noheader")
    fields = [[part.strip() for part in row.split(",")] for row in rows]
    return tuple(Gpu(*row) for row in fields if len(row) == 5)


@functools.cache
def _slices() -> tuple[Gpu, ...]:
    """What GPUs are cut into (MIG): each slice is a device of a model of its own."""
    slices, whole = [], None
    for row in _ask("-L"):
        if match := re.match(r"GPU (\d+):", row):
            whole = next((g for g in _all_gpus() if g.index == match[1]), None)
        elif whole and (match := re.search(r"MIG (\S+) .*UUID: (MIG-[^)]+)", row)):
            name = f"{whole.name} MIG {match[1]}"
            slices.append(dataclasses.replace(whole, index="", uuid=match[2], name=name, part_of=whole.uuid))
    return tuple(slices)


def _ask(*arguments: str) -> list[str]:
    try:
        answer = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.splitlines()
