"""The parent of a sweep's children: it has imported torch and the suite, so that a child starts at once.

It measures nothing, starts no thread and touches no GPU, so a forked child is as fresh as a newly started process. It
runs one child at a time. When the child has ended, it kills and reaps what the child left behind, also processes that
left the child's session. It ends with the sweep, and ends everything below it.

`multiprocessing.forkserver` is no replacement: it has one environment for the whole process, imports the user's script
in every child, and leaves a child's own children alive.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import random
import resource
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from typing import Any, NoReturn

import psutil

from bench.common import signals
from bench.common.errors import ConfigError, bounded

# An idle server ends, in a notebook say; the next cell starts a new one.
IDLE_S = 120.0
PLUGINS = "ATTENTION_ZOO_PLUGINS"
# Only the end of a child's output is kept.
TAIL_BYTES = 4000
PIPE_BYTES = 1 << 16
# How often to look for a child's end, if the system does not report it.
POLL_S = 0.05
# Libraries that the first call of a cell imports anyway.
LIBRARIES = ("torch.profiler", "torch.nn.attention", "safetensors.torch")
TASKS = ("bench.execution.child", "bench.execution.precheck")
# Like `python -m`, but with the search path of the process that starts it.
START = "import sys; sys.path[:] = sys.argv[2:]; from bench.execution import forkserver; forkserver.{}(sys.argv[1])"

PR_SET_CHILD_SUBREAPER = 36
ENDED_WITHIN_S = 30.0


def forks() -> bool:
    """Whether children are forked, or started as new processes, as macOS requires.

    ATTENTION_ZOO_START=spawn starts new processes, to compare or for a library that forbids forks; other values raise.
    """
    method = os.environ.get("ATTENTION_ZOO_START", "fork")
    if method not in ("fork", "spawn"):
        raise ConfigError(f"ATTENTION_ZOO_START={bounded(method)!r}: must be fork or spawn")
    return sys.platform == "linux" and method == "fork"


def serve(descriptor: str) -> NoReturn:
    """Answer requests on a connection: send None when all is imported, then for each request the pid and the outcome.

    A request is a task (a module), a folder and a number of descriptors, which follow: the child's standard input, and
    files that it keeps open. The child prints to a pipe, whose other end stays open here.
    """
    channel = Connection(int(descriptor))
    become_subreaper()
    if forks():
        _load()
    output, printed = os.pipe()
    os.set_blocking(output, False)
    channel.send(None)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the sweep is gone
        while channel.poll(IDLE_S):
            task, folder, count = channel.recv()
            descriptors = [recv_handle(channel) for _ in range(count)]
            before, pid = _computed_s(), os.fork()
            if pid == 0:
                _run_child(task, folder, descriptors, printed, [channel.fileno(), output])
            for each in descriptors:
                os.close(each)
            channel.send(pid)
            code, tail = _wait(pid, channel, output)
            if code is None:
                break
            kill_descendants()
            text = _read(output, tail).decode(errors="replace")
            channel.send((code, _computed_s() - before, text))
    kill_descendants()
    os._exit(0)


def serve_in_fork(channel: Connection, stderr: int) -> NoReturn:
    """Serve in a fork of the sweep's process, with the environment that is the first thing to be sent."""
    os.setsid()
    signals.answer(signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, descriptor in enumerate((nothing, nothing, stderr)):
        os.dup2(descriptor, number)
    for descriptor in (nothing, stderr):
        os.close(descriptor)
    try:
        environment = channel.recv()
    except EOFError:  # the sweep needs no server
        os._exit(0)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c"]
    serve(str(channel.fileno()))


def run(task: str) -> None:
    """Run a task in this process."""
    become_subreaper()
    importlib.import_module(task).main()


def _load() -> None:
    """Import all that cells have in common.

    Plugins are imported by the child: they may start threads, and may change while a notebook runs.
    """
    plugins = os.environ.pop(PLUGINS, None)
    for name in TASKS:
        importlib.import_module(name)
    sys.modules["bench.measures"].list_benchmarks()  # imports them
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    if plugins is not None:
        os.environ[PLUGINS] = plugins
    gc.collect()
    gc.freeze()


def _computed_s() -> float:
    """The CPU time of this process and of all children that it has reaped, in seconds."""
    usages = (resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _read(output: int, tail: bytes) -> bytes:
    """Read what has been printed and keep the end; never waits."""
    with contextlib.suppress(BlockingIOError):
        tail = (tail + os.read(output, PIPE_BYTES))[-TAIL_BYTES:]
    return tail


def _run_child(task: str, folder: str, descriptors: list[int], printed: int, unneeded: list[int]) -> NoReturn:
    code = 1
    try:
        os.setsid()
        for number, descriptor in enumerate((descriptors[0], printed, printed)):
            os.dup2(descriptor, number)
        for descriptor in (descriptors[0], printed, *unneeded):
            os.close(descriptor)
        with contextlib.suppress(OSError):  # the folder may be gone
            os.chdir(folder)
        if not forks():
            for descriptor in descriptors[1:]:
                os.set_inheritable(descriptor, True)
            os.execv(sys.executable, [sys.executable, "-c", START.format("run"), task, *sys.path])
        # A newly started process has its own random state; a fork would share it.
        random.seed()
        sys.modules["numpy"].random.seed()
        sys.modules["torch"].default_generator.seed()
        run(task)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _wait(pid: int, channel: Connection, output: int) -> tuple[int | None, bytes]:
    """A child's exit code (negative: its signal; None if the sweep ended first), and the end of its output."""
    sources: list[Any] = [channel, output]
    with contextlib.suppress(AttributeError, OSError):  # not every system has pidfd
        sources.append(os.pidfd_open(pid))
    tail = b""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        ready = wait(sources, None if sources[2:] else POLL_S)
        if output in ready:
            tail = _read(output, tail)
        if channel in ready:  # no request comes while a child runs: the sweep has closed it
            return None, tail
    for descriptor in sources[2:]:
        os.close(descriptor)
    kill_group(pid)  # before it is reaped, while the pid is still its own
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), tail


def become_subreaper() -> None:
    """Remain the ancestor of all processes started below, also of those that leave the session or lose their parent."""
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_group(pid: int) -> None:
    """Kill a process and its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """Kill a process, its process group, and all its descendants, also those that have left the group."""
    below = []
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(pid).children(recursive=True)
    kill_group(pid)
    _kill(below)


def kill_descendants() -> None:
    """Kill all descendants of this process, also new ones; returns when none is left, or after 30 s."""
    deadline = time.monotonic() + ENDED_WITHIN_S
    with contextlib.suppress(ChildProcessError):  # no child is left
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                with contextlib.suppress(psutil.Error):
                    _kill(psutil.Process().children(recursive=True))
                time.sleep(0.01)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
