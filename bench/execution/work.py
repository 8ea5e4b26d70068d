"""What a sweep has to do, for whoever does a part of it: the cells of a plan, each measured once under its locks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from bench.common.errors import say
from bench.execution.locks import hold
from bench.execution.runner import run_cell
from bench.execution.slots import hold_device, needs_quiet, share_of
from bench.measures.progress import Progress
from bench.plan.cell import Cell
from bench.plan.machine import gpu
from bench.plan.place import HERE, Place
from bench.records.patience import patiently
from bench.records.record import Record
from bench.records.store import Store, latest


@dataclass(frozen=True)
class Work:
    """A sweep as the processes see that measure it.

    Attributes:
        store: where records go.
        sweep_id: of the plan.
        overrides: the command line, for the records.
        seen: the ids of the records that were there when it was decided what to measure.
        place: where the cells are planned to run.
        timings_alone: whether what is timed on a CPU, and comparisons, have the machine for themselves.
        saving: keeps interrupts away while a record is saved.
    """

    store: Store
    sweep_id: str
    overrides: tuple[str, ...]
    seen: frozenset[str]
    place: Place = HERE
    timings_alone: bool = True
    saving: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext

    def alone(self, cell: Cell) -> bool:
        """Whether nothing else may be measured on the machine meanwhile."""
        return self.timings_alone and needs_quiet(cell)

    def measure(
        self,
        cell: Cell,
        tell: Callable[[Progress], None] = lambda now: None,
        *,
        started: Callable[[], None] = lambda: None,
        cores: Collection[int] | None = None,
        stop: threading.Event | None = None,
    ) -> Record:
        """Measure a cell, or wait for another sweep that does; returns its record.

        Args:
            cell: one that is to be measured.
            tell: told how far it is now and then.
            started: told when all locks are held.
            cores: the processors of this worker; None: all that this process may use.
            stop: interrupts it, as a signal does in the main thread.

        Raises:
            KeyboardInterrupt: after the interrupted cell's record was saved.
        """
        with contextlib.ExitStack() as locked:
            attempts = patiently(lambda: self._claim(cell, locked), self.store.records_dir)
            if any(map(self.is_new, attempts)):
                return latest(attempts)[cell.cell_id]
            # The device comes after the cell, for everybody: who holds a device waits for nothing.
            with self._device(cell, cores) as held:
                # Whoever removed the cell's lock while this waited let another sweep have the cell, too.
                attempts = patiently(lambda: self.store.of_cell(cell.cell_id), self.store.records_dir)
                if any(map(self.is_new, attempts)):
                    return latest(attempts)[cell.cell_id]
                started()
                try:
                    record = run_cell(
                        cell,
                        self.store.root,
                        sweep_id=self.sweep_id,
                        attempt=len(attempts) + 1,
                        overrides=self.overrides,
                        progress=tell,
                        held=held,
                        place=self.place,
                        memory_share=1.0 if self.alone(cell) else share_of(cores),
                        beside_others=needs_quiet(cell) and not self.timings_alone,
                        stop=stop,
                    )
                except KeyboardInterrupt as interrupt:
                    interrupted = getattr(interrupt, "record", None)
                    if interrupted is not None:
                        with contextlib.suppress(OSError):  # nobody waits for a folder that is away
                            self._write(interrupted)
                    raise
            self._save(record)
        return record

    def is_new(self, record: Record) -> bool:
        """Whether somebody has measured a cell since it was decided what to measure, whoever that was."""
        return record.record_id not in self.seen and record.status != "interrupted"

    def _claim(self, cell: Cell, locked: contextlib.ExitStack) -> list[Record]:
        """Lock a cell; gives what is recorded of it."""
        locked.close()
        locked.enter_context(hold(self.store.root / "locks" / f"{cell.cell_id[:16]}.lock", cell.title, say))
        return self.store.of_cell(cell.cell_id)

    def follow(self, cell: Cell, scratch: Path) -> Record:
        """Take part in a cell that another process leads."""
        shared = cell.config["device"] == "cpu"
        with contextlib.nullcontext(()) if shared else self._device(cell, None) as held:
            return run_cell(cell, self.store.root, sweep_id=self.sweep_id, held=held, scratch=scratch)

    def _device(self, cell: Cell, cores: Collection[int] | None) -> AbstractContextManager[tuple[int, ...]]:
        if cell.unsupported is not None:
            return contextlib.nullcontext(())
        used = gpu(cell.config["device"])
        device, part_of = (used.uuid, used.part_of) if used else ("cpu", None)
        return hold_device(device, alone=self.alone(cell), cores=cores, part_of=part_of, what=cell.title, say=say)

    def _save(self, record: Record) -> None:
        patiently(lambda: self._write(record), self.store.records_dir)

    def _write(self, record: Record) -> None:
        with self.saving():
            self.store.write(record)
