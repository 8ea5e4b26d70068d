"""The results folder: an atomic file per record, another for long samples. They are the truth, all else derives."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.errors import bounded, one_line
from bench.records.files import decode, encode, read_file
from bench.records.record import Record, RecordError


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader (or a crash) sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # half a file on a full disk is room for nothing else
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


class Store:
    """The records under `results_dir/records`, long lists of samples under `results_dir/samples`."""

    def __init__(self, results_dir: str | Path) -> None:
        self.root = Path(results_dir)
        self.records_dir, self.samples_dir = self.root / "records", self.root / "samples"

    def write(self, record: Record) -> Path:
        """Save one record under a name of its own."""
        path = self.records_dir / record.file_name
        data, samples = encode(record)
        if samples is not None:
            # Before the record: whoever is killed in between leaves no record without its samples.
            write_atomically(self.samples_dir / path.name, samples)
        write_atomically(path, data)
        return path

    def load(self) -> list[Record]:
        """All readable records, oldest first; a file that is no record is named on stderr and left out.

        Raises:
            OSError: a folder of the store is something else, or cannot be read.
        """
        return self._read("")

    def find(self, cell_id: str) -> Record | None:
        """The record that stands for a cell, if there is one."""
        return latest(self.of_cell(cell_id)).get(cell_id)

    def of_cell(self, cell_id: str) -> list[Record]:
        """All attempts at a cell, oldest first; raises as `load` does."""
        return [record for record in self._read(f"{cell_id[:16]}-") if record.cell_id == cell_id]

    def readable(self, prefix: str = "") -> Iterator[tuple[Path, Record]]:
        """The records of files whose name begins with `prefix`, in the order of their names; else as `load`."""
        for name in self._names(prefix):
            path = self.records_dir / name
            try:
                yield path, decode(name, read_file(path), functools.partial(read_file, self.samples_dir / name))
            except RecordError as error:
                print(f"{bounded(str(path))}: skipped, {one_line(error)}", file=sys.stderr)

    def _read(self, prefix: str) -> list[Record]:
        records = [record for _, record in self.readable(prefix)]
        return sorted(records, key=lambda record: (record.ended, record.record_id))

    def _names(self, prefix: str) -> list[str]:
        for folder in (self.records_dir, self.samples_dir):
            if os.path.lexists(folder) and not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        if not self.records_dir.is_dir():
            return []
        names = os.listdir(self.records_dir)
        return sorted(name for name in names if name.startswith(prefix) and name.endswith(".json"))


def latest(records: Iterable[Record]) -> dict[str, Record]:
    """The record that stands for each cell: its newest terminal one, else its newest."""
    standing: dict[str, Record] = {}
    for record in records:
        current = standing.get(record.cell_id)
        if current is None or record.terminal or not current.terminal:
            standing[record.cell_id] = record
    return standing
