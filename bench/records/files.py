"""A record on disk: one file that reads on a screen, and beside it one for samples too many to read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from bench.common.errors import bounded
from bench.records.record import Record, RecordError

# A list of more numbers than this is no reading.
READABLE = 64
WIDTH = 120
# What is read: bytes of a file, lists and objects inside each other, and numbers whose squares are numbers still.
LARGEST = 2**26
DEEPEST = 24
LARGEST_NUMBER = 1e150


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """The record's file and, where it measured long lists, the file of these; strict JSON (no NaN, no Infinity)."""
    short, long = _part(record.measurements)
    fields = dataclasses.asdict(record) | {"measurements": short}
    if not long:
        return _to_json(fields), None
    samples = _to_json(long)
    return _to_json(fields | {"samples_sha256": hashlib.sha256(samples).hexdigest()}), samples


def decode(name: str, data: bytes, read_samples: Callable[[], bytes]) -> Record:
    """The record of a file, its texts as `bench.common.errors.bounded` makes them.

    Args:
        name: of the file.
        data: its contents.
        read_samples: gives the contents of its second file, where it has one.

    Raises:
        RecordError: one of the two is not what `encode` writes, or is not there, or it has the name of another.
    """
    fields = _from_json(data)
    digest = fields.pop("samples_sha256", None)
    # The lines that a child printed are for people with an editor, who want them as they are.
    lines = {key: fields.pop(key) for key in ("stderr_tail",) if key in fields}
    record = Record.from_fields({**_plain(fields, DEEPEST), **lines})
    if name != record.file_name:
        raise RecordError(f"a record that belongs into {record.file_name}")
    if digest is not None:
        try:
            samples = read_samples()
        except RecordError as error:
            raise RecordError(f"its samples: {error}") from None
        if hashlib.sha256(samples).hexdigest() != digest:
            raise RecordError("its samples are not those that it was written with")
        long = _plain(_from_json(samples), DEEPEST)
        record = dataclasses.replace(record, measurements=_joined(record.measurements, long))
    return record


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
            return file.read(status.st_size)
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}") from None


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
        fields = json.loads(
            data.decode(),
            parse_constant=_refuse,
            parse_float=_finite,
            parse_int=_whole,
            object_pairs_hook=_with_each_key_once,
        )
    except ValueError as error:
        raise RecordError(f"not strict JSON: {error}") from None
    except RecursionError:
        raise RecordError("not strict JSON: nested too deeply") from None
    if not isinstance(fields, dict):
        raise RecordError("not a JSON object")
    return fields


def _plain(node: Any, levels: int) -> Any:
    """The same with the texts bounded and printable, and at most so many levels."""
    if isinstance(node, str):
        return bounded(node)
    if not isinstance(node, list | dict):
        return node
    if not levels:
        raise RecordError(f"nested deeper than {DEEPEST} levels")
    if isinstance(node, list):
        return [_plain(entry, levels - 1) for entry in node]
    return {bounded(key): _plain(value, levels - 1) for key, value in node.items()}


def _with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("an object has a key twice")
    return fields


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.fabs(number) <= LARGEST_NUMBER:
        raise ValueError(f"{text} is too large a number")
    return number


def _whole(text: str) -> int:
    # Longer ones are refused before they are read, which takes the square of their length.
    if len(text) > 300 or abs(int(text)) > LARGEST_NUMBER:
        raise ValueError(f"{bounded(text, 20)} is too large a number")
    return int(text)
