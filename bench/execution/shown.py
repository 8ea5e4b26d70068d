"""A sweep on the terminal: a bar, and a line for each cell that has ended. A log file has lines only."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from tqdm import tqdm

from bench.errors import say
from bench.measures.progress import Progress
from bench.plan.cell import Cell
from bench.records.patience import patiently
from bench.records.record import Record
from bench.records.store import Store
from bench.records.table import line

# Between lines of a log file that say how far a cell is.
LOG_INTERVAL_S = 60.0


class Shown:
    """What an executor tells, shown and passed on.

    Args:
        store: where the records are.
        total: how many cells are to be measured.
        on_records: gets all records of a cell whenever it has ended, however that was; None: nobody.
        on_progress: told how far a cell is now and then.
        quiet: whether nothing is printed.
    """

    def __init__(
        self,
        store: Store,
        total: int,
        on_records: Callable[[Sequence[Record]], None] | None,
        on_progress: Callable[[Cell, Progress], None],
        *,
        quiet: bool,
    ) -> None:
        self._store, self._quiet = store, quiet
        self._on_records, self._on_progress = on_records, on_progress
        self._running: dict[str, str] = {}
        self._total, self._count, self._last = total, 0, time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=total, unit="cell", disable=quiet or not (total and self._terminal), mininterval=0.5, maxinterval=0.5
        )

    def __enter__(self) -> Shown:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.close()

    def started(self, cell: Cell) -> None:
        """A cell is being measured."""
        self._running[cell.cell_id] = cell.title
        self._describe("")

    def told(self, cell: Cell, now: Progress) -> None:
        """How far it is."""
        if len(self._running) == 1:
            self._bar.set_postfix_str(now.text)
        if not (self._terminal or self._quiet) and time.monotonic() > self._last + LOG_INTERVAL_S:
            self._last = time.monotonic()
            say(f"{cell.title}: {now.text}")
        self._on_progress(cell, now)

    def ended(self, cell: Cell) -> None:
        """It has a record more, or was interrupted before it could have one."""
        self._running.pop(cell.cell_id, None)
        records = self._records(cell.cell_id)
        if self._on_records:
            self._on_records(records)
        if records and records[-1].status != "interrupted":
            self._bar.update()
            self._count += 1
            if not self._quiet:
                say(line(records[-1]) + ("" if self._terminal else f"  ({self._count} of {self._total})"))
        self._describe("")

    def _records(self, cell_id: str) -> list[Record]:
        if sys.exc_info()[1] is None:
            return patiently(lambda: self._store.of_cell(cell_id), self._store.records_dir)
        with contextlib.suppress(OSError):  # it ends: nothing is waited for
            return self._store.of_cell(cell_id)
        return []

    def _describe(self, postfix: str) -> None:
        titles = list(self._running.values())
        if not titles:  # for a moment, or at the end
            return
        self._bar.set_description_str(titles[0] if len(titles) == 1 else f"{len(titles)} cells", refresh=False)
        self._bar.set_postfix_str(postfix)
