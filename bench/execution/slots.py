"""Locks that end with their holder: one cell at a time on a device of this machine, whoever started it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.errors import ConfigError

# Not the folder for temporary files, which may differ between users and between jobs.
FOLDER = "/tmp/attention-zoo-slots"
POLL_S = 0.05
SILENT_S = 1.0


def slot(device_id: str) -> Path:
    """The lock file of a device (`cpu`, or the UUID of a GPU), for all users, sweeps and results folders.

    CPU cells share one: on different cores, too, they would share memory, caches and clocks. ATTENTION_ZOO_SLOTS names
    another folder, for jobs that are known not to disturb each other.

    Raises:
        ConfigError: the folder cannot be used.
    """
    folder = Path(os.environ.get("ATTENTION_ZOO_SLOTS", FOLDER))
    path = folder / f"{device_id}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):
            folder.chmod(0o1777)
        os.close(_open(path))
    except OSError as error:
        raise ConfigError(
            f"ATTENTION_ZOO_SLOTS={folder}: {error.strerror}; must be a folder that every user may write to"
        ) from None
    return path


@contextlib.contextmanager
def hold(path: Path, what: str, say: Callable[[str], None]) -> Iterator[int]:
    """Hold a lock file; wait without limit, and after a second say for whom.

    The operating system frees the lock when the holder dies, and with it every process that inherited the descriptor:
    what a killed sweep was measuring lives on for a moment.

    Yields:
        The lock's descriptor.
    """
    descriptor = _open(path)
    try:
        _acquire(descriptor, what, say)
        with contextlib.suppress(OSError):  # the disk may be full, and this is a courtesy to those who wait
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield descriptor
    finally:
        # Closing does not unlock while a process that inherited the descriptor lives.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    # Linux refuses O_CREAT for another user's file in a folder that all may write to.
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, flags)
    path.parent.mkdir(parents=True, exist_ok=True)  # a mechanism may have removed it
    descriptor = os.open(path, flags | os.O_CREAT, 0o666)
    with contextlib.suppress(PermissionError):
        os.fchmod(descriptor, 0o666)
    return descriptor


def _acquire(descriptor: int, what: str, say: Callable[[str], None]) -> None:
    end_of_silence = time.monotonic() + SILENT_S
    while time.monotonic() < end_of_silence:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(POLL_S)
    holder = os.pread(descriptor, 20, 0).decode(errors="replace")
    say(f"{what}: waiting for process {holder if holder.isdigit() else '(unknown)'}")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
