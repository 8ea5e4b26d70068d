"""The records in a results folder. They are the original data: MLflow runs, figures and tables are made from them.

A record is a readable JSON file, with a second file for long lists of samples and the metrics made from them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import lzma
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.common.errors import bounded, one_line, say
from bench.records.disk import decompress, files, lock, read_file, unfinished, write_atomically
from bench.records.own import RECORD
from bench.records.record import Record, RecordError

# How samples are compressed: xz needs a quarter less than gzip; version 0.1 did not compress.
SUFFIXES = (".xz", ".gz", "")
SAMPLES = re.compile(rf"({RECORD.pattern})(\.xz|\.gz)?")
# Lists with more numbers than this go to the second file; the first file's lines are shorter than the width.
READABLE, WIDTH = 8, 120
# A summary writes what JSON has no number for as text.
NOT_FINITE = ("nan", "inf", "-inf")
# Squares of larger numbers may overflow.
LARGEST_NUMBER = 1e150
# A key in the second file, beside the measurements; no benchmark uses it.
_SUMMARY = "summary."
_IN_SAMPLES = "in samples/"
_FOR_PROGRAMS = ("metrics", "raw")


class Store:
    """The records under `results_dir/records`, with long lists of samples under `results_dir/samples`.

    Files that are not records are named on stderr and left out. Reading raises OSError if the store's folders are
    something else or cannot be read.

    Args:
        results_dir: the results folder.
        prepared: whether its folders exist already. If they are missing then, the disk may have been unmounted: they
            are not created again, and reading and writing raise OSError.
    """

    def __init__(self, results_dir: str | Path, *, prepared: bool = False) -> None:
        self.root, self._prepared = Path(results_dir), prepared
        self.records_dir, self.samples_dir = self.root / "records", self.root / "samples"

    def write(self, record: Record) -> Path:
        """Write a record to its own file."""
        return self._write(record.file_name, *encode(record))

    def copy(self, source: Store, name: str) -> None:
        """Copy a valid record of another folder or an archive unchanged."""
        data = source.read_record(name)
        self._write(name, data, source.read_samples(name) if b'"samples_sha256"' in data else None)

    def _write(self, name: str, data: bytes, samples: bytes | None) -> Path:
        if not self._prepared:
            self.records_dir.mkdir(parents=True, exist_ok=True)
        # Keeps `clear_leftovers` from running between the two writes.
        with self._locked(exclusively=False):
            if samples is not None:
                # Samples first, so that a kill between the two leaves no record without its samples.
                write_atomically(self.samples_dir / f"{name}.xz", lzma.compress(samples))
            write_atomically(self.records_dir / name, data)
        return self.records_dir / name

    def clear_leftovers(self) -> None:
        """Remove unfinished files and samples without a record that killed processes left, unless somebody writes."""
        with contextlib.suppress(OSError), self._locked(exclusively=True):
            leftovers = [*unfinished(self.records_dir, RECORD), *unfinished(self.samples_dir, SAMPLES)]
            known, samples = set(os.listdir(self.records_dir)), files(self.samples_dir, SAMPLES)
            leftovers += [path for path in samples if path.name.removesuffix(".xz").removesuffix(".gz") not in known]
            for path in leftovers:
                path.unlink()

    @contextlib.contextmanager
    def _locked(self, *, exclusively: bool) -> Iterator[None]:
        folder = os.open(self.records_dir, os.O_RDONLY)
        try:
            # Unpacking may write to a file system without locks; sweeps refuse such a folder.
            with contextlib.nullcontext() if exclusively else contextlib.suppress(OSError):
                lock(folder, exclusively=exclusively)
            yield
        finally:
            os.close(folder)

    def load(self) -> list[Record]:
        """All records; those of one cell are sorted oldest first."""
        return self.read(self.names())

    def of_cell(self, cell_id: str) -> list[Record]:
        """All attempts at a cell, oldest first."""
        return self.of_cells([cell_id])

    def of_cells(self, cell_ids: Iterable[str]) -> list[Record]:
        """All attempts at these cells, sorted as by `load`; other records are not read."""
        wanted = set(cell_ids)
        prefixes = {cell_id[:16] for cell_id in wanted}
        names = [name for name in self.names() if name.partition("-")[0] in prefixes]
        return [record for record in self.read(names) if record.cell_id in wanted]

    def read(self, names: Iterable[str]) -> list[Record]:
        """The records in these files, sorted as by `load`."""
        # Each machine counts its own attempts, so the numbers do not order records of merged folders. If a clock is set
        # back between two attempts, the older one may count.
        records = (record for _, record in self.readable(names))
        return sorted(records, key=lambda record: (record.ended, record.attempt, record.record_id))

    def readable(self, names: Iterable[str]) -> Iterator[tuple[Path, Record]]:
        """The records in these files, in this order, with their paths; skips files that are not records."""
        for name in names:
            path = self.records_dir / name
            try:
                yield path, self.decode(name)
            except RecordError as error:
                say(f"{bounded(str(path))}: skipped, {one_line(error)}")

    def decode(self, name: str) -> Record:
        """The record in a file; raises `RecordError` if it is not one."""
        return decode(name, self.read_record(name), partial(self.read_samples, name))

    def read_record(self, name: str) -> bytes:
        """The contents of a record's file; raises `RecordError` if it cannot be read."""
        return read_file(self.records_dir / name)

    def samples_file(self, name: str) -> Path:
        """The path of a record's samples, which may not exist."""
        files = [self.samples_dir / f"{name}{suffix}" for suffix in SUFFIXES]
        return next((file for file in files if os.path.lexists(file)), files[-1])

    def read_samples(self, name: str) -> bytes:
        """A record's samples, as `encode` returned them; raises `RecordError` if they are missing."""
        path = self.samples_file(name)
        data = read_file(path)
        return decompress(data) if path.suffix != ".json" else data

    def names(self) -> list[str]:
        """The names of the records' files, sorted."""
        for folder in (self.records_dir, self.samples_dir):
            if os.path.lexists(folder) and not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        if not self._prepared and not self.records_dir.is_dir():
            return []
        return sorted(name for name in os.listdir(self.records_dir) if name.endswith(".json"))


