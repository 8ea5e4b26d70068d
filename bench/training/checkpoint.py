"""Checkpoints of a run: each is there wholly or not at all, and a run goes on from the newest that holds and fits."""

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

# One more than needed: should the disk spoil the newest.
KEPT = 2
# A file begins with the digest of what torch wrote after it.
DIGEST = hashlib.sha256().digest_size


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write a checkpoint, durably and in one piece, and remove the older ones but for a few.

    Raises:
        OSError: the disk is full, or something else has its name; what was there stays.
    """
    path = folder / f"step-{step:010d}.pt"
    with replacing(path) as file:
        file.write(bytes(DIGEST))
        # Whoever names a folder otherwise has moved the checkpoints of another cell there.
        torch.save({"cell": folder.name, **state}, file)
        file.seek(DIGEST)
        digest = hashlib.file_digest(file, "sha256").digest()
        file.seek(0)
        file.write(digest)
    # Newer ones than this are no good: the run did not go on from them.
    for old in [each for each in files(folder, CHECKPOINT) if each <= path][:-KEPT]:
        old.unlink(missing_ok=True)


def resume(folder: Path, trainer: Trainer, say: Callable[[str], None]) -> None:
    """Go on from the newest checkpoint that holds and fits, if there is one; `say` gets a line for each other one."""
    paths = list(entries(folder, CHECKPOINT))
    if not paths:
        return
    beginning = copy.deepcopy(trainer.state())
    for path in reversed(paths):
        try:
            trainer.restore(_read(path))
        except Exception as error:  # spoiled, or of another model, in whatever way
            say(f"{path.name}: passed over, {getattr(error, 'strerror', None) or one_line(error)}")
            trainer.restore(beginning)
        else:
            return


def _read(path: Path) -> dict[str, Any]:
    """What was written, tensors on the CPU; only data is unpickled."""
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
    """Remove the checkpoints: the run has ended, and the same cell would begin anew."""
    for path in (*files(folder, CHECKPOINT), *unfinished(folder, CHECKPOINT)):
        path.unlink(missing_ok=True)
