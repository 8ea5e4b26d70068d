"""The schema of result files: all that is known about one attempt to measure a cell."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from bench.common.schema import defaults

SCHEMA = 2

STATUSES = ("ok", "oom", "timeout", "crash", "error", "nonfinite", "incorrect", "unsupported", "interrupted")
# Outcomes that may be different next time: the cell is run again.
RETRIED = ("timeout", "crash", "error", "interrupted")
# Outcomes with which a sweep's exit code is not 0.
FAILED = ("crash", "error", "timeout", "incorrect", "nonfinite", "interrupted")

PHASES = ("setup", "check", "warmup", "measure", "teardown")


class RecordError(ValueError):
    """A result file is not a record of this schema; the message says why."""


@dataclass(frozen=True)
class Record:
    """One attempt to measure a cell: raw samples, and the summary that its benchmark computed.

    A record whose status is not `ok` has no measurements.
    """

    record_id: str
    """Random, 128 bits in hex."""
    cell_id: str
    """The hash of all that determines the measurement."""
    sweep_id: str
    """The hash of the plan that the cell was run for."""
    attempt: int
    """1 for the first record of this cell, 2 for the next."""
    status: str
    """One of `STATUSES`."""
    config: dict[str, Any]
    """The resolved configuration that was measured."""
    started: str
    """UTC, ISO 8601."""
    ended: str
    """UTC, ISO 8601."""
    duration_s: float
    """Wall time from the start of the child process to its end."""
    schema: int = SCHEMA
    reason: str | None = None
    """One line; None for `ok`."""
    phase: str | None = None
    """The phase (one of `PHASES`) in which a cell that is not `ok` ended, if known."""
    exit_code: int | None = None
    signal: int | None = None
    stderr_tail: str = ""
    overrides: tuple[str, ...] = ()
    """The command line of the sweep."""
    code: dict[str, Any] = field(default_factory=dict)
    """suite_version, git_sha, git_dirty, sources_sha256."""
    machine: dict[str, Any] = field(default_factory=dict)
    """cpu_model, cpu_count, memory_bytes, os, python, torch, ...; of the device: name, driver, memory."""
    numerics: dict[str, Any] = field(default_factory=dict)
    """threads, float32_matmul_precision, tf32 flags, the implementation and backend that ran."""
    mechanisms: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For each mechanism's label: `approximates`, the function that it computes or approximates (None: its own one);
    `exact`, whether it computes that function itself; `size`, the name of the hyperparameter that the papers call d."""
    device_state: dict[str, Any] = field(default_factory=dict)
    """For a GPU, at the `start` of the cell, `before` its first sample and `after` its last: clocks, power,
    temperature, throttle reasons, energy, processes; or what is `missing` to read them. Empty for a CPU. The cell's
    energy is the difference of `energy_j` between start and after."""
    host_state: dict[str, Any] = field(default_factory=dict)
    """`before`, `after` and `during` the cell, as `bench.execution.host_state` reads them. `disturbed` has reasons why
    times are unreliable, for cells that take times: empty on a quiet machine, missing in older records."""
    inputs_sha256: str | None = None
    correctness: dict[str, Any] = field(default_factory=dict)
    """For each label, on its `short` and its `own` input: errors of the check, allowed errors, number of rows."""
    measurements: dict[str, Any] = field(default_factory=dict)
    """What the benchmark measured; its docstring describes the shape."""
    summary: dict[str, Any] = field(default_factory=dict)
    """The benchmark's results (`bench.records.summary.summarised`), so that readers need no benchmark code."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each of `PHASES`; `check` compares the output with the reference."""
    overhead_s: float | None = None
    """duration_s without the time for inputs, check and measurement."""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise RecordError(f"status={self.status!r}: must be one of {', '.join(STATUSES)}")
        if self.status != "ok" and self.measurements:
            raise RecordError(f"status={self.status}: a cell that is not ok carries no measurements")

    @property
    def file_name(self) -> str:
        """The name of the record's file."""
        return f"{self.cell_id[:16]}-{self.record_id[:16]}.json"

    @property
    def terminal(self) -> bool:
        """Whether the outcome is final, so that the cell need not run again."""
        return self.status not in RETRIED

    @property
    def disturbed(self) -> list[str]:
        """Why the times may differ from those on a quiet machine, such as CPU time of other processes."""
        return self.host_state.get("disturbed") or []

    @property
    def device_name(self) -> str | None:
        """The model of the GPU, or of the CPU with its vector instructions, where the record has them."""
        return self.machine.get("gpu_name") or self.cpu

    @property
    def cpu(self) -> str | None:
        """The model of the CPU with its vector instructions: `AMD EPYC (AVX2)`."""
        model, vectors = (self.machine.get(key) for key in ("cpu_model", "cpu_vectors"))
        return f"{model} ({vectors})" if model and vectors else model

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Record:
        """A record from a file's fields; raises `RecordError` if they are not a record of this schema."""
        if fields.get("schema") != SCHEMA:
            raise RecordError(f"schema={fields.get('schema')!r}: must be {SCHEMA}")
        declared = {each.name for each in dataclasses.fields(cls)}
        unknown, missing = sorted(fields.keys() - declared), sorted(declared - fields.keys() - defaults(cls).keys())
        if unknown or missing:
            raise RecordError(f"unknown fields {unknown}, missing fields {missing}")
        _check_types("", fields, _hints())
        for name, pattern in _IDS.items():
            if not re.fullmatch(pattern, fields[name]):
                raise RecordError(f"{name}={fields[name][:80]!r}: must match {pattern}")
        for name in ("started", "ended"):
            _check_time(name, fields[name])
        for place, hints in _PARTS.items():
            part = functools.reduce(lambda above, name: above.get(name, {}), place.split("."), fields)
            if part or place != "summary":
                _check_types(f"{place}.", part, hints)
        _check_cells(fields["config"])
        for label, facts in fields.get("mechanisms", {}).items():
            _check_types(f"mechanisms.{label}.", facts, _MECHANISM)
        return cls(**{**fields, "overrides": tuple(fields.get("overrides", ()))})


