"""The parent of a sweep's children: it has imported torch and the suite, so that a child is ready at once.

It measures nothing, starts no thread and touches no GPU: a child that it forks is as new as one that is started from
nothing. It runs one child at a time. When that has ended, it kills and reaps what the child has left, also what has
left the child's session. It ends when the sweep does, with everything below it.

`multiprocessing.forkserver` is no replacement: it serves one environment for a whole process, imports the user's script
in every child, and leaves a child's own children alive.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import pkgutil
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

from bench.common.errors import ConfigError, bounded

# A notebook that measures nothing more need not keep a process; the next cell brings another.
IDLE_S = 120.0
PLUGINS = "ATTENTION_ZOO_PLUGINS"
# Of what a child prints, the end is kept.
TAIL_BYTES = 4000
PIPE_BYTES = 1 << 16
# Where the system does not tell of a child's end, this is how often it is looked for.
POLL_S = 0.05
# What the first call of a cell imports anyway.
LIBRARIES = ("torch.profiler", "torch.nn.attention", "safetensors.torch")
TASKS = ("bench.execution.child", "bench.execution.precheck")
# As in `python -m`, but for the search path, which may be one that only the asking process knows.
START = "import sys; sys.path[:] = sys.argv[2:]; from bench.execution import forkserver; forkserver.{}(sys.argv[1])"

PR_SET_CHILD_SUBREAPER = 36
ENDED_WITHIN_S = 30.0
# Of one cell: far above what compilers and loaders of data start, far below what harms a machine.
MAX_THREADS = 4096


def forks() -> bool:
    """Whether children are forked here, or started from nothing: macOS does not allow the first.

    ATTENTION_ZOO_START=spawn asks for the second, to compare or where a library minds; what else it says is refused.
    """
    method = os.environ.get("ATTENTION_ZOO_START", "fork")
    if method not in ("fork", "spawn"):
        raise ConfigError(f"ATTENTION_ZOO_START={bounded(method)!r}: must be fork or spawn")
    return sys.platform == "linux" and method == "fork"


def serve(descriptor: str) -> NoReturn:
    """Answer requests on a connection: None when all is loaded, then a process's number and how it ended for each.

    A request is a task (a module), a folder and a number of descriptors, which follow: the child's standard input, and
    files that it keeps open. What it prints goes to a pipe, whose end here stays open.
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


def run(task: str) -> None:
    """Run a task in this process, and bound what it starts."""
    become_subreaper()
    limit_threads()
    importlib.import_module(task).main()


def _load() -> None:
    """Import all that cells have in common.

    Plugins are left to the child: they may start threads, and they change while a notebook lives.
    """
    plugins = os.environ.pop(PLUGINS, None)
    for name in (*TASKS, "bench.measures"):
        importlib.import_module(name)
    for benchmark in pkgutil.iter_modules(sys.modules["bench.measures"].__path__):
        importlib.import_module(f"bench.measures.{benchmark.name}")
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    if plugins is not None:
        os.environ[PLUGINS] = plugins
    gc.collect()
    gc.freeze()


def _computed_s() -> float:
    """What this process and everything that it has reaped have computed, in seconds."""
    usages = (resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _read(output: int, tail: bytes) -> bytes:
    """The end of what was printed so far; never waits."""
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
        with contextlib.suppress(OSError):  # it may be gone
            os.chdir(folder)
        if not forks():
            for descriptor in descriptors[1:]:
                os.set_inheritable(descriptor, True)
            os.execv(sys.executable, [sys.executable, "-c", START.format("run"), task, *sys.path])
        # A process that is started from nothing has random generators of its own.
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
    """The exit code of a child (negative: its signal; None if the sweep is gone first), and the end of its output."""
    sources: list[Any] = [channel, output]
    with contextlib.suppress(AttributeError, OSError):  # not every system has such
        sources.append(os.pidfd_open(pid))
    tail = b""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        ready = wait(sources, None if sources[2:] else POLL_S)
        if output in ready:
            tail = _read(output, tail)
        if channel in ready:  # nothing is asked while a child runs: it was closed
            return None, tail
    for descriptor in sources[2:]:
        os.close(descriptor)
    kill_group(pid)  # before it is reaped, so that the number is still its own
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), tail


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