def latest(records: Iterable[Record]) -> dict[str, Record]:
    """The record that counts for each cell: its newest terminal one, else its newest; `records` are oldest first.

    Disturbed records count. Only `rerun` with `all` or a status measures a quiet cell again, and then the newest record
    is wanted.
    """
    standing: dict[str, Record] = {}
    for record in records:
        current = standing.get(record.cell_id)
        if current is None or record.terminal or not current.terminal:
            standing[record.cell_id] = record
    return standing


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """The record's file and, for long lists and the metrics made from them, that of samples; strict JSON.

    Without long lists the second is None. Neither has NaN or Infinity.
    """
    (short, long), (summary, raw) = _split(record.measurements), _split(record.summary)
    if long and "metrics" in summary:
        # People read the headline, programs the metrics and the lists that they were made from.
        moved = {key: value for key, value in record.summary.items() if key in _FOR_PROGRAMS}
        summary, raw = summary | dict.fromkeys(moved, _IN_SAMPLES), raw | moved
    fields = {**vars(record), "measurements": short, "summary": summary}
    # A list that is also in the measurements is replaced by its place there.
    places = {json.dumps(values): place for place, values in _lists(long)}
    long |= {_SUMMARY: _mapped(raw, lambda values: places.get(json.dumps(values), values))} if raw else {}
    if not long:
        return _to_json(fields), None
    samples = _to_json(long)
    return _to_json(fields | {"samples_sha256": hashlib.sha256(samples).hexdigest()}), samples


def decode(name: str, data: bytes, read_samples: Callable[[], bytes]) -> Record:
    """The record in a file with this name; texts are shortened by `bench.common.errors.bounded`.

    `read_samples` returns the contents of the second file, if there is one. Raises RecordError if a file is not what
    `encode` writes, is missing, or has another record's name.
    """
    try:
        fields = _from_json(data)
        digest = fields.pop("samples_sha256", None)
        # People read a child's output in an editor: it is not shortened.
        printed = {key: fields.pop(key) for key in ("stderr_tail",) if key in fields}
        record = Record.from_fields({**_printable(fields), **printed})
        if name != record.file_name:
            raise RecordError(f"a record that belongs into {record.file_name}")
        if digest is None:
            return record
        try:
            samples = read_samples()
        except RecordError as error:
            raise RecordError(f"its samples: {error}") from None
        if hashlib.sha256(samples).hexdigest() != digest:
            raise RecordError("its samples are not those that it was written with")
        long = _printable(_from_json(samples))
        summary = _joined(record.summary, _again(long.pop(_SUMMARY, {}), dict(_lists(long))))
        return dataclasses.replace(record, measurements=_joined(record.measurements, long), summary=summary)
    except RecursionError:
        raise RecordError("not strict JSON: nested too deeply") from None


