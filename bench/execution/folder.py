"""The results folder before a sweep: can it be one, is all there, and what killed sweeps have left in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from bench.common.errors import ConfigError
from bench.execution.filesystems import require_locks
from bench.records import own, plans
from bench.records.disk import folders, unfinished
from bench.records.own import FOLDERS, RESULTS, TRAINED
from bench.records.store import Store

FULL = (errno.ENOSPC, errno.EDQUOT)
# What a sweep writes, by its name: at the top, the folder of a cell, and in `inputs` its tensors and texts.
AT_THE_TOP = re.compile(rf"index\.json|{re.escape(own.MARKER)}")
CELL = re.compile("[0-9a-f]{16}")
ANY = re.compile(".+")


def check_folder(results_dir: str) -> None:
    """See, as far as that can be seen without writing, that results can be kept there.

    Raises:
        ConfigError: they cannot, or it is somebody else's folder.
    """
    path = Path(results_dir)
    try:
        while not _exists(path):
            path = path.absolute().parent
        for folder in (path, *(Path(results_dir) / name for name in FOLDERS)):
            if _exists(folder) and not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        own.check(Path(results_dir), RESULTS, "results_dir")
    except (OSError, ValueError) as error:
        raise _unusable(results_dir, error) from None


def prepare_folder(results_dir: str, *, shared: bool = False) -> None:
    """Make the folders that a sweep writes to, and clear what killed ones left there.

    Others may be writing meanwhile: what they write is locked.

    Args:
        results_dir: the folder.
        shared: whether other nodes write there, too.

    Raises:
        ConfigError: it is somebody else's, a folder cannot be made, or its file system does not lock files.
        OSError: the disk is full.
    """
    root = Path(results_dir)
    try:
        own.claim(root, RESULTS, "results_dir")
        for name in FOLDERS:
            (root / name).mkdir(exist_ok=True)
        require_locks(root / "locks", f"results_dir={results_dir!r}", shared=shared)
    except OSError as error:
        if error.errno in FULL:
            raise
        raise _unusable(results_dir, error) from None
    Store(root).clear_leftovers()
    written = [(folder, ANY) for folder in (root / "inputs", *folders(root / plans.FOLDER, plans.SWEEP))]
    written += [(root, AT_THE_TOP)]
    written += [(folder, TRAINED) for folder in folders(root / "training", CELL)]
    for path in (path for folder, form in written for path in unfinished(folder, form)):
        with _if_free(path) as free:
            if free:
                path.unlink(missing_ok=True)
    for path in folders(root / "scratch", CELL):
        with _if_free(root / "locks" / f"{path.name}.lock") as free:
            if free:
                shutil.rmtree(path, ignore_errors=True)


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _unusable(results_dir: str, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or str(error)
    place = Path(getattr(error, "filename", None) or "").name
    if place in FOLDERS:
        reason = f"{place}: {reason}"
    return ConfigError(f"results_dir={results_dir!r}: {reason}; must be a folder, or the name of a new one")


@contextlib.contextmanager
def _if_free(path: Path) -> Iterator[bool]:
    """Whether a file is there and nobody holds its lock; if so, it is held here meanwhile."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
