"""The child process: measures one cell and leaves its result in a file. It reads its job on stdin.

It ends when the parent does: stdin stays open as long as the parent lives.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import os
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
from bench.execution import process_group
from bench.measures.context import CellContext
from bench.measures.progress import Progress
from bench.plan.sources import changed
from bench.records.disk import write_atomically
from bench.records.outcomes import classify

GIB = 2**30
# Of the memory that is free when a cell starts; where others run beside it, of its share of that.
USABLE_SHARE = 0.8
# The exit code of a child that could not write its result is this plus the system's error number.
UNWRITTEN, UNWRITTEN_ERRORS = 200, 50


def main() -> None:
    """Read the job, watch the parent, measure, write the result."""
    faulthandler.enable()
    faulthandler.register(signal.SIGTERM, chain=True)
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as stdin:
        job = json.loads(stdin.readline())
    process_group.become_subreaper()
    process_group.limit_threads()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    attention_zoo.import_plugins()
    folder = Path(job["folder"])
    limit = limit_memory(job["config"], job["memory_share"], job["machine_bytes"])
    result = measure_cell(job["config"], Path(job["cache_dir"]), folder / "progress", Path(job["checkpoints"]), limit)
    if (file := changed(job["sources"])) is not None:
        reason = f"code changed during the sweep: {file}; run the sweep again"
        result |= {"status": "error", "reason": reason, "phase": "teardown", "measurements": {}}
    code = 0
    try:
        encoded = json.dumps(result, allow_nan=False).encode()
        write_atomically(folder / "result.json", encoded)
    except OSError as error:
        code = UNWRITTEN + (error.errno or 0) % UNWRITTEN_ERRORS
    _end(code)


def _end_with_parent() -> None:
    try:
        while os.read(sys.stdin.fileno(), 1):
            pass
    except OSError:  # the mechanism has closed it; the server ends this process, too
        return
    _end(1)


def _end(code: int) -> NoReturn:
    """End with everything that was started here."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    process_group.kill_descendants()
    # Tearing the interpreter down while a thread waits takes time or aborts.
    os._exit(code)


def measure_cell(
    config: dict[str, Any],
    cache_dir: Path,
    progress_file: Path,
    checkpoints: Path | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Measure in this process; every exception becomes a status."""
    progress = ProgressFile(progress_file)
    if config["device"] == "cuda":
        progress.listen()
    context = CellContext(config, cache_dir, limit, progress.note, checkpoints)
    result: dict[str, Any] = {"status": "ok", "reason": None, "phase": None}
    try:
        result["measurements"] = measures.load(config["bench"]).measure(context)
        context.device_state.note("after")
    except BaseException as error:  # a mechanism raises what it likes
        result["status"], result["reason"] = classify(error)
        result["phase"] = context.phase
        if result["status"] == "error":
            sys.excepthook(type(error), error, error.__traceback__)
    context.enter("teardown")
    result["inputs_sha256"], result["correctness"] = context.inputs_sha256, context.correctness
    result["seconds"], result["device_state"] = context.seconds, context.device_state.moments
    result["numerics"], result["said"] = _numerics(context), context.said
    return result


class ProgressFile:
    """What the parent reads in a file: how far the cell is, and the time that went into compiling kernels."""

    def __init__(self, file: Path) -> None:
        self.file, self.progress = file, Progress()

    def listen(self) -> None:
        """Let Triton say how long each kernel took."""
        if launching.HAS_TRITON:
            from triton import knobs

            knobs.compilation.listener = self.compiled

    def note(self, progress: Progress) -> None:
        """How far the cell is now."""
        self.progress = dataclasses.replace(progress, compiling_s=self.progress.compiling_s)
        with contextlib.suppress(OSError):  # a courtesy
            self.file.write_text(self.progress.encode())

    def compiled(self, *, times: Any, cache_hit: bool, **_: Any) -> None:
        """A kernel is there, `times.total` microseconds after it was asked for."""
        if not cache_hit:
            compiling_s = self.progress.compiling_s + times.total / 1e6
            self.progress = dataclasses.replace(self.progress, compiling_s=compiling_s)
            self.note(self.progress)


def limit_memory(config: dict[str, Any], share: float = 1.0, machine_bytes: int | None = None) -> int | None:
    """Make allocations beyond the limit fail, so that running out of memory is an outcome; returns the bytes.

    Args:
        config: of the cell.
        share: of what is free, where the configuration names no limit: others take theirs at the same time.
        machine_bytes: what the control group allows, if that is less than what the machine has.
    """
    wanted = config["bench"].get("memory_limit")
    if config["device"] == "cuda":  # the only one that this process sees
        if wanted is None:
            return None
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, wanted * GIB / total))
        return int(wanted * GIB)
    try:
        import resource
    except ImportError:
        return None
    available = psutil.virtual_memory().available
    free = int(USABLE_SHARE * share * min(available, machine_bytes or available))
    limit = free if wanted is None else int(wanted * GIB)
    # The threads and their arenas exist before the limit does.
    torch.ones(512, 512) @ torch.ones(512, 512)
    benchmark = measures.find(config["bench"].get("name"))
    if benchmark is not None and benchmark.judges_memory:
        limit = free
    used, (_, hard) = _data_bytes(), resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard - used)
    resource.setrlimit(resource.RLIMIT_DATA, (used + limit, hard))
    return limit


def _data_bytes() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    except (OSError, StopIteration):
        return psutil.Process().memory_info().vms


def _numerics(context: CellContext) -> dict[str, Any]:
    return {
        "threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
        "bf16_reduced_precision": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if context.device.type == "cuda" else None,
        "device_name": torch.cuda.get_device_name() if context.device.type == "cuda" else None,
        "memory_limit_bytes": context.memory_limit,
        "implementations": context.implementations,
    }


if __name__ == "__main__":
    main()
