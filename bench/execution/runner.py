"""Runs one cell in a child process of its own, and always returns a record of how that went."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attention_zoo
from bench import measures
from bench.common.errors import one_line, say, scrubbed
from bench.common.quiet import QUIET
from bench.execution import host_state, processes
from bench.execution.child import UNWRITTEN, UNWRITTEN_ERRORS
from bench.execution.jobs import job
from bench.execution.ranks import follows
from bench.measures.progress import Progress
from bench.measures.summary import quantities
from bench.plan.cell import Cell
from bench.plan.code import code_identity
from bench.plan.machine import gpu, machine
from bench.plan.place import HERE, Place
from bench.plan.sources import digest
from bench.records.files import decode, encode
from bench.records.outcomes import classify_exit, count_oom_kills
from bench.records.patience import patiently
from bench.records.record import Record, RecordError

TASK = "bench.execution.child"
SHORTLY_S = 0.5
MEASURING_PHASES = ("setup", "check", "warmup", "measure")


def run_cell(
    cell: Cell,
    results_dir: Path,
    *,
    sweep_id: str = "",
    attempt: int = 1,
    overrides: tuple[str, ...] = (),
    progress: Callable[[Progress], None] = lambda now: None,
    held: Sequence[int] = (),
    scratch: Path | None = None,
    place: Place = HERE,
    memory_share: float = 1.0,
    beside_others: bool = False,
    stop: threading.Event | None = None,
) -> Record:
    """Measure one cell.

    Args:
        cell: what to measure. One that cannot be built gives an `unsupported` record without a process.
        results_dir: where inputs are cached, and the child's files lie while it runs: `prepare_folder` has made what
            is in it. The caller holds the cell's lock.
        sweep_id: the plan that the record belongs to.
        attempt: how many records this cell has, with this one.
        overrides: the command line, for the record.
        progress: told how far the cell is now and then.
        held: the descriptors of locks that the child keeps if this process is killed.
        scratch: where the child's files lie instead, if another process measures the same cell.
        place: where it was planned to run.
        memory_share: what part of the machine's memory is the cell's.
        beside_others: whether it may run beside other cells though it should be alone, as somebody asked.
        stop: interrupts it when it is set, as Ctrl-C does.

    Raises:
        KeyboardInterrupt: the user interrupted; its attribute `record` holds the `interrupted` record.
    """
    code = {**code_identity(), "sources_sha256": digest(cell.sources)}
    where = {
        **machine(cell.config["device"], place),
        "beside_others": beside_others,
        "job": job(),
    }
    started, clock = datetime.now(UTC), time.perf_counter()
    interrupt: KeyboardInterrupt | None = None
    results_dir = results_dir.absolute()  # a mechanism may change the child's working directory
    if cell.unsupported is not None:
        result: dict[str, Any] = {"status": "unsupported", "reason": cell.unsupported, "phase": "setup"}
    else:
        folder = scratch or results_dir / "scratch" / cell.cell_id[:16]
        shutil.rmtree(folder, ignore_errors=True)  # of a sweep that was killed
        folder.parent.mkdir(exist_ok=True)  # a mechanism may have removed it
        folder.mkdir()
        try:
            environment = child_environment(cell.config["device"], place)
            result = _run_child(cell, folder, results_dir, environment, memory_share, _heeding(stop, progress), held)
        except KeyboardInterrupt as error:
            interrupt, result = error, {"status": "interrupted", "reason": "interrupted by the user"}
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    duration = time.perf_counter() - clock
    if result["status"] == "ok" and measures.get(cell.config["bench"]["name"]).timed:
        reasons = host_state.disturbances(result["host_state"], result["device_state"])
        result["host_state"]["disturbed"] = [*reasons, *(["other cells, as asked"] if beside_others else [])]
    seconds = result.pop("seconds", {})
    record = Record(
        record_id=secrets.token_hex(16),
        cell_id=cell.cell_id,
        sweep_id=sweep_id,
        attempt=attempt,
        config=cell.config,
        started=started.isoformat(),
        ended=(started + timedelta(seconds=duration)).isoformat(),  # the clock may have been set meanwhile
        duration_s=duration,
        overrides=overrides,
        code=code,
        mechanisms=_mechanisms(cell.config),
        machine=where,
        seconds={phase: round(took, 4) for phase, took in seconds.items()},
        overhead_s=duration - sum(seconds.get(phase, 0.0) for phase in MEASURING_PHASES),
        **result,
    )
    record = _readable(record)
    if interrupt is not None:
        interrupt.record = record  # type: ignore[attr-defined]
        raise interrupt
    return record


def _readable(record: Record) -> Record:
    """The record, or one that says why what it measured cannot be kept: what no reader takes, or what cannot be."""
    data, samples = encode(record)
    try:
        quantities(decode(record.file_name, data, lambda: samples or b""))
    except RecordError as error:
        reason = f"what was measured is no record: {one_line(error)}"
        return dataclasses.replace(record, status="error", reason=reason, phase="teardown", measurements={})
    return record


def _mechanisms(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    mechanisms = [config, *config["bench"].get("against", ())]
    infos = {each["label"]: attention_zoo.info(each["attention"]["name"]) for each in mechanisms}
    facts = ("approximates", "exact", "size")
    return {label: {fact: getattr(info, fact) for fact in facts} for label, info in infos.items()}


def child_environment(device: str, place: Place = HERE) -> dict[str, str]:
    """The environment of a child that measures on the device of a resolved configuration."""
    environment = {**os.environ, **QUIET}
    if place.cores is not None:
        environment["OMP_NUM_THREADS"] = str(place.cores)
    used = gpu(device)
    if used is not None:  # the only one that the child sees, whatever order CUDA counts in
        environment["CUDA_VISIBLE_DEVICES"] = used.uuid
    return environment


def _heeding(stop: threading.Event | None, progress: Callable[[Progress], None]) -> Callable[[Progress | None], None]:
    """Called about once a second while a cell runs."""

    def tick(now: Progress | None) -> None:
        if stop is not None and stop.is_set():
            raise KeyboardInterrupt
        if now is not None:
            progress(now)

    return tick


def _run_child(
    cell: Cell,
    folder: Path,
    results_dir: Path,
    environment: dict[str, str],
    memory_share: float,
    tick: Callable[[Progress | None], None],
    held: Sequence[int],
) -> dict[str, Any]:
    device = cell.config["device"]
    order = {
        "config": {**cell.config, "device": device.partition(":")[0]},
        "sources": cell.sources,
        "folder": str(folder),
        "records": str(results_dir / "records"),
        "cache_dir": str(results_dir / "inputs"),
        "memory_share": memory_share,
        "keep": str(results_dir / "training" / cell.cell_id[:16]),
    }
    oom_kills = count_oom_kills()
    timed_out = lost = False
    try:
        child = processes.start(TASK, environment, cell.sources, kept=held)
    except processes.LostServer as error:
        return {"status": "crash", "reason": str(error)}
    before = host_state.read()  # the child waits for its job
    try:
        child.tell(json.dumps(order).encode())
        timed_out = not _ended(child, cell.timeout, folder / "progress", tick)
    except processes.LostServer:
        lost = True
    finally:
        child.end()
    if lost or child.exit_code == -signal.SIGTERM:
        # Who ends all processes of a job may have reached these first; then this one is interrupted, too.
        time.sleep(SHORTLY_S)
        tick(None)
    host = host_state.between(before, host_state.read(), child.cpu_s)
    tail = scrubbed(child.tail)
    ended: dict[str, Any] = {"exit_code": child.exit_code, "stderr_tail": tail, "host_state": host}
    if child.exit_code is not None and child.exit_code < 0:
        ended["signal"] = -child.exit_code
    if child.reason is not None:
        return {"status": "crash", "reason": f"killed: {child.reason}", **ended}
    if timed_out:
        return {"status": "timeout", "reason": f"timeout={cell.timeout:g} seconds passed", **ended}
    try:
        result = json.loads(patiently(lambda: (folder / "result.json").read_text(), results_dir / "records"))
    except (OSError, ValueError):
        if lost or child.exit_code is None:
            return {"status": "crash", "reason": "the process that started it was killed", **ended}
        status, reason = _without_result(child.exit_code, count_oom_kills() - oom_kills)
        return {"status": status, "reason": reason, **ended}
    for line in result.pop("said"):
        if not follows():
            say(f"{cell.title}: {line}")
    return {**result, **ended, "stderr_tail": "" if result["status"] == "ok" else tail}


def _without_result(code: int, oom_kills: int) -> tuple[str, str]:
    if UNWRITTEN <= code < UNWRITTEN + UNWRITTEN_ERRORS:
        return "error", f"its result could not be written: {os.strerror(code - UNWRITTEN)}"
    return classify_exit(code, oom_kills)


def _ended(child: processes.Child, timeout: float, file: Path, tick: Callable[[Progress | None], None]) -> bool:
    """Wait for the end or the timeout, which compiling does not count to; returns whether the end came first."""
    deadline, compiling_s = time.monotonic() + timeout, 0.0
    while (left := deadline + compiling_s - time.monotonic()) > 0:
        if child.wait(min(1.0, left)):
            return True
        now = None
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):  # not there yet, or half of it
            now = Progress.decode(file.read_text())
            compiling_s = now.compiling_s
        tick(now)
    return child.wait(0.0)
