"""The results folder before a sweep: it is checked, made, and cleared of what killed sweeps have left in it."""

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
# The names of what a sweep writes at the top, of a cell's folder, and of anything.
TOP = re.compile(rf"index\.json|{re.escape(own.MARKER)}")
CELL = re.compile("[0-9a-f]{16}")
ANY = re.compile(".+")


def check_folder(results_dir: str) -> None:
    """Raise `ConfigError` where results cannot be kept, as far as that can be seen without writing."""
    with _refused(results_dir), contextlib.suppress(FileNotFoundError):
        own.check(Path(results_dir), RESULTS, "results_dir")
        os.stat(results_dir)


def prepare_folder(results_dir: str) -> None:
    """Make the folders that a sweep writes to, and clear what killed ones left there.

    Others may be writing meanwhile: what they write is locked.

    Raises:
        ConfigError: it is somebody else's, a folder cannot be made, or its file system does not lock files.
        OSError: the disk is full.
    """
    root = Path(results_dir)
    with _refused(results_dir):
        own.claim(root, RESULTS, "results_dir")
        for name in FOLDERS:
            (root / name).mkdir(exist_ok=True)
        with try_lock(open_lock(root / "locks" / ".probe")):  # a file system without locks is refused
            pass
    Store(root).clear_leftovers()
    written = [(root, TOP)]
    written += [(folder, ANY) for folder in (root / "inputs", *folders(root / plans.FOLDER, plans.SWEEP))]
    written += [(folder, TRAINED) for folder in folders(root / "training", CELL)]
    # Each with the file that whoever still needs it has locked.
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
    """What the system says of a folder is a `ConfigError`, unless its disk is full."""
    try:
        yield
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in FULL:
            raise
        reason = getattr(error, "strerror", None) or str(error)
        place = Path(getattr(error, "filename", None) or "").name
        reason = f"{place}: {reason}" if place in FOLDERS else reason
        raise ConfigError(
            f"results_dir={results_dir!r}: {reason}; must be a folder, or the name of a new one"
        ) from None
