"""Lock files: one holder at a time, whoever and wherever, that say who it is and end with it.

The package filelock has no lock that several share, and gives no descriptor that a child could inherit.
"""

import contextlib
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.common.errors import bounded
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
def hold(path: Path, what: str, say: Callable[[str], None], *, shared: bool = False) -> Iterator[int]:
    """Hold a lock file, or share it; yields its descriptor. Waits without limit; after a second `say` is told for whom.

    The operating system frees the lock when the holder dies, and with it every process that inherited the descriptor:
    what a killed sweep was measuring lives on for a moment. `what` is done meanwhile, for those who wait.
    """
    valid = False
    while not valid:
        descriptor = open_lock(path)
        try:
            _acquire(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, what, say)
            # A lock on a file that was removed meanwhile keeps nobody out.
            if valid := os.fstat(descriptor).st_nlink > 0:
                _sign(descriptor, what)
                yield descriptor
        finally:
            # Closing does not unlock while a process that inherited the descriptor lives.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


@contextlib.contextmanager
def try_lock(descriptor: int) -> Iterator[bool]:
    """Lock an open file if nobody holds its lock; yields whether it is locked here. In the end it is closed.

    Raises OSError where its file system has no locks, for example NFS without its lock daemon.
    """
    try:
        yield _locked(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def holder(path: Path) -> dict[str, Any] | None:
    """Who holds a lock file, not shared, at this moment; None if nobody does. Nobody waits for this look.

    `host`, `pid`, `what` is done, when that `started` (UTC), and its scheduler's `job`, if any; or whatever another
    user has written, or nothing.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        # Shared: two that look at once do not take each other for holders.
        return None if _locked(descriptor, fcntl.LOCK_SH) else _signature(descriptor)
    finally:
        os.close(descriptor)


def open_lock(path: Path) -> int:
    """The descriptor of a lock file that every user may hold, made if it is missing; else OSError."""
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


def scheduler_job() -> dict[str, str] | None:
    """The job of a scheduler that this process is part of: its `scheduler`, `host` and ids; None outside of any."""
    ids = {name: os.environ[variable] for name, variable in SLURM_VARIABLES.items() if variable in os.environ}
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return {"scheduler": "slurm", "host": socket.gethostname(), **ids} if "id" in ids else None
    context = ray.get_runtime_context()
    ids = {"job_id": context.get_job_id(), "node_id": context.get_node_id(), "task_id": context.get_task_id() or ""}
    return {"scheduler": "ray", "host": socket.gethostname(), **ids}


def _locked(descriptor: int, kind: int) -> bool:
    """Lock an open file if that can be had at once; returns whether."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return True
    return False


def _acquire(descriptor: int, kind: int, what: str, say: Callable[[str], None]) -> None:
    end_of_silence = time.monotonic() + SILENT_S
    while not _locked(descriptor, kind):
        if time.monotonic() >= end_of_silence:
            say(f"{what}: waiting for {_named(_signature(descriptor))}")
            fcntl.flock(descriptor, kind)
            return
        time.sleep(POLL_S)


def _sign(descriptor: int, what: str) -> None:
    """Write who holds the lock; of several that share it, the last one stands there."""
    signature = {"host": socket.gethostname(), "pid": os.getpid(), "what": bounded(what), "job": scheduler_job()}
    line = json.dumps({**signature, "started": datetime.now(UTC).isoformat()}).encode() + b"\n"
    with contextlib.suppress(OSError):  # the disk may be full, and this is a courtesy to those who wait
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
