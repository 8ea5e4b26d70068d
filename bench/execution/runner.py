"""Runs one cell in a child process of its own, and always returns a record of how that went."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

import attention_zoo
from bench.plan.cell import Cell
from bench.plan.code import code_identity
from bench.plan.machine import gpu, machine
from bench.plan.sources import digest
from bench.quiet import QUIET
from bench.records.outcomes import classify_exit, count_oom_kills
from bench.records.record import Record

POLL_S = 0.05
GRACE_S = 5.0
STDERR_TAIL = 4000
MEASURING_PHASES = ("setup", "check", "warmup", "measure")


def run_cell(
    cell: Cell,
    results_dir: Path,
    *,
    sweep_id: str = "",
    attempt: int = 1,
    overrides: tuple[str, ...] = (),
    progress: Callable[[str], None] = lambda text: None,
    held: int | None = None,
) -> Record:
    """Measure one cell.

    Args:
        cell: what to measure. One that cannot be built gives an `unsupported` record without a process.
        results_dir: where inputs are cached, and the child's files lie while it runs. The caller holds the cell's lock.
        sweep_id: the plan that the record belongs to.
        attempt: how many records this cell has, with this one.
        overrides: the command line, for the record.
        progress: told "done/total" within the cell now and then.
        held: the descriptor of a lock that the child keeps if this process is killed.

    Raises:
        KeyboardInterrupt: the user interrupted; its attribute `record` holds the `interrupted` record.
    """
    code = {**code_identity(), "sources_sha256": digest(cell.sources)}
    where = {**machine(cell.config["device"]), "load_1m": round(os.getloadavg()[0], 2)}
    started, clock = datetime.now(UTC), time.perf_counter()
    interrupt: KeyboardInterrupt | None = None
    results_dir = results_dir.absolute()  # a mechanism may change the child's working directory
    if cell.unsupported is not None:
        result: dict[str, Any] = {"status": "unsupported", "reason": cell.unsupported, "phase": "setup"}
    else:
        folder = results_dir / "scratch" / cell.cell_id[:16]
        shutil.rmtree(folder, ignore_errors=True)  # of a sweep that was killed
        folder.mkdir(parents=True)
        try:
            result = _run_child(cell, folder, results_dir / "inputs", progress, held)
        except KeyboardInterrupt as error:
            interrupt, result = error, {"status": "interrupted", "reason": "interrupted by the user"}
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    duration = time.perf_counter() - clock
    seconds = result.pop("seconds", {})
    record = Record(
        record_id=secrets.token_hex(16),
        cell_id=cell.cell_id,
        sweep_id=sweep_id,
        attempt=attempt,
        config=cell.config,
        started=started.isoformat(),
        ended=datetime.now(UTC).isoformat(),
        duration_s=duration,
        overrides=overrides,
        code=code,
        mechanisms=_mechanisms(cell.config),
        machine=where,
        seconds={phase: round(took, 4) for phase, took in seconds.items()},
        overhead_s=duration - sum(seconds.get(phase, 0.0) for phase in MEASURING_PHASES),
        **result,
    )
    if interrupt is not None:
        interrupt.record = record  # type: ignore[attr-defined]
        raise interrupt
    return record


def _mechanisms(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    mechanisms = [config, *config["bench"].get("against", ())]
    infos = {each["label"]: attention_zoo.info(each["attention"]["name"]) for each in mechanisms}
    facts = ("approximates", "exact", "size")
    return {label: {fact: getattr(info, fact) for fact in facts} for label, info in infos.items()}


def _run_child(
    cell: Cell, folder: Path, cache_dir: Path, progress: Callable[[str], None], held: int | None
) -> dict[str, Any]:
    job: dict[str, Any] = {
        "config": cell.config,
        "sources": cell.sources,
        "folder": str(folder),
        "cache_dir": str(cache_dir),
    }
    environment = {**os.environ, **QUIET}
    used = gpu(cell.config["device"])
    if used is not None:  # the only one that the child sees, whatever order CUDA counts in
        environment["CUDA_VISIBLE_DEVICES"] = used.uuid
        job["config"] = {**cell.config, "device": "cuda"}
    oom_kills = count_oom_kills()
    with open(folder / "stderr", "wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.execution.child"],
            stdin=subprocess.PIPE,
            stdout=stderr,
            stderr=stderr,
            start_new_session=True,
            env=environment,
            pass_fds=() if held is None else (held,),
        )
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        timed_out = _wait(process, cell.timeout, folder / "progress", progress)
    finally:
        _end_group(process)
    tail = (folder / "stderr").read_bytes()[-STDERR_TAIL:].decode(errors="replace")
    tail = tail.replace(str(Path.home()), "~")
    ended: dict[str, Any] = {"exit_code": process.returncode, "stderr_tail": tail}
    if process.returncode < 0:
        ended["signal"] = -process.returncode
    if timed_out:
        return {"status": "timeout", "reason": f"timeout={cell.timeout:g} seconds passed", **ended}
    try:
        result = json.loads((folder / "result.json").read_text())
    except (OSError, ValueError):
        status, reason = classify_exit(process.returncode, count_oom_kills() - oom_kills)
        return {"status": status, "reason": reason, **ended}
    return {
        **result,
        "exit_code": process.returncode,
        "stderr_tail": "" if result["status"] == "ok" else tail,
    }


def _wait(process: subprocess.Popen[bytes], timeout: float, file: Path, progress: Callable[[str], None]) -> bool:
    """Wait for the end or the timeout; returns whether the timeout came first."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(1.0, max(POLL_S, deadline - time.monotonic())))
            return False
        with contextlib.suppress(OSError):
            progress(file.read_text())
    return process.poll() is None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the child and everything it started: ask first, then kill its group and who has left it."""
    family = _descendants(process.pid)
    try:
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(GRACE_S)
    finally:  # also when the user interrupts the wait
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for member in family:
            with contextlib.suppress(psutil.Error):
                member.kill()
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def _descendants(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []
