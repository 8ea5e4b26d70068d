"""What is measured again, and `rerun=all` that was interrupted: what it has measured afresh is not measured again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from bench.records.disk import write_atomically
from bench.records.files import read_file
from bench.records.index import Entry
from bench.records.record import Attempt, Record


def stands(record: Record | Entry | None, rerun: str) -> bool:
    """Whether a cell whose standing record is this one needs no other, by what `rerun` asks for beside `all`."""
    return record is not None and record.terminal and not (rerun == "disturbed" and record.disturbed)


class Rerun:
    """A file that names, until all cells are measured afresh, the records that there were before: clocks may be set.

    Args:
        file: its path.
        records: those that there are now.

    Attributes:
        before: the ids of the records that do not count.
    """

    def __init__(self, file: Path, records: Iterable[Attempt]) -> None:
        self._file = file
        self.before = {record.record_id for record in records}
        with contextlib.suppress(ValueError):
            self.before &= set(read_file(file).decode().splitlines())

    def begin(self) -> None:
        """Remember them."""
        write_atomically(self._file, "\n".join(sorted(self.before)).encode())

    def end(self) -> None:
        """Forget them: the next command begins afresh."""
        self._file.parent.stat()  # a folder that is away may come back with the file
        self._file.unlink(missing_ok=True)
