"""Lock files: one holder at a time, whoever and wherever, that say who it is and end with it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.common.errors import bounded
from bench.execution.jobs import job
from bench.records.disk import require_file

POLL_S = 0.05
SILENT_S = 1.0
LONGEST_SIGNATURE = 4096


@contextlib.contextmanager
def hold(path: Path, what: str, say: Callable[[str], None], *, shared: bool = False) -> Iterator[int]:
    """Hold a lock file; wait without limit, and after a second say for whom.

    The operating system frees the lock when the holder dies, and with it every process that inherited the descriptor:
    what a killed sweep was measuring lives on for a moment.

    Args:
        path: of the lock file.
        what: what is done meanwhile, for those who wait.
        say: told for whom this waits.
        shared: hold it together with others that do so.

    Yields:
        The lock's descriptor.
    """
    held = False
    while not held:
        descriptor = open_lock(path)
        try:
            _acquire(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, what, say)
            # A lock on a file that was removed meanwhile keeps nobody out.
            if held := _is_at(descriptor, path):
                _sign(descriptor, what)
                yield descriptor
        finally:
            # Closing does not unlock while a process that inherited the descriptor lives.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def holder(path: Path) -> dict[str, Any] | None:
    """Who holds a lock file, not shared, at this moment; None if nobody does. Nobody waits for this look.

    Returns:
        `host`, `pid`, `what` is done, when that `started` (UTC), and its scheduler's `job`, if any. Another user
        may have written anything; nothing at all is in it where that was lost.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        # Shared: two that look at once do not take each other for holders.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _signature(descriptor)
    else:
        return None
    finally:
        os.close(descriptor)


def open_lock(path: Path) -> int:
    """The descriptor of a lock file that every user may hold; it is made if it is not there.

    Raises:
        OSError: something else is there.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    while True:
        # Linux refuses O_CREAT for another user's file in a folder that all may write to.
        with contextlib.suppress(FileNotFoundError):
            require_file(path)
            return os.open(path, flags)
        path.parent.mkdir(exist_ok=True)  # a mechanism may have removed it
        with contextlib.suppress(FileExistsError):  # somebody was faster
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)
            return descriptor


def _acquire(descriptor: int, kind: int, what: str, say: Callable[[str], None]) -> None:
    end_of_silence = time.monotonic() + SILENT_S
    while time.monotonic() < end_of_silence:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        time.sleep(POLL_S)
    say(f"{what}: waiting for {_named(_signature(descriptor))}")
    fcntl.flock(descriptor, kind)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _sign(descriptor: int, what: str) -> None:
    """Write who holds the lock; of several that share it, the last one stands there."""
    signature = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "what": bounded(what),
        "started": datetime.now(UTC).isoformat(),
        "job": job(),
    }
    line = json.dumps(signature).encode() + b"\n"
    with contextlib.suppress(OSError):  # the disk may be full, and this is a courtesy to those who wait
        os.pwrite(descriptor, line, 0)
        os.ftruncate(descriptor, len(line))


def _signature(descriptor: int) -> dict[str, Any]:
    line = os.pread(descriptor, LONGEST_SIGNATURE, 0).partition(b"\n")[0]
    try:
        signature = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return signature if isinstance(signature, dict) else {}


def _named(signature: dict[str, Any]) -> str:
    host, pid, what = (bounded(str(signature.get(key, "?")), 200) for key in ("host", "pid", "what"))
    return f"{what} (process {pid}{'' if host == socket.gethostname() else f' on {host}'})"
