"""A record as JSON: a file that reads on a screen, and beside it one for samples that are too many to read."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import math
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from bench.common.errors import bounded
from bench.records.record import Record, RecordError

# A list of more numbers than this goes into the second file.
READABLE = 64
WIDTH = 120
# The largest file that is read, in bytes, unpacked.
LARGEST = 2**26
# The square of a larger number is none.
LARGEST_NUMBER = 1e150
# Beside the measurements of the second file; no benchmark calls one of its own so.
_SUMMARY = "summary."


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """The record's file and, where it measured long lists, the file of these; strict JSON (no NaN, no Infinity)."""
    (short, long), (summary, raw) = _part(record.measurements), _part(record.summary)
    fields = dataclasses.asdict(record) | {"measurements": short, "summary": summary}
    long |= {_SUMMARY: raw} if raw else {}
    if not long:
        return _to_json(fields), None
    samples = _to_json(long)
    return _to_json(fields | {"samples_sha256": hashlib.sha256(samples).hexdigest()}), samples


def decode(name: str, data: bytes, read_samples: Callable[[], bytes]) -> Record:
    """The record in a file, its texts as `bench.common.errors.bounded` makes them.

    Args:
        name: of the file.
        data: its contents.
        read_samples: gives the contents of its second file, where it has one.

    Raises:
        RecordError: one of the two is not what `encode` writes, or is missing, or the file has another record's name.
    """
    try:
        fields = _from_json(data)
        digest = fields.pop("samples_sha256", None)
        # People read what a child printed in an editor: it stays as it is.
        printed = {key: fields.pop(key) for key in ("stderr_tail",) if key in fields}
        record = Record.from_fields({**_printable(fields), **printed})
        if name != record.file_name:
            raise RecordError(f"a record that belongs into {record.file_name}")
        if digest is None:
            return record
        samples = _samples(digest, read_samples)
        summary = _joined(record.summary, samples.pop(_SUMMARY, {}))
        return dataclasses.replace(record, measurements=_joined(record.measurements, samples), summary=summary)
    except RecursionError:
        raise RecordError("not strict JSON: nested too deeply") from None


def _samples(digest: str, read_samples: Callable[[], bytes]) -> dict[str, Any]:
    try:
        samples = read_samples()
    except RecordError as error:
        raise RecordError(f"its samples: {error}") from None
    if hashlib.sha256(samples).hexdigest() != digest:
        raise RecordError("its samples are not those that it was written with")
    long: dict[str, Any] = _printable(_from_json(samples))
    return long


def read_file(path: Path) -> bytes:
    """The contents of a regular file; nothing else is opened, for it may have no end.

    Raises:
        RecordError: it cannot be read, is larger than `LARGEST`, or is no file.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise RecordError("not a regular file")
        if status.st_size > LARGEST:
            raise RecordError(f"larger than {LARGEST >> 20} MiB")
        with open(path, "rb") as file:
            return file.read(status.st_size)  # a file of the kernel's may have no end
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}") from None


def compress(data: bytes) -> bytes:
    """The same bytes give the same compressed bytes: there is no time in them."""
    return gzip.compress(data, compresslevel=6, mtime=0)


def decompress(data: bytes) -> bytes:
    """Undo `compress`; raises `RecordError` where that cannot be, or gives more than `LARGEST`."""
    try:
        unpacked = zlib.decompressobj(wbits=31)
        content = unpacked.decompress(data, LARGEST)
    except zlib.error as error:
        raise RecordError(f"not compressed: {error}") from None
    if not unpacked.eof:
        raise RecordError(f"torn, or larger than {LARGEST >> 20} MiB")
    return content


def _part(measured: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measurements with a remark in place of every long list, and the long lists at the same places."""
    short: dict[str, Any] = {}
    long: dict[str, Any] = {}
    for key, value in measured.items():
        short[key] = value
        if isinstance(value, dict):
            short[key], below = _part(value)
            if below:
                long[key] = below
        elif isinstance(value, list) and _count(value) > READABLE:
            short[key], long[key] = f"{_count(value)} numbers, in samples/", value
    return short, long


def _joined(short: Any, long: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(short, dict):
        raise RecordError("its samples are of other measurements")
    return short | {
        key: _joined(short.get(key), value) if isinstance(value, dict) else value for key, value in long.items()
    }


def _count(value: Any) -> int:
    return sum(map(_count, value)) if isinstance(value, list) else 1


def _to_json(node: Any) -> bytes:
    return (_written("", node, "") + "\n").encode()


def _written(start: str, node: Any, margin: str) -> str:
    """JSON after the `start` of a line: lists, and objects that fit, on that line."""
    line = start + json.dumps(node, allow_nan=False)
    if not isinstance(node, dict) or len(line) < WIDTH:
        return line
    inner = margin + " "
    entries = [_written(f"{inner}{json.dumps(key)}: ", value, inner) for key, value in node.items()]
    return start + "{\n" + ",\n".join(entries) + f"\n{margin}}}"


def _from_json(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data.decode(), parse_constant=_refuse, parse_float=_finite)
    except ValueError as error:
        raise RecordError(f"not strict JSON: {bounded(str(error))}") from None
    if not isinstance(fields, dict):
        raise RecordError("not a JSON object")
    return fields


def _printable(node: Any) -> Any:
    """The same with its texts bounded and printable."""
    if isinstance(node, str):
        return bounded(node)
    if isinstance(node, list):
        return [_printable(entry) for entry in node]
    if isinstance(node, dict):
        return {bounded(key): _printable(value) for key, value in node.items()}
    return node


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.fabs(number) <= LARGEST_NUMBER:
        raise ValueError(f"{text} is too large a number")
    return number
