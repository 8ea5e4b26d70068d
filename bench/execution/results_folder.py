"""Prepares the results folder before a sweep: checks it, creates it, and removes what killed sweeps left behind."""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from bench.common.errors import ConfigError
from bench.execution.locks import open_lock, try_lock
from bench.records import own, plans
from bench.records.disk import folders, unfinished
from bench.records.own import FOLDERS, RESULTS, TRAINED
from bench.records.store import Store

FULL = (errno.ENOSPC, errno.EDQUOT)
# File names that a sweep writes at the top level, those of a cell's folder, and any name.
TOP = re.compile(rf"index\.json|{re.escape(own.MARKER)}")
CELL = re.compile("[0-9a-f]{16}")
ANY = re.compile(".+")


def check_folder(results_dir: str) -> None:
    """Raise `ConfigError` if results cannot be stored here, as far as that is visible without writing."""
    with _refused(results_dir), contextlib.suppress(FileNotFoundError):
        own.check(Path(results_dir), RESULTS, "results_dir")
        os.stat(results_dir)


def prepare_folder(results_dir: str) -> None:
    """Create the folders that a sweep writes to, and remove what killed sweeps left in them.

    Other sweeps may be writing at the same time: their files are locked.

    Raises:
        ConfigError: the folder is not ours, cannot be made, or is on a file system without file locks.
        OSError: the disk is full.
    """
    root = Path(results_dir)
    with _refused(results_dir):
        own.claim(root, RESULTS, "results_dir")
        for name in FOLDERS:
            (root / name).mkdir(exist_ok=True)
        with try_lock(open_lock(root / "locks" / ".probe")):  # fails on a file system without locks
            pass
    Store(root).clear_leftovers()
    written = [(root, TOP)]
    swept = [*folders(root / plans.FOLDER, plans.SWEEP)]
    jobs = [folder for sweep in swept for folder in folders(sweep, re.compile("slurm"))]
    written += [(folder, ANY) for folder in (root / "inputs", *swept, *jobs)]
    written += [(folder, TRAINED) for folder in folders(root / "training", CELL)]
    # Each leftover with the file that a process still using it would hold locked.
    left = [(path, path) for folder, form in written for path in unfinished(folder, form)]
    left += [(path, root / "locks" / f"{path.name}.lock") for path in folders(root / "scratch", CELL)]
    for path, lock in left:
        with contextlib.suppress(OSError), try_lock(os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)) as free:
            if free and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif free:
                path.unlink()


@contextlib.contextmanager
def _refused(results_dir: str) -> Iterator[None]:
    """Turn the system's errors about a folder into a `ConfigError`, except a full disk."""
    try:
        yield
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in FULL:
            raise
        reason = getattr(error, "strerror", None) or str(error)
        place = Path(getattr(error, "filename", None) or "").name
        reason = f"{place}: {reason}" if place in FOLDERS else reason
        allowed = "a folder, or the name of a new one"
        raise ConfigError(f"results_dir={results_dir!r}: {reason}; must be {allowed}") from None
