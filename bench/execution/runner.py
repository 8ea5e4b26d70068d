"""Measures each cell of a sweep once, in its own process, also if several sweeps want the cell, and writes a record."""

import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attention_zoo
from bench import measures
from bench.common.errors import one_line, say, scrubbed
from bench.common.quiet import QUIET
from bench.execution import host_state, processes
from bench.execution.child import UNWRITTEN, UNWRITTEN_ERRORS
from bench.execution.device_locks import hold_device, memory_share, needs_quiet
from bench.execution.locks import hold, scheduler_job
from bench.execution.ranks import follows
from bench.measures.progress import Progress
from bench.plan.cell import Cell
from bench.plan.executors import Cells, Executor
from bench.plan.machine import THIS_MACHINE, Resources, code_identity, gpu, machine
from bench.plan.sources import digest
from bench.records import disk
from bench.records.outcomes import classify_exit, count_oom_kills
from bench.records.record import Record, RecordError
from bench.records.store import Store, decode, encode, latest
from bench.records.summary import summarised
from bench.training import checkpoint

MEASURING_PHASES = ("setup", "check", "warmup", "measure")
SHORTLY_S = 0.5


@dataclass(frozen=True)
class Options:
    """How to run a cell's process.

    Attributes:
        locks: descriptors of locks that the child keeps if this process is killed.
        memory_share: the cell's share of the machine's memory.
        on_progress: called now and then with the cell's progress.
        stop: when set, interrupts the cell as Ctrl-C does.
        scratch: a folder for the child's files, if another process measures the same cell in the usual folder.
    """

    locks: Sequence[int] = ()
    memory_share: float = 1.0
    on_progress: Callable[[Progress], None] = lambda progress: None
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)
    scratch: Path | None = None

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if `stop` is set."""
        if self.stop.is_set():
            raise KeyboardInterrupt


@dataclass(frozen=True)
class Runner:
    """Measures cells of one sweep; each process that takes part has its own.

    Attributes:
        store: where records are written. `prepare_folder` has created its folders.
        sweep_id: the plan's id.
        overrides: the command line, for the records.
        known: ids of the records that existed when the sweep decided what to measure.
        executor: where the cells are planned to run, and what may run beside them.
        defer_interrupts: a context that delays interrupts while a record is saved.
    """

    store: Store
    sweep_id: str = ""
    overrides: tuple[str, ...] = ()
    known: frozenset[str] = frozenset()
    executor: Executor = dataclasses.field(default_factory=Cells)
    defer_interrupts: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext

    def alone(self, cell: Cell) -> bool:
        """Whether nothing else may be measured on the machine at the same time as the cell."""
        return self.executor.timings_alone and needs_quiet(cell)

    def is_new(self, record: Record) -> bool:
        """Whether a record is a finished measurement made since the sweep decided what to measure, by any process."""
        return record.record_id not in self.known and record.status != "interrupted"

    def lock_cell(self, cell: Cell) -> AbstractContextManager[int]:
        """Keep other sweeps from measuring the cell."""
        return hold(self.store.root / "locks" / f"{cell.cell_id[:16]}.lock", cell.title)

    def measure(
        self,
        cell: Cell,
        options: Options | None = None,
        *,
        on_start: Callable[[], None] = lambda: None,
        cores: Collection[int] | None = None,
    ) -> Record:
        """Measure a cell, or wait for another sweep that measures it; returns its record.

        Args:
            cell: the cell to measure.
            options: how to run it; its locks and share of the memory are set here.
            on_start: called when all locks are held.
            cores: the CPU cores of this worker; None: all that this process may use.

        Raises:
            KeyboardInterrupt: after the interrupted cell's record was saved.
        """
        # Everybody locks first the cell, then the device: the holder of a device waits for nothing.
        with self.lock_cell(cell):
            attempts = self.store.of_cell(cell.cell_id)
            if any(map(self.is_new, attempts)):
                return latest(attempts)[cell.cell_id]
            with self._hold_device(cell, cores) as locks:
                # If somebody removed the cell's lock file in the meantime, another sweep may have measured the cell.
                attempts = self.store.of_cell(cell.cell_id)
                if any(map(self.is_new, attempts)):
                    return latest(attempts)[cell.cell_id]
                on_start()
                share = 1.0 if self.alone(cell) else memory_share(cores)
                options = dataclasses.replace(options or Options(), locks=locks, memory_share=share)
                record = self.run_cell(cell, len(attempts) + 1, options)
            interrupted = record.status == "interrupted"
            hides_nothing = contextlib.suppress(OSError) if interrupted else contextlib.nullcontext()  # full disk
            with self.defer_interrupts(), hides_nothing:
                self.store.write(record)
                if record.status == "ok":
                    # Not before: a kill between training and the record costs what a kill in training costs.
                    checkpoint.clear(self.store.root / "training" / cell.cell_id[:16])
        if interrupted:
            raise KeyboardInterrupt
        return record

    def follow(self, cell: Cell, scratch: Path) -> Record:
        """Run a cell together with the process that leads it; its record is not written."""
        shared = cell.config["device"] == "cpu"
        with contextlib.nullcontext(()) if shared else self._hold_device(cell, None) as locks:
            record = self.run_cell(cell, options=Options(locks, scratch=scratch))
        if record.status == "interrupted":
            raise KeyboardInterrupt
        return record

    def run_cell(self, cell: Cell, attempt: int = 1, options: Options | None = None) -> Record:
        """Measure a cell, whose lock is held, in its own process.

        Ctrl-C, or another signal to end, gives a record with status `interrupted`. A cell that cannot be built gives an
        `unsupported` record, without a process. `attempt` counts from 1.
        """
        identity = self.identity(cell, attempt, cell.config["device"])
        started, clock = datetime.now(UTC), time.perf_counter()
        result: dict[str, Any] = {"status": "unsupported", "reason": cell.unsupported, "phase": "setup"}
        try:
            if cell.unsupported is None:
                # An absolute path: a mechanism may change the child's working directory.
                result = run_process(cell, self.store.root.absolute(), self.executor.resources, options or Options())
        except KeyboardInterrupt:
            result = {"status": "interrupted", "reason": "interrupted by a signal"}
        duration = time.perf_counter() - clock
        if result["status"] == "ok" and measures.get(cell.config["bench"]["name"]).timed:
            reasons = host_state.disturbances(result["host_state"], result["device_state"])
            asked = ["other cells, as asked"] if identity["machine"]["beside_others"] else []
            result["host_state"]["disturbed"] = [*reasons, *asked]
        seconds = result.pop("seconds", {})
        record = Record(
            started=started.isoformat(),
            ended=(started + timedelta(seconds=duration)).isoformat(),  # the clock may have been changed
            duration_s=duration,
            seconds={phase: round(took, 4) for phase, took in seconds.items()},
            overhead_s=duration - sum(seconds.get(phase, 0.0) for phase in MEASURING_PHASES),
            **identity,
            **result,
        )
        return readable(record)

    def identity(self, cell: Cell, attempt: int, device: str) -> dict[str, Any]:
        """The fields of a new record that describe what was measured, on which device of this machine, and the code."""
        infos = {entry["label"]: attention_zoo.info(entry["attention"]["name"]) for entry in cell.entries}
        facts = ("approximates", "exact", "size", "control")
        beside = needs_quiet(cell) and not self.executor.timings_alone
        return {
            "record_id": secrets.token_hex(16),
            "cell_id": cell.cell_id,
            "sweep_id": self.sweep_id,
            "attempt": attempt,
            "config": cell.config,
            "overrides": self.overrides,
            "code": {**code_identity(), "sources_sha256": digest(cell.sources)},
            "mechanisms": {label: {fact: getattr(info, fact) for fact in facts} for label, info in infos.items()},
            "machine": {**machine(device, self.executor.resources), "beside_others": beside, "job": scheduler_job()},
        }

    def _hold_device(self, cell: Cell, cores: Collection[int] | None) -> AbstractContextManager[Sequence[int]]:
        if cell.unsupported is not None:
            return contextlib.nullcontext(())
        used = gpu(cell.config["device"])
        device, part_of = (used.uuid, used.part_of) if used else ("cpu", None)
        return hold_device(device, alone=self.alone(cell), cores=cores, part_of=part_of, what=cell.title)


def readable(record: Record) -> Record:
    """The record with its summary; an `error` record with the reason if it cannot be read back."""
    data, samples = encode(record)
    try:
        whole = summarised(decode(record.file_name, data, lambda: samples or b""))
        # With its summary, whose lists are beside the samples.
        size = max(len(file or b"") for file in encode(whole))
        if size > disk.LARGEST:
            raise RecordError(f"its samples have {size / 2**20:.0f} MiB; must have at most {disk.LARGEST >> 20}")
        return whole
    except RecordError as error:
        reason = f"what was measured is no record: {one_line(error)}"
        failed = dataclasses.replace(record, status="error", reason=reason, phase="teardown", measurements={})
        return summarised(failed)


def child_environment(device: str, resources: Resources = THIS_MACHINE) -> dict[str, str]:
    """The environment of a child that measures on a resolved device."""
    environment = {**os.environ, **QUIET}
    environment.pop("MKL_NUM_THREADS", None)  # torch would prefer it, and no record names it
    if resources.cores is not None:
        environment["OMP_NUM_THREADS"] = str(resources.cores)
    if (used := gpu(device)) is not None:  # only this GPU is visible, whatever CUDA's order
        environment["CUDA_VISIBLE_DEVICES"] = used.uuid
    return environment


def run_process(cell: Cell, results_dir: Path, resources: Resources, options: Options) -> dict[str, Any]:
    """Run a cell in a child; returns the record's fields that come from it: `status`, `measurements`, ..."""
    folder = options.scratch or results_dir / "scratch" / cell.cell_id[:16]
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed sweep
    folder.parent.mkdir(exist_ok=True)  # a mechanism may have removed the folder
    folder.mkdir()
    oom_kills = count_oom_kills()
    try:
        environment = child_environment(cell.config["device"], resources)
        child = processes.start("bench.execution.child", environment, cell.sources, inherited=options.locks)
        before = host_state.read()  # the child waits for its job
        job = {
            # The child sees one GPU, so it needs no index.
            "config": {**cell.config, "device": cell.config["device"].partition(":")[0]},
            "cell": cell.cell_id[:16],
            "sources": cell.sources,
            "folder": str(folder),
            "results_dir": str(results_dir),
            "memory_share": options.memory_share,
            "machine_bytes": before.limits["control_group"]["memory_bytes"],
        }
        ended = lost = False
        try:
            child.send_line(json.dumps(job).encode())
            ended = wait_for(child, cell.timeout, folder / "progress", options)
        except processes.LostServer:
            ended = lost = True
        finally:
            child.end()
        if lost or child.exit_code == -signal.SIGTERM:
            # Ctrl-C or a job's end may reach the child first; then this process is interrupted a moment later.
            time.sleep(SHORTLY_S)
            options.check()
        host = host_state.between(before, host_state.read(), child.cpu_s)
        end: dict[str, Any] = {"exit_code": child.exit_code, "stderr_tail": scrubbed(child.tail), "host_state": host}
        if child.exit_code is not None and child.exit_code < 0:
            end["signal"] = -child.exit_code
        if not ended:
            return {**end, "status": "timeout", "reason": f"timeout={cell.timeout:g} seconds passed"}
        return end | _result(cell, child.exit_code, folder / "result.json", oom_kills)
    except processes.LostServer as error:
        return {"status": "crash", "reason": str(error)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(child: processes.Child, timeout: float, file: Path, options: Options) -> bool:
    """Wait for the child's end or the timeout, without compiling and preparing; returns whether it ended."""
    deadline, uncounted_s = time.monotonic() + timeout, 0.0
    while (left := deadline + uncounted_s - time.monotonic()) > 0:
        if child.wait(min(1.0, left)):
            return True
        options.check()
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):  # the file is missing or half written
            progress = Progress.decode(file.read_text())
            uncounted_s = progress.compiling_s + progress.preparing_s
            options.on_progress(progress)
    return child.wait(0.0)


def _result(cell: Cell, exit_code: int | None, file: Path, oom_kills: int) -> dict[str, Any]:
    """The result that a child wrote, or why there is none."""
    try:
        result: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError):
        if exit_code is None:
            return {"status": "crash", "reason": "the process that started it was killed"}
        if UNWRITTEN <= exit_code < UNWRITTEN + UNWRITTEN_ERRORS:
            reason = f"its result could not be written: {os.strerror(exit_code - UNWRITTEN)}"
            return {"status": "error", "reason": reason}
        status, reason = classify_exit(exit_code, count_oom_kills() - oom_kills)
        return {"status": status, "reason": reason}
    for line in result.pop("said"):
        if not follows():
            say(f"{cell.title}: {line}")
    return {**result, "stderr_tail": ""} if result["status"] == "ok" else result
