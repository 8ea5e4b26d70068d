"""What is known about one attempt at one cell: the schema of the result files."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1

STATUSES = (
    "ok",
    "oom",
    "timeout",
    "crash",
    "error",
    "nonfinite",
    "incorrect",
    "unsupported",
    "interrupted",
)
# Outcomes that say nothing lasting about the mechanism: a cell that ended so is run again.
RETRIED = ("timeout", "crash", "error", "interrupted")
# Outcomes after which a sweep exits non-zero.
FAILED = ("crash", "error", "timeout", "incorrect", "nonfinite", "interrupted")

PHASES = ("setup", "check", "warmup", "measure", "teardown")


class RecordError(ValueError):
    """A result file that is not a record of this schema; the message names what is wrong."""


@dataclass(frozen=True)
class Record:
    """One attempt at one cell. Strict JSON on disk; raw samples inside `measurements`, summaries nowhere.

    A record whose status is not `ok` carries no measurements.
    """

    record_id: str
    """Random, 128 bits in hex."""
    cell_id: str
    """Hash of what determines the measurement."""
    sweep_id: str
    """Hash of the plan that the cell was run for."""
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
    """Wall seconds from the start of the child process to its end."""
    schema: int = SCHEMA
    reason: str | None = None
    """One line; None for `ok`."""
    phase: str | None = None
    """The phase (one of `PHASES`) in which a cell that is not `ok` ended, where it is known."""
    exit_code: int | None = None
    signal: int | None = None
    stderr_tail: str = ""
    overrides: tuple[str, ...] = ()
    """The command line of the sweep."""
    code: dict[str, Any] = field(default_factory=dict)
    """suite_version, git_sha, git_dirty, sources_sha256."""
    machine: dict[str, Any] = field(default_factory=dict)
    """cpu_model, cpu_count, memory_bytes, os, python, torch, ... and of the device: name, driver, memory."""
    numerics: dict[str, Any] = field(default_factory=dict)
    """threads, float32_matmul_precision, tf32 flags, the implementation and backend that ran."""
    approximates: dict[str, str | None] = field(default_factory=dict)
    """For the label of each mechanism the exact function that its output is or estimates; None: one of its own."""
    inputs_sha256: str | None = None
    correctness: dict[str, Any] = field(default_factory=dict)
    """reference, error, tolerance of the check that ran before the measurement."""
    measurements: dict[str, Any] = field(default_factory=dict)
    """What the benchmark measured; its docstring says in which shape."""
    overhead_s: float | None = None
    """duration_s without the seconds that inputs, check and measurement took."""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise RecordError(f"status={self.status!r}: must be one of {', '.join(STATUSES)}")
        if self.status != "ok" and self.measurements:
            raise RecordError(f"status={self.status}: a cell that is not ok carries no measurements")

    @property
    def terminal(self) -> bool:
        """Whether the outcome stands, so that the cell need not run again."""
        return self.status not in RETRIED

    def to_json(self) -> str:
        """Strict JSON (no NaN, no Infinity)."""
        return json.dumps(dataclasses.asdict(self), allow_nan=False, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Parse strictly; raises `RecordError` for anything that is not a record of this schema."""
        try:
            fields = json.loads(text, parse_constant=_reject_constant)
        except ValueError as error:
            raise RecordError(f"not strict JSON: {error}") from None
        if not isinstance(fields, dict):
            raise RecordError("not a JSON object")
        if fields.get("schema") != SCHEMA:
            raise RecordError(f"schema={fields.get('schema')!r}: must be {SCHEMA}")
        known = {f.name: f for f in dataclasses.fields(cls)}
        unknown = sorted(set(fields) - set(known))
        required = {
            name
            for name, f in known.items()
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        }
        missing = sorted(required - set(fields))
        if unknown or missing:
            raise RecordError(f"unknown fields {unknown}, missing fields {missing}")
        return cls(**{**fields, "overrides": tuple(fields.get("overrides", ()))})


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
