"""The records in a results folder. They are the truth: the MLflow runs, figures and tables are made from them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

from bench.common.errors import bounded, one_line, say
from bench.records.disk import files, lock, unfinished, write_atomically
from bench.records.files import compress, decode, decompress, encode, read_file
from bench.records.own import RECORD
from bench.records.record import Record, RecordError

# Version 0.1 did not compress them.
SAMPLES = re.compile(rf"{RECORD.pattern}(\.gz)?")


class Source(Protocol):
    """What records are copied from."""

    def read_record(self, name: str) -> bytes:
        """The contents of a record's file."""

    def read_samples(self, name: str) -> bytes:
        """The contents of the file of its samples."""


class Store:
    """The records under `results_dir/records`, long lists of samples under `results_dir/samples`.

    A file that is no record is named on stderr and left out.

    Args:
        results_dir: their folder.
        prepared: whether its folders have been made. If they are missing then, the disk may have been unmounted: they
            are not made anew, and reading and writing raise OSError.
    """

    def __init__(self, results_dir: str | Path, *, prepared: bool = False) -> None:
        self.root, self._prepared = Path(results_dir), prepared
        self.records_dir, self.samples_dir = self.root / "records", self.root / "samples"

    def write(self, record: Record) -> Path:
        """Save one record under a name of its own."""
        return self._write(record.file_name, *encode(record))

    def copy(self, source: Source, name: str) -> None:
        """Save a good record of another folder or of an archive as it is."""
        data = source.read_record(name)
        self._write(name, data, source.read_samples(name) if b'"samples_sha256"' in data else None)

    def _write(self, name: str, data: bytes, samples: bytes | None) -> Path:
        if not self._prepared:
            self.records_dir.mkdir(parents=True, exist_ok=True)
        # Keeps `clear_leftovers` away between the two.
        with self._locked(exclusively=False):
            if samples is not None:
                # First, so that a kill between the two leaves no record without its samples.
                write_atomically(self.samples_dir / f"{name}.gz", compress(samples))
            write_atomically(self.records_dir / name, data)
        return self.records_dir / name

    def clear_leftovers(self) -> None:
        """Remove what killed writers left, unfinished files and samples without a record, if nobody writes now."""
        with contextlib.suppress(OSError), self._locked(exclusively=True):
            leftovers = [*unfinished(self.records_dir, RECORD), *unfinished(self.samples_dir, SAMPLES)]
            known = set(os.listdir(self.records_dir))
            samples = files(self.samples_dir, SAMPLES)
            for path in (*leftovers, *(path for path in samples if path.name.removesuffix(".gz") not in known)):
                path.unlink()

    @contextlib.contextmanager
    def _locked(self, *, exclusively: bool) -> Iterator[None]:
        folder = os.open(self.records_dir, os.O_RDONLY)
        try:
            # Without locks records can be written all the same, as when they are unpacked; sweeps refuse such a folder.
            with contextlib.nullcontext() if exclusively else contextlib.suppress(OSError):
                lock(folder, exclusively=exclusively)
            yield
        finally:
            os.close(folder)

    def load(self) -> list[Record]:
        """All records, those of a cell oldest first.

        Raises:
            OSError: a folder of the store is something else, or cannot be read.
        """
        return self.read(self.names())

    def of_cell(self, cell_id: str) -> list[Record]:
        """All attempts at a cell, oldest first; raises as `load` does."""
        return self.of_cells([cell_id])

    def of_cells(self, cell_ids: Iterable[str]) -> list[Record]:
        """All attempts at these cells; other records are not read. Else as `load`."""
        wanted = set(cell_ids)
        prefixes = {cell_id[:16] for cell_id in wanted}
        names = [name for name in self.names() if name.partition("-")[0] in prefixes]
        return [record for record in self.read(names) if record.cell_id in wanted]

    def read(self, names: Iterable[str]) -> list[Record]:
        """The records in these files, as `load` gives them."""
        return sorted((record for _, record in self.readable(names)), key=age)

    def readable(self, names: Iterable[str]) -> Iterator[tuple[Path, Record]]:
        """The records in these files, in this order; else as `load`."""
        for name in names:
            path = self.records_dir / name
            try:
                yield path, self.decode(name)
            except RecordError as error:
                say(f"{bounded(str(path))}: skipped, {one_line(error)}")

    def decode(self, name: str) -> Record:
        """The record in a file; raises `RecordError` where it is none."""
        return decode(name, self.read_record(name), partial(self.read_samples, name))

    def read_record(self, name: str) -> bytes:
        """The contents of a record's file; raises `RecordError` where it cannot be read."""
        return read_file(self.records_dir / name)

    def samples_file(self, name: str) -> Path:
        """Where the samples of the record in a file are, if it has some."""
        compressed = self.samples_dir / f"{name}.gz"
        return compressed if os.path.lexists(compressed) else self.samples_dir / name

    def read_samples(self, name: str) -> bytes:
        """The samples of the record in a file, as `encode` gave them; raises `RecordError` where they are missing."""
        path = self.samples_file(name)
        data = read_file(path)
        return decompress(data) if path.suffix == ".gz" else data

    def names(self) -> list[str]:
        """The names of the records' files, in order; raises as `load` does."""
        for folder in (self.records_dir, self.samples_dir):
            if os.path.lexists(folder) and not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        if not self._prepared and not self.records_dir.is_dir():
            return []
        return sorted(name for name in os.listdir(self.records_dir) if name.endswith(".json"))


def age(record: Record) -> tuple[int, str, str]:
    """What records of a cell are sorted by. Those with the same number of an attempt are from several machines."""
    return record.attempt, record.ended, record.record_id


def latest(records: Iterable[Record]) -> dict[str, Record]:
    """The record that stands for each cell: its newest terminal one, else its newest; `records` are oldest first.

    A disturbed one stands too: `rerun=disturbed` measures no quiet cell again, and `rerun=all` asks for the newest.
    """
    standing: dict[str, Record] = {}
    for record in records:
        current = standing.get(record.cell_id)
        if current is None or record.terminal or not current.terminal:
            standing[record.cell_id] = record
    return standing
