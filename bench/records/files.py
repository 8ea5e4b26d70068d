"""A record on disk: one file that reads on a screen, and beside it one for samples too many to read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable
from typing import Any, NoReturn

from bench.records.record import Record, RecordError

# A list of more numbers than this is no reading.
READABLE = 64
WIDTH = 120


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """The record's file and, where it measured long lists, the file of these; strict JSON (no NaN, no Infinity)."""
    short, long = _part(record.measurements)
    fields = dataclasses.asdict(record) | {"measurements": short}
    if not long:
        return _to_json(fields), None
    samples = _to_json(long)
    return _to_json(fields | {"samples_sha256": hashlib.sha256(samples).hexdigest()}), samples


def decode(data: bytes, read_samples: Callable[[], bytes]) -> Record:
    """The record of a file; `read_samples` gives the contents of its second file, where it has one.

    Raises:
        RecordError: one of the two is not what `encode` writes, or is not there.
    """
    fields = _from_json(data)
    if not isinstance(fields, dict):
        raise RecordError("not a JSON object")
    digest = fields.pop("samples_sha256", None)
    record = Record.from_fields(fields)
    if digest is None:
        return record
    try:
        samples = read_samples()
    except OSError as error:
        raise RecordError(f"its samples cannot be read: {error.strerror}") from None
    if hashlib.sha256(samples).hexdigest() != digest:
        raise RecordError("its samples are not those that it was written with")
    return dataclasses.replace(record, measurements=_joined(record.measurements, _from_json(samples)))


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


def _joined(short: dict[str, Any], long: dict[str, Any]) -> dict[str, Any]:
    return short | {
        key: _joined(short.get(key, {}), value) if isinstance(value, dict) else value for key, value in long.items()
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


def _from_json(data: bytes) -> Any:
    try:
        return json.loads(data, parse_constant=_refuse, parse_float=_finite)
    except ValueError as error:
        raise RecordError(f"not strict JSON: {error}") from None
    except RecursionError:
        raise RecordError("not strict JSON: nested too deeply") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)