def _split(measured: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measurements with a note in place of each long list, and the long lists at the same places."""
    short: dict[str, Any] = dict(measured)
    long: dict[str, Any] = {}
    for key, value in measured.items():
        if isinstance(value, dict):
            short[key], below = _split(value)
            if below:
                long[key] = below
        elif isinstance(value, list) and (count := _count(value)) > READABLE:
            short[key], long[key] = f"{count} numbers, {_IN_SAMPLES}", value
    return short, long


def _lists(long: dict[str, Any], before: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Each long list with its place, such as `curve/train_loss`."""
    for key, value in long.items():
        yield from _lists(value, f"{before}{key}/") if isinstance(value, dict) else [(before + key, value)]


def _mapped(raw: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A summary's long lists, each changed."""
    return {key: _mapped(value, change) if isinstance(value, dict) else change(value) for key, value in raw.items()}


def _again(raw: dict[str, Any], lists: dict[str, list[Any]]) -> dict[str, Any]:
    """A summary's long lists, also those of which only the place in the measurements was written."""
    try:
        return _mapped(raw, lambda value: lists[value] if isinstance(value, str) else value)
    except KeyError as missing:
        raise RecordError(f"its samples: no {missing}") from None


def _joined(short: Any, long: dict[str, Any]) -> dict[str, Any]:
    if short == _IN_SAMPLES:
        return long
    if not isinstance(short, dict):
        raise RecordError("its samples are of other measurements")
    return short | {
        key: _joined(short.get(key), value) if isinstance(value, dict) else value for key, value in long.items()
    }


def _count(value: Any) -> float:
    """How many numbers a list holds; minus infinity if it holds words, which stay where people read them."""
    if isinstance(value, str):
        return 1 if value in NOT_FINITE else -math.inf
    inside = value if isinstance(value, list) else value.values() if isinstance(value, dict) else None
    return 1 if inside is None else sum(map(_count, inside))


def _to_json(node: Any) -> bytes:
    return (_written("", node, "") + "\n").encode()


def _written(start: str, node: Any, margin: str) -> str:
    """JSON after the `start` of a line; lists, and objects that fit, stay on that line; short entries share lines."""
    line = start + json.dumps(node, allow_nan=False)
    if not isinstance(node, dict) or len(line) < WIDTH:
        return line
    inner = margin + " "
    lines: list[str] = []
    for key, value in node.items():
        entry = _written(f"{inner}{json.dumps(key)}: ", value, inner)
        together = ", ".join([*lines[-1:], entry.lstrip()])
        if lines and "\n" not in together and len(together) < WIDTH:
            lines[-1] = together
        else:
            lines.append(entry)
    return start + "{\n" + ",\n".join(lines) + f"\n{margin}}}"


def _from_json(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data.decode(), parse_constant=_finite, parse_float=_finite)
    except ValueError as error:
        raise RecordError(f"not strict JSON: {bounded(str(error))}") from None
    if not isinstance(fields, dict):
        raise RecordError("not a JSON object")
    return fields


def _finite(text: str) -> float:
    number = float(text)
    if not abs(number) <= LARGEST_NUMBER:
        raise ValueError(f"{text} is not JSON" if text[-1].isalpha() else f"{text} is too large a number")
    return number


def _printable(node: Any) -> Any:
    """The same value with its texts shortened and printable."""
    if isinstance(node, str):
        return bounded(node)
    if isinstance(node, list):
        # Samples have very many numbers.
        return [entry if type(entry) in (float, int) else _printable(entry) for entry in node]
    if isinstance(node, dict):
        return {bounded(key): _printable(value) for key, value in node.items()}
    return node