# The fields that readers rely on. Too few rules for pydantic, which `analysis` does not need to install.
_CELL = {"label": str, "attention": dict, "impl": str | None, "dtype": str | None}
_CONFIG = _CELL | {
    "bench": dict,
    "inputs": dict,
    "seq_len": int,
    "batch_size": int,
    "num_heads": int | None,
    "head_dim": int | None,
    "causal": bool | None,
    "device": str | None,
    "seed": int | None,
}
_PARTS: dict[str, dict[str, Any]] = {
    "config": _CONFIG,
    "config.bench": {"name": str},
    "config.inputs": {"name": str | None, "weights": str | None},
    "code": {"git_sha": str | None, "sources_sha256": str | None},
    "machine": {
        "cpu_model": str | None,
        "cpu_vectors": str | None,
        "gpu_name": str | None,
        "torch": str | None,
        "cpu_count": int | None,
    },
    "host_state": {"disturbed": list[str] | None},
    "numerics": {"threads": int | None},
    "summary": {"axis": str, "replicates": str | None, "not_conditions": list[str], "headline": list[str] | None},
}
_MECHANISM = {"approximates": str | None, "exact": bool | None, "size": str | None}
# Ids are parts of file names and of queries.
_IDS = {"record_id": "[0-9a-f]{16,64}", "cell_id": "[0-9a-f]{16,64}", "sweep_id": "[0-9a-z]{0,64}"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _check_cells(config: dict[str, Any]) -> None:
    against = config["bench"].get("against", [])
    if not _is_a(against, list[dict[str, Any]]):
        raise RecordError(f"config.bench.against={str(against)[:80]!r}: must be a list of cells")
    for prefix, cell in (("config.", config), *(("config.bench.against.", other) for other in against)):
        _check_types(prefix, cell, _CELL)
        _check_types(f"{prefix}attention.", cell["attention"], {"name": str})
    for name in ("seq_len", "batch_size"):
        if config[name] < 1:
            raise RecordError(f"config.{name}={config[name]}: must be at least 1")
    if not _is_a(tokens := config["seq_len"] * config["batch_size"], int):
        raise RecordError(f"config.seq_len * batch_size={tokens}: must be {_words(int)}")


@functools.cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Record)  # cached: takes as long as all other checks together


def _check_types(prefix: str, values: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    required = prefix != ""
    for name, hint in hints.items():
        if (required or name in values) and not _is_a(values.get(name), hint):
            raise RecordError(f"{prefix}{name}={str(values.get(name))[:80]!r}: must be {_words(hint)}")


def _words(hint: Any) -> str:
    return str(getattr(hint, "__name__", hint)).replace("int", "int of 64 bits")


def _is_a(value: Any, hint: Any) -> bool:
    """Whether a JSON value has an annotated type: a list counts as a tuple, and an int as a float."""
    if get_origin(hint) is UnionType:
        return any(_is_a(value, option) for option in get_args(hint))
    kind = get_origin(hint) or hint
    if kind in (list, tuple):
        return isinstance(value, list) and all(_is_a(entry, get_args(hint)[0]) for entry in value)
    if kind is dict and get_args(hint):
        return isinstance(value, dict) and all(_is_a(entry, get_args(hint)[1]) for entry in value.values())
    if kind is Any:
        return True
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, int):
        return kind in (int, float) and -(2**63) <= value < 2**63
    return isinstance(value, kind)


def _check_time(name: str, value: str) -> None:
    """Accept one spelling of a time only, so that times sort like texts."""
    with contextlib.suppress(ValueError):
        time = datetime.fromisoformat(value)
        if time.utcoffset() == timedelta(0) and time.isoformat() == value and time >= EPOCH:
            return
    raise RecordError(f"{name}={value[:80]!r}: must be a UTC time in ISO 8601, since 1970")
