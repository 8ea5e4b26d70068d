"""One cell in a child process of its own: what it is told, how long it may take, and how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common.errors import say, scrubbed
from bench.common.quiet import QUIET
from bench.execution import host_state, processes
from bench.execution.child import UNWRITTEN, UNWRITTEN_ERRORS
from bench.execution.ranks import follows
from bench.measures.progress import Progress
from bench.plan.cell import Cell
from bench.plan.machine import THIS_MACHINE, Resources, gpu
from bench.records.outcomes import classify_exit, count_oom_kills

TASK = "bench.execution.child"
SHORTLY_S = 0.5


@dataclass(frozen=True)
class Options:
    """How a cell's process is run.

    Attributes:
        locks: descriptors of locks that the child keeps if this process is killed.
        memory_share: what part of the machine's memory is for the cell.
        on_progress: called now and then with how far the cell is.
        stop: interrupts the cell when it is set, as Ctrl-C does.
        scratch: where the child's files lie, if another process measures the same cell in the usual place.
    """

    locks: Sequence[int] = ()
    memory_share: float = 1.0
    on_progress: Callable[[Progress], None] = lambda progress: None
    stop: threading.Event | None = None
    scratch: Path | None = None

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if the cell is to stop."""
        if self.stop is not None and self.stop.is_set():
            raise KeyboardInterrupt


def child_environment(device: str, resources: Resources = THIS_MACHINE) -> dict[str, str]:
    """The environment of a child that measures on the device of a resolved configuration."""
    environment = {**os.environ, **QUIET}
    if resources.cores is not None:
        environment["OMP_NUM_THREADS"] = str(resources.cores)
    used = gpu(device)
    if used is not None:  # the only one that the child sees, whatever order CUDA counts in
        environment["CUDA_VISIBLE_DEVICES"] = used.uuid
    return environment


def measure(
    cell: Cell, folder: Path, results_dir: Path, environment: Mapping[str, str], options: Options
) -> dict[str, Any]:
    """Run a cell in a child; returns the fields of its record that this decides: `status`, `measurements`, ...

    Args:
        cell: one that can be built.
        folder: an empty one for the child's files.
        results_dir: where inputs and checkpoints are kept.
        environment: the child's.
        options: how it is run.

    Raises:
        KeyboardInterrupt: the user interrupted; the child has ended.
    """
    oom_kills = count_oom_kills()
    try:
        child = processes.start(TASK, environment, cell.sources, inherited=options.locks)
    except processes.LostServer as error:
        return {"status": "crash", "reason": str(error)}
    before = host_state.read()  # the child waits for its job
    timed_out = lost = False
    try:
        machine_bytes = before.limits["control_group"]["memory_bytes"]
        job = {**_job(cell, folder, results_dir, options), "machine_bytes": machine_bytes}
        child.send_line(json.dumps(job).encode())
        timed_out = not wait_for(child, cell.timeout, folder / "progress", options)
    except processes.LostServer:
        lost = True
    finally:
        child.end()
    if lost or child.exit_code == -signal.SIGTERM:
        # What ends all processes of a job may have reached these first; then this one is interrupted, too.
        time.sleep(SHORTLY_S)
        options.check()
    host = host_state.between(before, host_state.read(), child.cpu_s)
    end: dict[str, Any] = {"exit_code": child.exit_code, "stderr_tail": scrubbed(child.tail), "host_state": host}
    if child.exit_code is not None and child.exit_code < 0:
        end["signal"] = -child.exit_code
    if timed_out:
        return {"status": "timeout", "reason": f"timeout={cell.timeout:g} seconds passed", **end}
    return {**end, **_result(cell, child.exit_code, folder / "result.json", oom_kills)}


def _job(cell: Cell, folder: Path, results_dir: Path, options: Options) -> dict[str, Any]:
    """What the child reads on its standard input."""
    return {
        # It sees one GPU, whatever the number of that is here.
        "config": {**cell.config, "device": cell.config["device"].partition(":")[0]},
        "sources": cell.sources,
        "folder": str(folder),
        "cache_dir": str(results_dir / "inputs"),
        "memory_share": options.memory_share,
        "checkpoints": str(results_dir / "training" / cell.cell_id[:16]),
    }


def wait_for(child: processes.Child, timeout: float, file: Path, options: Options) -> bool:
    """Wait for the end or the timeout, which compiling does not count to; returns whether the end came first."""
    deadline, compiling_s = time.monotonic() + timeout, 0.0
    while (left := deadline + compiling_s - time.monotonic()) > 0:
        if child.wait(min(1.0, left)):
            return True
        options.check()
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):  # not there yet, or half of it
            progress = Progress.decode(file.read_text())
            compiling_s = progress.compiling_s
            options.on_progress(progress)
    return child.wait(0.0)


def _result(cell: Cell, exit_code: int | None, file: Path, oom_kills: int) -> dict[str, Any]:
    """What a child has left, or why it has left nothing."""
    try:
        result: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError):
        status, reason = _without_result(exit_code, count_oom_kills() - oom_kills)
        return {"status": status, "reason": reason}
    for line in result.pop("said"):
        if not follows():
            say(f"{cell.title}: {line}")
    return {**result, "stderr_tail": ""} if result["status"] == "ok" else result


def _without_result(exit_code: int | None, oom_kills: int) -> tuple[str, str]:
    if exit_code is None:
        return "crash", "the process that started it was killed"
    if UNWRITTEN <= exit_code < UNWRITTEN + UNWRITTEN_ERRORS:
        return "error", f"its result could not be written: {os.strerror(exit_code - UNWRITTEN)}"
    return classify_exit(exit_code, oom_kills)
