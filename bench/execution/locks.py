"""Lock files: one holder at a time, on any host; a file names its holder, and the lock ends with the holder.

The package filelock has no shared locks, and gives no descriptor that a child process can inherit.
"""

import contextlib
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.common.errors import bounded, say
from bench.records.disk import require_file

POLL_S = 0.05
SILENT_S = 1.0
SIGNATURE_BYTES = 4096
SLURM_VARIABLES = {
    "id": "SLURM_JOB_ID",
    "array": "SLURM_ARRAY_JOB_ID",
    "task": "SLURM_ARRAY_TASK_ID",
    "node": "SLURMD_NODENAME",
    "partition": "SLURM_JOB_PARTITION",
    "restarts": "SLURM_RESTART_COUNT",
}


@contextlib.contextmanager
def hold(path: Path, what: str, *, shared: bool = False) -> Iterator[int]:
    """Hold a lock file, or share it; yields its descriptor. Waits without limit; after 1 s it prints for whom.

    The operating system frees the lock when the holder and every process that inherited the descriptor are gone: the
    child of a killed sweep lives on for a moment. `what` describes the work, for those who wait.
    """
    valid = False
    while not valid:
        descriptor = open_lock(path)
        try:
            _acquire(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, what)
            # A lock on a file that was removed in between excludes nobody.
            if valid := os.fstat(descriptor).st_nlink > 0:
                _sign(descriptor, what)
                yield descriptor
        finally:
            # Closing does not unlock while a process that inherited the descriptor lives.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


@contextlib.contextmanager
def try_lock(descriptor: int) -> Iterator[bool]:
    """Try to lock an open file; yields whether that succeeded. The descriptor is closed at the end.

    Raises OSError if the file system has no locks, for example NFS without its lock daemon.
    """
    try:
        yield _locked(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def holder(path: Path) -> dict[str, Any] | None:
    """Who holds a lock file exclusively right now; None if nobody does. Never blocks anybody.

    Returns `host`, `pid`, `what` is done, when it `started` (UTC), and the scheduler's `job`, if any. Another user may
    have written something else, or nothing.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        # Shared, so that two who look at the same time do not take each other for holders.
        return None if _locked(descriptor, fcntl.LOCK_SH) else _signature(descriptor)
    finally:
        os.close(descriptor)


def open_lock(path: Path) -> int:
    """The descriptor of a lock file that every user may lock; creates a missing file. Raises OSError."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    while True:
        # Linux refuses O_CREAT for another user's file in a folder that everybody may write to.
        with contextlib.suppress(FileNotFoundError):
            require_file(path)
            return os.open(path, flags)
        path.parent.mkdir(exist_ok=True)  # a mechanism may have removed it
        with contextlib.suppress(FileExistsError):  # another process was faster
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)
            return descriptor


def scheduler_job() -> dict[str, str] | None:
    """The scheduler's job that this process belongs to: its `scheduler`, `host` and ids; None if there is none."""
    ids = {name: os.environ[variable] for name, variable in SLURM_VARIABLES.items() if variable in os.environ}
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return {"scheduler": "slurm", "host": socket.gethostname(), **ids} if "id" in ids else None
    context = ray.get_runtime_context()
    ids = {"job_id": context.get_job_id(), "node_id": context.get_node_id(), "task_id": context.get_task_id() or ""}
    return {"scheduler": "ray", "host": socket.gethostname(), **ids}


def _locked(descriptor: int, kind: int) -> bool:
    """Lock an open file without waiting; returns whether that succeeded."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return True
    return False


def _acquire(descriptor: int, kind: int, what: str) -> None:
    end_of_silence = time.monotonic() + SILENT_S
    while not _locked(descriptor, kind):
        if time.monotonic() >= end_of_silence:
            say(f"{what}: waiting for {_named(_signature(descriptor))}")
            fcntl.flock(descriptor, kind)
            return
        time.sleep(POLL_S)


def _sign(descriptor: int, what: str) -> None:
    """Write who holds the lock; of several processes that share it, the last one's entry remains."""
    signature = {"host": socket.gethostname(), "pid": os.getpid(), "what": bounded(what), "job": scheduler_job()}
    line = json.dumps({**signature, "started": datetime.now(UTC).isoformat()}).encode() + b"\n"
    with contextlib.suppress(OSError):  # the disk may be full, and the entry is optional
        os.pwrite(descriptor, line, 0)
        os.ftruncate(descriptor, len(line))


def _signature(descriptor: int) -> dict[str, Any]:
    signature = None
    with contextlib.suppress(ValueError, RecursionError):
        signature = json.loads(os.pread(descriptor, SIGNATURE_BYTES, 0).partition(b"\n")[0])
    return signature if isinstance(signature, dict) else {}


def _named(signature: dict[str, Any]) -> str:
    host, pid, what = (bounded(str(signature.get(key, "?")), 200) for key in ("host", "pid", "what"))
    return f"{what} (process {pid}{'' if host == socket.gethostname() else f' on {host}'})"
