"""The parent of a sweep's children: it has imported torch and the suite, so that a child is ready at once.

It measures nothing, starts no thread and touches no GPU: a child that it forks is as new as one that is started from
nothing. It runs one child at a time, and when that has ended, kills and reaps whatever it left, also what had left its
session. It ends when whoever asks does, with everything below it.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import json
import os
import pkgutil
import random
import resource
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from bench.execution import family

# A notebook that measures nothing more need not keep a process; the next cell brings another.
IDLE_S = 120.0
PLUGINS = "ATTENTION_ZOO_PLUGINS"
PACKAGES = ("attention_zoo", "bench")
# What Linux takes in one message.
MOST_DESCRIPTORS = 253
# What the first call of a cell imports anyway.
LIBRARIES = ("torch.profiler", "torch.nn.attention", "safetensors.torch")
TASKS = ("bench.execution.child", "bench.execution.rehearsal")
# As in `python -m`, but for the search path, which may be one that only the asking process knows.
START = "import sys; sys.path[:] = sys.argv[2:]; from bench.execution import forkserver; forkserver.{}(sys.argv[1])"


def forks() -> bool:
    """Whether children are forked here, or started from nothing: macOS does not allow the first.

    ATTENTION_ZOO_START=spawn asks for the second, to compare or where a library minds.
    """
    return sys.platform == "linux" and os.environ.get("ATTENTION_ZOO_START") != "spawn"


def serve(descriptor: str) -> NoReturn:
    """Answer requests on a socket: the first line says what is loaded, then one `pid` and one `ended` for each.

    With `ended` comes `cpu_s`, what the child and all that it started have computed. A request is one line
    `{"task": module, "cwd": folder}` with the descriptors of the child's standard input, output and error, and of files
    that it keeps open.
    """
    channel = socket.socket(fileno=int(descriptor))
    family.adopt_orphans()
    loaded = _load() if forks() else {}
    ended = _told_of_children()
    _say(channel, loaded=loaded)
    while (request := _next_request(channel)) is not None:
        before = _computed()
        _say(channel, pid=(pid := _start(*request, (channel, *ended))))
        code = _wait(pid, channel, ended[0])
        family.end_descendants()
        if code is None:
            break
        _say(channel, ended=code, cpu_s=_computed() - before)
    os._exit(0)


def run(task: str) -> None:
    """Run a task in this process: the child that is not forked."""
    importlib.import_module(task).main()


def _load() -> dict[str, str]:
    """Import all that cells have in common; returns the hash of each file of it, by its name in its package.

    Plugins are left to the child: they may start threads, and they change while a notebook lives.
    """
    before = dict(_hashes())
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
    # What was edited meanwhile may have been loaded in either state: no hash is its hash.
    return {name: digest if before.get(name) == digest else "" for name, digest in _hashes()}


def _hashes() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for file in Path(folder).rglob("*.py"):
                name = file.relative_to(Path(folder).parent).as_posix()
                yield name, hashlib.sha256(file.read_bytes()).hexdigest()


def _told_of_children() -> tuple[socket.socket, socket.socket]:
    """A pair of sockets of which the first is readable when a child has ended."""
    ended, wake = socket.socketpair()
    ended.setblocking(False)
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake.fileno())
    return ended, wake


def _computed() -> float:
    """What this process and everything that it has reaped have computed, in seconds."""
    both = (resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def _say(channel: socket.socket, **message: Any) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        channel.sendall(json.dumps(message).encode() + b"\n")


def _next_request(channel: socket.socket) -> tuple[dict[str, str], list[int]] | None:
    if not select.select([channel], [], [], IDLE_S)[0]:
        return None
    with contextlib.suppress(ConnectionResetError):
        line, descriptors, _, _ = socket.recv_fds(channel, 65536, MOST_DESCRIPTORS)
        if line:
            return json.loads(line), descriptors
    return None


def _start(request: dict[str, str], descriptors: list[int], own: tuple[socket.socket, ...]) -> int:
    try:
        return (_fork if forks() else _spawn)(request, descriptors, own)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _spawn(request: dict[str, str], descriptors: list[int], own: tuple[socket.socket, ...]) -> int:
    stdin, stdout, stderr, *kept = descriptors
    process = subprocess.Popen(
        [sys.executable, "-c", START.format("run"), request["task"], *sys.path],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=request["cwd"],
        pass_fds=kept,
        start_new_session=True,
    )
    process.returncode = 0  # reaped elsewhere
    return process.pid


def _fork(request: dict[str, str], descriptors: list[int], own: tuple[socket.socket, ...]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for one in own:
            one.close()
        for number, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, number)
            os.close(descriptor)
        with contextlib.suppress(OSError):  # it may be gone
            os.chdir(request["cwd"])
        _draw_new_seeds()
        run(request["task"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _draw_new_seeds() -> None:
    """A process that is started from nothing has random generators of its own."""
    import numpy
    import torch

    random.seed()
    numpy.random.seed()
    torch.default_generator.seed()


def _wait(pid: int, channel: socket.socket, ended: socket.socket) -> int | None:
    """The exit code of a child (negative: its signal); None if whoever asked is gone first."""
    while True:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # before it is reaped, so that the number is still its own
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        readable, _, _ = select.select([channel, ended], [], [])
        if ended in readable:
            with contextlib.suppress(BlockingIOError):
                ended.recv(4096)
        if channel in readable:  # nothing is asked while a child runs: it was closed
            return None
