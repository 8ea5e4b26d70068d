"""The processes below this one, at any remove: they stay below it, and end with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time

import psutil

PR_SET_CHILD_SUBREAPER = 36
ENDED_WITHIN_S = 30.0
# Of one cell: far above what compilers and loaders of data start, far below what harms a machine.
MAX_THREADS = 4096


def become_subreaper() -> None:
    """Stay the ancestor of all that is started below, also of what leaves the session or outlives its parent."""
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def limit_threads() -> None:
    """Bound the processes and threads that this user may have; the system does not bind root."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/loadavg") as file:
            most = int(file.read().split()[3].partition("/")[2]) + MAX_THREADS
        soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        if soft == resource.RLIM_INFINITY or most < soft:
            resource.setrlimit(resource.RLIMIT_NPROC, (most, hard))


def kill_group(pid: int) -> None:
    """Kill a process with its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """Kill a process with its process group, and all that is below it, also what has left the group."""
    below = []
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(pid).children(recursive=True)
    kill_group(pid)
    _kill(below)


def kill_descendants() -> None:
    """Kill all that is below this process, and what appears meanwhile; returns when nothing is left."""
    deadline = time.monotonic() + ENDED_WITHIN_S
    with contextlib.suppress(ChildProcessError):  # nothing is left
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                with contextlib.suppress(psutil.Error):
                    _kill(psutil.Process().children(recursive=True))
                time.sleep(0.01)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
