"""The progress of a sweep: a bar on a terminal, and a line for each cell that has ended. A log file gets lines only."""

import contextlib
import sys
import time
from collections.abc import Callable, Sequence

from tqdm import tqdm

from bench.common.errors import say
from bench.measures.progress import Progress
from bench.plan.cell import Cell
from bench.records.record import Record
from bench.records.store import Store
from bench.records.table import line, settings_apart

# Between the lines in a log file that report a cell's progress.
LOG_INTERVAL_S = 60.0


class ProgressBar:
    """Shows what an executor reports, always from the sweep's own thread, and passes it on.

    Args:
        store: the records.
        cells: what is to be measured.
        on_records: called with all records of a cell each time the cell has ended, for any reason.
        on_progress: called now and then with a cell's progress.
        quiet: print nothing.
    """

    def __init__(
        self,
        store: Store,
        cells: Sequence[Cell],
        on_records: Callable[[Sequence[Record]], None] | None = None,
        on_progress: Callable[[Cell, Progress], None] = lambda cell, progress: None,
        quiet: bool = False,
    ) -> None:
        self._store, self._quiet = store, quiet
        self._on_records, self._pass_on_progress = on_records, on_progress
        self._running: dict[str, str] = {}
        aparts = settings_apart([cell.config for cell in cells])
        self._aparts = {cell.cell_id: apart for cell, apart in zip(cells, aparts, strict=True)}
        self._ended, self._last_line = 0, time.monotonic()
        self._terminal = sys.stderr.isatty()
        hidden = quiet or not (cells and self._terminal)
        self._bar = tqdm(total=len(cells), unit="cell", disable=hidden, mininterval=0.5, maxinterval=0.5)

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()

    def on_cell_start(self, cell: Cell) -> None:
        """A cell's measurement begins."""
        self._running[cell.cell_id] = self._title(cell)
        self._describe()

    def on_progress(self, cell: Cell, progress: Progress) -> None:
        """A cell reports its progress."""
        if len(self._running) == 1:
            self._bar.set_postfix_str(progress.text)
        if not (self._terminal or self._quiet) and time.monotonic() > self._last_line + LOG_INTERVAL_S:
            self._last_line = time.monotonic()
            say(f"{self._title(cell)}: {progress.text}")
        self._pass_on_progress(cell, progress)

    def on_cell_end(self, cell: Cell) -> None:
        """The cell has a new record, or was interrupted before it had one."""
        self._running.pop(cell.cell_id, None)
        records: list[Record] = []
        # If the sweep ends with an error, a read error must not hide it.
        with contextlib.suppress(OSError) if sys.exc_info()[1] else contextlib.nullcontext():
            records = self._store.of_cell(cell.cell_id)
        if self._on_records:
            self._on_records(records)
        if records and records[-1].status != "interrupted":
            self._bar.update()
            self._ended += 1
            if not self._quiet:
                done = "" if self._terminal else f"  ({self._ended} of {len(self._aparts)})"
                say(line(records[-1], self._aparts[cell.cell_id]) + done)
        self._describe()

    def _title(self, cell: Cell) -> str:
        return " ".join(filter(None, (cell.title, self._aparts[cell.cell_id])))

    def _describe(self) -> None:
        titles = list(self._running.values())
        if titles:  # no change in the short time between two cells
            self._bar.set_description_str(titles[0] if len(titles) == 1 else f"{len(titles)} cells", refresh=False)
            self._bar.set_postfix_str("")
