"""What is measured again, and `rerun=all` that was interrupted: what it has measured afresh is not measured again."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path

from bench.records.record import Record
from bench.records.store import write_atomically


def stands(record: Record | None, rerun: str) -> bool:
    """Whether a cell whose standing record is this one needs no other, by what `rerun` asks for beside `all`."""
    return record is not None and record.terminal and not (rerun == "disturbed" and record.disturbed)


class Rerun:
    """A file that says, until all cells are measured afresh, when that began.

    Attributes:
        began: UTC, ISO 8601; records that started earlier do not count.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.began = datetime.now(UTC).isoformat()
        with contextlib.suppress(OSError, ValueError):
            self.began = datetime.fromisoformat(file.read_text()).astimezone(UTC).isoformat()

    def begin(self) -> None:
        """Remember the beginning."""
        write_atomically(self._file, self.began.encode())

    def end(self) -> None:
        """Forget it: the next command begins afresh."""
        self._file.unlink(missing_ok=True)
