"""The results folder: one atomic file per record. Records are the truth; everything else is made from them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from bench.records.record import Record, RecordError


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader (or a crash) sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


class Store:
    """The records under `results_dir/records`."""

    def __init__(self, results_dir: str | Path) -> None:
        self.root = Path(results_dir)
        self.records_dir = self.root / "records"

    def write(self, record: Record) -> Path:
        """Save one record under a name of its own."""
        path = self.records_dir / f"{record.cell_id[:16]}-{record.record_id[:16]}.json"
        write_atomically(path, record.to_json().encode())
        return path

    def load(self) -> list[Record]:
        """All readable records, oldest first; a file that is no record is named on stderr and left out."""
        return self._read("*.json")

    def find(self, cell_id: str) -> Record | None:
        """The record that stands for a cell, if there is one."""
        return latest(self.of_cell(cell_id)).get(cell_id)

    def of_cell(self, cell_id: str) -> list[Record]:
        """All attempts at a cell, oldest first."""
        return [record for record in self._read(f"{cell_id[:16]}-*.json") if record.cell_id == cell_id]

    def _read(self, pattern: str) -> list[Record]:
        records = []
        for path in sorted(self.records_dir.glob(pattern)):
            try:
                records.append(Record.from_json(path.read_text()))
            except (RecordError, OSError, UnicodeDecodeError) as error:
                print(f"{path}: skipped, {error}", file=sys.stderr)
        return sorted(records, key=lambda record: (record.ended, record.record_id))


def latest(records: Iterable[Record]) -> dict[str, Record]:
    """The record that stands for each cell: its newest terminal one, else its newest."""
    standing: dict[str, Record] = {}
    for record in records:
        current = standing.get(record.cell_id)
        if current is None or record.terminal or not current.terminal:
            standing[record.cell_id] = record
    return standing
