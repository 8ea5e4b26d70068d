"""The results folder: an atomic file per record, another for long samples. They are the truth, all else derives."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench.common.errors import bounded, one_line, say
from bench.records.disk import files, lock, unfinished, write_atomically
from bench.records.files import decode, encode, read_file
from bench.records.own import RECORD
from bench.records.record import Attempt, Record, RecordError

AnyAttempt = TypeVar("AnyAttempt", bound=Attempt)


class Store:
    """The records under `results_dir/records`, long lists of samples under `results_dir/samples`.

    Args:
        results_dir: their folder.
        prepared: whether its folders have been made: if they are not there, they are away, neither new nor empty.
    """

    def __init__(self, results_dir: str | Path, *, prepared: bool = False) -> None:
        self.root, self._prepared = Path(results_dir), prepared
        self.records_dir, self.samples_dir = self.root / "records", self.root / "samples"

    def write(self, record: Record) -> Path:
        """Save one record under a name of its own."""
        path = self.records_dir / record.file_name
        data, samples = encode(record)
        with self.writing():
            self.keep(path.name, data, samples)
        return path

    def keep(self, name: str, data: bytes, samples: bytes | None) -> None:
        """Save the files of a record under its name, while `writing`."""
        if samples is not None:
            # Before the record: whoever is killed in between leaves no record without its samples.
            write_atomically(self.samples_dir / name, samples)
        write_atomically(self.records_dir / name, data)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Keeps `clear_leftovers` away while the two files of a record are written."""
        if not self._prepared:
            self.records_dir.mkdir(parents=True, exist_ok=True)
        with self._locked(exclusively=False):
            yield

    def clear_leftovers(self) -> None:
        """Remove what writers that were killed left, unless somebody is writing: unfinished files, unread samples."""
        with contextlib.suppress(OSError), self._locked(exclusively=True):
            begun = [path for folder in (self.records_dir, self.samples_dir) for path in unfinished(folder, RECORD)]
            known = set(os.listdir(self.records_dir))
            for path in (*begun, *(path for path in files(self.samples_dir, RECORD) if path.name not in known)):
                path.unlink()

    @contextlib.contextmanager
    def _locked(self, *, exclusively: bool) -> Iterator[None]:
        folder = os.open(self.records_dir, os.O_RDONLY)
        try:
            # A file system without locks keeps nobody from unpacking records there, only sweeps, which clear up.
            with contextlib.nullcontext() if exclusively else contextlib.suppress(OSError):
                lock(folder, exclusively=exclusively)
            yield
        finally:
            os.close(folder)

    def load(self) -> list[Record]:
        """All readable records, those of a cell oldest first; a file that is no record is named on stderr and left out.

        Raises:
            OSError: a folder of the store is something else, or cannot be read, or is away.
        """
        return self.read(self.names())

    def find(self, cell_id: str) -> Record | None:
        """The record that stands for a cell, if there is one."""
        return latest(self.of_cell(cell_id)).get(cell_id)

    def of_cell(self, cell_id: str) -> list[Record]:
        """All attempts at a cell, oldest first; raises as `load` does."""
        names = self.names(f"{cell_id[:16]}-")
        return [record for record in self.read(names) if record.cell_id == cell_id]

    def read(self, names: Iterable[str]) -> list[Record]:
        """The records of these files, as `load` gives them."""
        return sorted((record for _, record in self.readable(names)), key=age)

    def readable(self, names: Iterable[str]) -> Iterator[tuple[Path, Record]]:
        """The records of these files, in this order; else as `load`."""
        for name in names:
            path = self.records_dir / name
            try:
                yield path, self.decode(name)
            except RecordError as error:
                say(f"{bounded(str(path))}: skipped, {one_line(error)}")
        if self._prepared:
            os.stat(self.records_dir)  # else it went away meanwhile, and some could not be read

    def decode(self, name: str) -> Record:
        """The record of a file; raises `RecordError` where it is none."""
        return decode(name, read_file(self.records_dir / name), partial(read_file, self.samples_dir / name))

    def names(self, prefix: str = "") -> list[str]:
        """The names of the records' files that begin so, in order; raises as `load` does."""
        for folder in (self.records_dir, self.samples_dir):
            if os.path.lexists(folder) and not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        if not self._prepared and not self.records_dir.is_dir():
            return []
        names = os.listdir(self.records_dir)
        return sorted(name for name in names if name.startswith(prefix) and name.endswith(".json"))


def age(attempt: Attempt) -> tuple[int, str, str]:
    """A clock may be set back, and a later attempt end before an earlier one; equal ones are from several machines."""
    return attempt.attempt, attempt.ended, attempt.record_id


def latest(records: Iterable[AnyAttempt]) -> dict[str, AnyAttempt]:
    """The record that stands for each cell: its newest terminal one, else its newest.

    Disturbed or not: `rerun=disturbed` measures nothing that is quiet, and who asks for `rerun=all` gets what is new.
    """
    standing: dict[str, AnyAttempt] = {}
    for record in records:
        current = standing.get(record.cell_id)
        if current is None or record.terminal or not current.terminal:
            standing[record.cell_id] = record
    return standing
