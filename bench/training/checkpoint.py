"""Checkpoints of a run: each is there wholly or not at all, and the newest that can be read is gone on from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bench.errors import one_line, say
from bench.records.disk import replacing
from bench.records.patience import patiently

NAME = re.compile(r"step-(\d{10})\.pt")
# One more than needed: should the disk spoil the newest.
KEPT = 2


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write a checkpoint, durably and in one piece, and remove all but the newest.

    Raises:
        OSError: the disk is full; what was there stays.
    """
    patiently(lambda: _write(folder / f"step-{step:010d}.pt", state), folder.parent)
    for old in sorted(_all(folder))[:-KEPT]:
        old.unlink(missing_ok=True)


def _write(path: Path, state: dict[str, Any]) -> None:
    with replacing(path) as file:
        torch.save(state, file)


def newest(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that can be read, tensors on the CPU; None where there is none. Only data is unpickled."""
    for path in sorted(_all(folder), reverse=True):
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # cut short or spoiled in whatever way
            say(f"{path.name}: passed over, cannot be read: {one_line(error)}")
            continue
        return state
    return None


def clear(folder: Path) -> None:
    """Remove the checkpoints: the run has ended, and the same cell would begin anew."""
    for path in (*_all(folder), *folder.glob(".*.tmp")):
        path.unlink(missing_ok=True)


def _all(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("step-*.pt") if NAME.fullmatch(path.name))
