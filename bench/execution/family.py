"""What a process has started, at any remove: it stays below its ancestor, is not too much, and ends with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 30.0
# Of one cell: far above what compilers and loaders of data start, far below what harms a machine.
MOST_PROCESSES = 256
MOST_THREADS = 4096


def adopt_orphans() -> None:
    """Stay the ancestor of all that is started below, also of what leaves the session or outlives its parent."""
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """The processes below one (this one, by default) that live now."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


class Crowd:
    """What a child has started, counted as often as one likes: the machine is asked first, which costs nothing.

    Only Linux says so; elsewhere there is never too much.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._fewest = _threads_of_the_machine()

    def ended(self) -> str | None:
        """End all if that is too much; returns what was."""
        now = _threads_of_the_machine()
        self._fewest = min(self._fewest, now)
        if now - self._fewest < MOST_PROCESSES:
            return None
        with _before_all_others():
            if (reason := self._excess()) is None:
                return None
            kill_group(self._pid)
            killed: set[psutil.Process] = set()
            while _kill_others(killed):
                pass
        end_descendants()
        return reason

    def _excess(self) -> str | None:
        members = descendants(self._pid)
        if len(members) > MOST_PROCESSES:
            return f"it had started more than {MOST_PROCESSES} processes"
        with contextlib.suppress(psutil.Error):
            if sum(map(_threads, [psutil.Process(self._pid), *members])) > MOST_THREADS:
                return f"it had started more than {MOST_THREADS} threads"
        return None


def limit_processes() -> None:
    """Let the system bound what this process starts, too; it counts all that a user has, and does not bind root."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        now = _threads_of_the_machine()
        if now and (soft == resource.RLIM_INFINITY or now + MOST_THREADS < soft):
            resource.setrlimit(resource.RLIMIT_NPROC, (now + MOST_THREADS, hard))


@contextlib.contextmanager
def _before_all_others() -> Iterator[None]:
    """Thousands of others leave no time to end them, unless this process comes first, where it may."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except (OSError, AttributeError):
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def kill_group(pid: int) -> None:
    """Kill a child with its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _threads_of_the_machine() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    return 0


def _threads(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return int(process.num_threads())
    return 0


def end_descendants() -> None:
    """Kill all that is below this process, and what appears meanwhile; returns when nothing is left."""
    deadline = time.monotonic() + PATIENCE_S
    killed: set[psutil.Process] = set()
    while _has_children() and (began := time.monotonic()) < deadline:
        _kill_others(killed)
        while _reaped():
            pass
        # Thousands need the time to end that a look at them takes.
        time.sleep(0.01 + 3 * (time.monotonic() - began))


def _kill_others(killed: set[psutil.Process]) -> bool:
    """Kill what is below this process beside those that have been killed; returns whether there was anything."""
    others = set(descendants()) - killed
    for process in others:
        with contextlib.suppress(psutil.Error):
            process.kill()
    killed |= others
    return bool(others)


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
