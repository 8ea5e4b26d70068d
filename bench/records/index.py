"""What is decided about many records at once, as `index.json` keeps it, so that not all of them are read each time.

It is derived: an entry counts only while its record's file, and that of its samples, are those that it was made from.
Without it, or with anything else in its place, records are read, and it is written again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.records.disk import write_atomically
from bench.records.files import read_file
from bench.records.own import RESULTS, is_marked
from bench.records.record import Attempt, Record, RecordError
from bench.records.store import Store, age

FILE = "index.json"
SCHEMA = 2
# It is written when it lacks, or has too many, so many entries: that takes as long as reading fifty records.
WORTH_WRITING = 50

Stamp = list[int]
"""Size and time of change of a record's file, and of its samples' where it has some."""


@dataclass(frozen=True)
class Entry(Attempt):
    """Of a record: the fields of these names."""

    record_id: str
    cell_id: str
    attempt: int
    status: str
    started: str
    ended: str
    duration_s: float
    disturbed: list[str]


FIELDS = tuple(field.name for field in dataclasses.fields(Entry))
TYPES = (str, str, int, str, str, str, float | int, list)


def entries(store: Store) -> list[Entry]:
    """Of all readable records, oldest first; a file that is no record is named on stderr and left out.

    Raises:
        OSError: a folder of the store is something else, or cannot be read.
    """
    kept, stamps = _load(store.root / FILE), _stamps(store)
    known = {name: kept[name] for name, stamp in stamps.items() if name in kept and kept[name][0] == stamp}
    missing = [name for name in stamps if name not in known]
    for path, record in store.readable(missing):
        known[path.name] = stamps[path.name], _entry(record)
    changed = len(missing) + len(kept.keys() - known.keys())
    if changed >= WORTH_WRITING and is_marked(store.root, RESULTS):
        with contextlib.suppress(OSError):  # whoever comes next reads the records, as this one did
            _write(store.root / FILE, known)
    return sorted((entry for _, entry in known.values()), key=age)


def of_cells(store: Store, cell_ids: Iterable[str]) -> list[Entry]:
    """Of these cells' records; else as `entries`."""
    wanted = set(cell_ids)
    return [entry for entry in entries(store) if entry.cell_id in wanted]


def read(store: Store, wanted: Iterable[Entry]) -> list[Record]:
    """The records of entries, in this order.

    Raises:
        OSError: one cannot be read, though its files look as they did when it could.
    """
    records = []
    for entry in wanted:
        found = next(store.readable([entry.file_name]), None)
        if found is None:
            (store.root / FILE).unlink(missing_ok=True)
            path = store.records_dir / entry.file_name
            raise OSError(errno.EBADMSG, "has been damaged; the same command measures the cell again", str(path))
        records.append(found[1])
    return records


def _entry(record: Record) -> Entry:
    return Entry(*(getattr(record, name) for name in FIELDS))


def _stamps(store: Store) -> dict[str, Stamp]:
    """Of every record's file. Taken before any is read: one that changes meanwhile has another the next time."""
    names = store.names()
    records = _changes(store.records_dir)
    samples = {name.removesuffix(".gz"): stamp for name, stamp in _changes(store.samples_dir).items()}
    return {name: [*records[name], *samples.get(name, ())] for name in names if name in records}


def _changes(folder: Path) -> dict[str, Stamp]:
    changes = {}
    if folder.is_dir():
        with os.scandir(folder) as files:
            for file in files:
                with contextlib.suppress(FileNotFoundError):
                    # What a link says that leads nowhere is to be read, and named.
                    dangling = file.is_symlink() and not os.path.exists(file)
                    status = file.stat(follow_symlinks=not dangling)
                    changes[file.name] = [status.st_size, status.st_mtime_ns]
    return changes


def _load(file: Path) -> dict[str, tuple[Stamp, Entry]]:
    """The entries by their record's file; none where the file holds anything else."""
    try:
        written = json.loads(read_file(file))
        if written["schema"] != SCHEMA:
            return {}
        return {name: (stamp, _checked(fields)) for name, stamp, *fields in written["records"]}
    except (RecordError, ValueError, TypeError, KeyError, RecursionError):
        return {}


def _checked(fields: list[object]) -> Entry:
    if not all(map(isinstance, fields, TYPES)):
        raise TypeError("an entry of something else")
    return Entry(*fields)  # type: ignore[arg-type]


def _write(file: Path, known: Mapping[str, tuple[Stamp, Entry]]) -> None:
    rows = [[name, stamp, *(getattr(entry, field) for field in FIELDS)] for name, (stamp, entry) in known.items()]
    write_atomically(file, json.dumps({"schema": SCHEMA, "records": rows}, separators=(",", ":")).encode())
