"""Checkpoints of a training run: each is written atomically, and a run resumes from the newest valid one."""

import copy
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.common.errors import one_line
from bench.records.disk import entries, files, replacing, require_file, unfinished
from bench.records.own import CHECKPOINT
from bench.training.loop import Trainer

# One more than needed, in case the disk damages the newest.
KEPT = 2
# A file begins with the SHA-256 of the rest, which torch wrote.
DIGEST = hashlib.sha256().digest_size


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically and durably, and remove all older ones except the last few.

    Raises:
        OSError: the disk is full, or something else has the file's name; existing files stay.
    """
    path = folder / f"step-{step:010d}.pt"
    with replacing(path) as file:
        file.write(bytes(DIGEST))
        # If the folder has another name than the cell, somebody moved another cell's checkpoints there.
        torch.save({"cell": folder.name, **state}, file)
        file.seek(DIGEST)
        digest = hashlib.file_digest(file, "sha256").digest()
        file.seek(0)
        file.write(digest)
    # Checkpoints newer than this one are invalid: the run did not resume from them.
    for old in [each for each in files(folder, CHECKPOINT) if each <= path][:-KEPT]:
        old.unlink(missing_ok=True)


def resume(folder: Path, trainer: Trainer, say: Callable[[str], None]) -> None:
    """Resume from the newest checkpoint that is valid and fits, if any; `say` prints a line for each one skipped."""
    paths = list(entries(folder, CHECKPOINT))
    if not paths:
        return
    beginning = copy.deepcopy(trainer.state())
    for path in reversed(paths):
        try:
            trainer.restore(_read(path))
        except Exception as error:  # damaged, or from another model; any exception may come
            say(f"{path.name}: passed over, {getattr(error, 'strerror', None) or one_line(error)}")
            trainer.restore(beginning)
        else:
            return


def _read(path: Path) -> dict[str, Any]:
    """Read a checkpoint's state, with tensors on the CPU; only plain data is unpickled."""
    require_file(path)
    with open(path, "rb") as file:
        digest = file.read(DIGEST)
        if hashlib.file_digest(file, "sha256").digest() != digest:
            raise ValueError("does not have the contents that it was written with")
        file.seek(DIGEST)
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    if (cell := state.pop("cell")) != path.parent.name:
        raise ValueError(f"is of another cell, {cell}")
    return state


def clear(folder: Path) -> None:
    """Remove all checkpoints: the run has ended, and the cell would start from the beginning next time."""
    for path in (*files(folder, CHECKPOINT), *unfinished(folder, CHECKPOINT)):
        path.unlink(missing_ok=True)
