"""What a process has started, at any remove: it stays below its ancestor, and ends with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time

import psutil

PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 5.0


def adopt_orphans() -> None:
    """Stay the ancestor of all that is started below, also of what leaves the session or outlives its parent."""
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """The processes below one (this one, by default) that live now."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def end_descendants() -> None:
    """Kill all that is below this process, and what appears meanwhile; returns when nothing is left."""
    deadline = time.monotonic() + PATIENCE_S
    while _has_children() and time.monotonic() < deadline:
        for process in descendants():
            with contextlib.suppress(psutil.Error):
                process.kill()
        while _reaped():
            pass
        time.sleep(0.01)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _reaped() -> bool:
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    return False
