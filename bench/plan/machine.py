"""The machine that a record comes from, without importing torch or touching a GPU."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

LIBRARIES = ("torch", "triton", "numpy", "flash-attn", "fla-core", "xformers", "transformers")


@functools.cache
def machine() -> dict[str, Any]:
    """Facts about this machine: processor, memory, GPU, operating system and the versions of what computes."""
    gpu = _gpu()
    facts = {
        "cpu_model": _cpu_model(),
        "cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "gpu_name": gpu.get("name"),
        "gpu_memory": gpu.get("memory"),
        "gpu_driver": gpu.get("driver"),
    }
    return facts | {library: _version(library) for library in LIBRARIES}


def measuring_identity(device: str) -> dict[str, Any]:
    """The facts that a measurement on `device` depends on: part of a cell's id."""
    facts = machine()
    names = ["cpu_model", "cpu_count", "omp_num_threads", "torch"]
    if device == "cuda":
        names = ["gpu_name", "gpu_driver", "torch", "triton", "flash-attn"]
    return {name: facts[name] for name in names}


def device_name(device: str) -> str:
    """What a figure calls the device."""
    return machine()["gpu_name"] if device == "cuda" else machine()["cpu_model"]


def has_gpu() -> bool:
    """Whether the driver shows a CUDA device."""
    return machine()["gpu_name"] is not None


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


def _gpu() -> dict[str, str]:
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return {}
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
        name, memory, driver = (part.strip() for part in answer.splitlines()[0].split(","))
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return {}
    return {"name": name, "memory": memory, "driver": driver}
