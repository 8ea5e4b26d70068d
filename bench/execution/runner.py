"""Measures the cells of a sweep: each once, whoever else measures the same sweep, and always with a record."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import attention_zoo
from bench import measures
from bench.common.errors import one_line, say
from bench.execution import cell_process, host_state
from bench.execution.cell_process import Options, child_environment
from bench.execution.device_locks import hold_device, memory_share, needs_quiet
from bench.execution.locks import hold, scheduler_job
from bench.measures.progress import Progress
from bench.measures.summary import quantities
from bench.plan.cell import Cell
from bench.plan.code import code_identity
from bench.plan.machine import gpu, machine
from bench.plan.resources import THIS_MACHINE, Resources
from bench.plan.sources import digest
from bench.records.record import Record, RecordError
from bench.records.store import Store, decode, encode, latest

MEASURING_PHASES = ("setup", "check", "warmup", "measure")


class Callback(Protocol):
    """Follows a sweep; it is always called from the thread that runs the sweep."""

    def on_cell_start(self, cell: Cell) -> None:
        """A cell is being measured."""

    def on_progress(self, cell: Cell, progress: Progress) -> None:
        """How far it is."""

    def on_cell_end(self, cell: Cell) -> None:
        """It has a new record, or was interrupted."""


@dataclass(frozen=True)
class Runner:
    """A sweep as each process sees it that measures cells of it.

    Attributes:
        store: where records go. `prepare_folder` has made the folders in it.
        sweep_id: of the plan.
        overrides: the command line, for the records.
        known: the ids of the records that were there when it was decided what to measure.
        resources: where the cells are planned to run.
        timings_alone: whether what is timed on a CPU, and comparisons, have the machine for themselves.
        defer_interrupts: keeps interrupts away while a record is saved.
    """

    store: Store
    sweep_id: str = ""
    overrides: tuple[str, ...] = ()
    known: frozenset[str] = frozenset()
    resources: Resources = THIS_MACHINE
    timings_alone: bool = True
    defer_interrupts: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext

    def alone(self, cell: Cell) -> bool:
        """Whether nothing else may be measured on the machine meanwhile."""
        return self.timings_alone and needs_quiet(cell)

    def is_new(self, record: Record) -> bool:
        """Whether somebody has measured a cell since it was decided what to measure, whoever that was."""
        return record.record_id not in self.known and record.status != "interrupted"

    def lock_cell(self, cell: Cell) -> AbstractContextManager[int]:
        """Keep other sweeps from measuring a cell."""
        return hold(self.store.root / "locks" / f"{cell.cell_id[:16]}.lock", cell.title, say)

    def measure(
        self,
        cell: Cell,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        *,
        on_start: Callable[[], None] = lambda: None,
        cores: Collection[int] | None = None,
        stop: threading.Event | None = None,
    ) -> Record:
        """Measure a cell, or wait for another sweep that does; returns its record.

        Args:
            cell: one that is to be measured.
            on_progress: called now and then with how far it is.
            on_start: called when all locks are held.
            cores: the processors of this worker; None: all that this process may use.
            stop: interrupts it, as a signal does in the main thread.

        Raises:
            KeyboardInterrupt: after the interrupted cell's record was saved.
        """
        # The device comes after the cell, for everybody: what holds a device waits for nothing.
        with self.lock_cell(cell):
            attempts = self.store.of_cell(cell.cell_id)
            if any(map(self.is_new, attempts)):
                return latest(attempts)[cell.cell_id]
            with self._hold_device(cell, cores) as locks:
                # If somebody removed the cell's lock while this waited, another sweep may have measured it.
                attempts = self.store.of_cell(cell.cell_id)
                if any(map(self.is_new, attempts)):
                    return latest(attempts)[cell.cell_id]
                on_start()
                share = 1.0 if self.alone(cell) else memory_share(cores)
                try:
                    record = self.run_cell(cell, len(attempts) + 1, Options(locks, share, on_progress, stop))
                except KeyboardInterrupt as interrupt:
                    if (interrupted := getattr(interrupt, "record", None)) is not None:
                        with contextlib.suppress(OSError):  # a full disk must not hide the interrupt
                            self.save(interrupted)
                    raise
            self.save(record)
        return record

    def follow(self, cell: Cell, scratch: Path) -> Record:
        """Take part in a cell that another process leads."""
        shared = cell.config["device"] == "cpu"
        with contextlib.nullcontext(()) if shared else self._hold_device(cell, None) as locks:
            return self.run_cell(cell, options=Options(locks, scratch=scratch))

    def save(self, record: Record) -> None:
        """Write a record, whoever interrupts."""
        with self.defer_interrupts():
            self.store.write(record)

    def run_cell(self, cell: Cell, attempt: int = 1, options: Options | None = None) -> Record:
        """Measure a cell, whose lock is held, in a process of its own.

        Args:
            cell: what to measure. One that cannot be built gives an `unsupported` record without a process.
            attempt: how many records this cell has, with this one.
            options: how the process is run.

        Raises:
            KeyboardInterrupt: the user interrupted; its attribute `record` holds the `interrupted` record.
        """
        identity = self.identity(cell, attempt, cell.config["device"])
        started, clock = datetime.now(UTC), time.perf_counter()
        interrupt: KeyboardInterrupt | None = None
        try:
            result = self._result(cell, options or Options())
        except KeyboardInterrupt as error:
            interrupt, result = error, {"status": "interrupted", "reason": "interrupted by the user"}
        duration = time.perf_counter() - clock
        if result["status"] == "ok" and measures.get(cell.config["bench"]["name"]).timed:
            reasons = host_state.disturbances(result["host_state"], result["device_state"])
            asked = ["other cells, as asked"] if identity["machine"]["beside_others"] else []
            result["host_state"]["disturbed"] = [*reasons, *asked]
        seconds = result.pop("seconds", {})
        record = Record(
            started=started.isoformat(),
            ended=(started + timedelta(seconds=duration)).isoformat(),  # the clock may have been set meanwhile
            duration_s=duration,
            seconds={phase: round(took, 4) for phase, took in seconds.items()},
            overhead_s=duration - sum(seconds.get(phase, 0.0) for phase in MEASURING_PHASES),
            **identity,
            **result,
        )
        if interrupt is not None:
            interrupt.record = record  # type: ignore[attr-defined]
            raise interrupt
        return readable(record)

    def identity(self, cell: Cell, attempt: int, device: str) -> dict[str, Any]:
        """The fields of a new record that say what it is of, where and by which code, as of now.

        Args:
            cell: what is measured.
            attempt: how many records this cell has, with this one.
            device: one of this machine.
        """
        return {
            "record_id": secrets.token_hex(16),
            "cell_id": cell.cell_id,
            "sweep_id": self.sweep_id,
            "attempt": attempt,
            "config": cell.config,
            "overrides": self.overrides,
            "code": {**code_identity(), "sources_sha256": digest(cell.sources)},
            "mechanisms": _mechanisms(cell.config),
            "machine": {
                **machine(device, self.resources),
                "beside_others": needs_quiet(cell) and not self.timings_alone,
                "job": scheduler_job(),
            },
        }

    def _result(self, cell: Cell, options: Options) -> dict[str, Any]:
        if cell.unsupported is not None:
            return {"status": "unsupported", "reason": cell.unsupported, "phase": "setup"}
        results_dir = self.store.root.absolute()  # a mechanism may change the child's working directory
        folder = options.scratch or results_dir / "scratch" / cell.cell_id[:16]
        shutil.rmtree(folder, ignore_errors=True)  # of a sweep that was killed
        folder.parent.mkdir(exist_ok=True)  # a mechanism may have removed it
        folder.mkdir()
        try:
            environment = child_environment(cell.config["device"], self.resources)
            return cell_process.measure(cell, folder, results_dir, environment, options)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _hold_device(self, cell: Cell, cores: Collection[int] | None) -> AbstractContextManager[Sequence[int]]:
        if cell.unsupported is not None:
            return contextlib.nullcontext(())
        used = gpu(cell.config["device"])
        device, part_of = (used.uuid, used.part_of) if used else ("cpu", None)
        return hold_device(device, alone=self.alone(cell), cores=cores, part_of=part_of, what=cell.title, say=say)


def readable(record: Record) -> Record:
    """The record, or an `error` that says why what it measured cannot be read back."""
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
