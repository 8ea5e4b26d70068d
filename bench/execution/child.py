"""The child process: reads its job on stdin, measures one cell and writes the result to a file.

It ends when the parent does: stdin stays open as long as the parent lives.
"""

import contextlib
import dataclasses
import errno
import faulthandler
import importlib
import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

import psutil
import torch

import attention_zoo
from attention_zoo.ops import launching
from bench import measures
from bench.execution.forkserver import kill_descendants
from bench.measures.context import CellContext
from bench.measures.progress import Progress
from bench.plan.sources import changed
from bench.records.disk import write_atomically
from bench.records.outcomes import classify

GIB = 2**30
# Share of the free memory when a cell starts, or of the cell's part of it if other cells run at the same time.
USABLE_SHARE = 0.8
# Exit code of a child that could not write its result: this number plus the system's error number.
UNWRITTEN, UNWRITTEN_ERRORS = 200, 50


def main() -> None:
    """Read the job, watch the parent, measure, write the result."""
    faulthandler.enable()
    faulthandler.register(signal.SIGTERM, chain=True)
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as stdin:
        job = json.loads(stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.backends.cudnn.allow_tf32 = False  # float32 is float32 in convolutions, as PyTorch has it in products
    attention_zoo.import_plugins()
    config, folder, kept = job["config"], Path(job["folder"]), Path(job["results_dir"])
    limit = limit_memory(config, job["memory_share"], job["machine_bytes"])
    checkpoints = kept / "training" / job["cell"]
    result = measure_cell(config, kept / "inputs", folder / "progress", checkpoints, limit)
    if (file := changed(job["sources"])) is not None:
        reason = f"code changed during the sweep: {file}; run the sweep again"
        result |= {"status": "error", "reason": reason, "phase": "teardown", "measurements": {}}
    code = 0
    try:
        write_atomically(folder / "result.json", json.dumps(result, allow_nan=False).encode())
    except OSError as error:
        code = unwritten(error)
    _end(code)


def unwritten(error: OSError) -> int:
    """The exit code for an error: a quota is a full disk, and a number that does not fit is an input/output error."""
    number = errno.ENOSPC if error.errno == errno.EDQUOT else error.errno or errno.EIO
    return UNWRITTEN + (number if number < UNWRITTEN_ERRORS else errno.EIO)


def _end_with_parent() -> None:
    try:
        while os.read(sys.stdin.fileno(), 1):
            pass
    except OSError:  # the mechanism closed it; the server also ends this process
        return
    _end(1)


def _end(code: int) -> NoReturn:
    """End this process and everything that it started."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    kill_descendants()
    # Shutting down the interpreter while a thread waits takes time or aborts.
    os._exit(code)


def measure_cell(
    config: dict[str, Any], cache_dir: Path, progress: Path, checkpoints: Path | None = None, limit: int | None = None
) -> dict[str, Any]:
    """Measure in this process; every exception becomes a status in the result."""
    file = ProgressFile(progress)
    if config["device"] == "cuda" and launching.HAS_KERNELS:  # to be told how long each kernel took to compile
        importlib.import_module("triton").knobs.compilation.listener = file.compiled
    context = CellContext(config, cache_dir, limit, file.note, checkpoints)
    result: dict[str, Any] = {"status": "ok", "reason": None, "phase": None}
    try:
        result["measurements"] = measures.load(config["bench"]).measure(context)
        context.device_state.note("after")
    except BaseException as error:  # a mechanism may raise anything
        result["status"], result["reason"] = classify(error)
        result["phase"] = context.phase
        if result["status"] == "oom" and limit is not None:
            of_free = "" if config["bench"].get("memory_limit") else " (of what was free then; rerun=oom tries again)"
            result["reason"] += f"; the limit was {limit / 2**20:,.0f} MiB{of_free}"
        if result["status"] == "error":
            sys.excepthook(type(error), error, error.__traceback__)
    context.enter("teardown")
    result["inputs_sha256"], result["correctness"] = context.inputs_sha256, context.correctness
    result["seconds"], result["device_state"] = context.seconds, context.device_state.moments
    result["numerics"], result["said"] = {}, context.said
    with contextlib.suppress(Exception):  # after a CUDA error the device cannot be asked
        result["numerics"] = _numerics(context)
    return result


class ProgressFile:
    """The file in which the parent reads the cell's progress and the time spent compiling kernels."""

    def __init__(self, file: Path) -> None:
        self.file, self.progress = file, Progress()

    def note(self, progress: Progress) -> None:
        """Write the cell's progress."""
        self.progress = dataclasses.replace(progress, compiling_s=self.progress.compiling_s)
        with contextlib.suppress(OSError):  # progress is optional
            self.file.write_text(self.progress.encode())

    def compiled(self, *, times: Any, cache_hit: bool, **_: Any) -> None:
        """Triton's listener: a kernel was compiled, in `times.total` microseconds."""
        if not cache_hit:
            compiling_s = self.progress.compiling_s + times.total / 1e6
            self.progress = dataclasses.replace(self.progress, compiling_s=compiling_s)
            self.note(self.progress)


def limit_memory(config: dict[str, Any], share: float = 1.0, machine_bytes: int | None = None) -> int | None:
    """Make allocations beyond a limit fail, so that out of memory becomes an outcome; returns the limit in bytes.

    Args:
        config: the cell's configuration.
        share: the cell's part of the free memory, if the configuration sets no limit and other cells run beside it.
        machine_bytes: the control group's limit, if it has one.
    """
    wanted = config["bench"].get("memory_limit")
    if config["device"] == "cuda":  # the process sees this GPU only
        if wanted is None:
            return None
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, wanted * GIB / total))
        return int(wanted * GIB)
    available = psutil.virtual_memory().available
    free = int(USABLE_SHARE * share * min(available, machine_bytes or available))
    limit = free if wanted is None else int(wanted * GIB)
    # Threads and their memory arenas must exist before the limit is set.
    torch.ones(512, 512) @ torch.ones(512, 512)
    benchmark = measures.find(config["bench"].get("name"))
    if benchmark is not None and benchmark.judges_memory:
        limit = free
    memory, (_, hard) = psutil.Process().memory_info(), resource.getrlimit(resource.RLIMIT_DATA)
    used = getattr(memory, "data", memory.vms)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard - used)
    resource.setrlimit(resource.RLIMIT_DATA, (used + limit, hard))
    return limit


def _numerics(context: CellContext) -> dict[str, Any]:
    return {
        "threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
        "tf32_convolution": torch.backends.cudnn.allow_tf32,
        "bf16_reduced_precision": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if context.device.type == "cuda" else None,
        "device_name": torch.cuda.get_device_name() if context.device.type == "cuda" else None,
        "memory_limit_bytes": context.memory_limit,
        "implementations": context.implementations,
    }
