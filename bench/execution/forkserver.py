"""The parent of a sweep's children: it has imported torch and the suite, so that a child is ready at once.

It measures nothing, starts no thread and touches no GPU: a child that it forks is as new as one that is started from
nothing. It runs one child at a time. When that has ended, it kills and reaps what the child has left, also what has
left the child's session. It ends when the sweep does, with everything below it.

`multiprocessing.forkserver` is no replacement: it serves one environment for a whole process, and leaves a child's own
children alive.
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
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from bench.common.errors import ConfigError, bounded
from bench.execution import process_group

# A notebook that measures nothing more need not keep a process; the next cell brings another.
IDLE_S = 120.0
PLUGINS = "ATTENTION_ZOO_PLUGINS"
PACKAGES = ("attention_zoo", "bench")
# What Linux takes in one message.
MAX_DESCRIPTORS = 253
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


def forks() -> bool:
    """Whether children are forked here, or started from nothing: macOS does not allow the first.

    ATTENTION_ZOO_START=spawn asks for the second, to compare or where a library minds.

    Raises:
        ConfigError: it asks for something else.
    """
    method = os.environ.get("ATTENTION_ZOO_START", "fork")
    if method not in ("fork", "spawn"):
        raise ConfigError(f"ATTENTION_ZOO_START={bounded(method)!r}: must be fork or spawn")
    return sys.platform == "linux" and method == "fork"


def serve(descriptor: str) -> NoReturn:
    """Answer requests on a socket: the first line says what is loaded, then one `pid` and one `ended` for each.

    A request is one line `{"task": module, "cwd": folder, "standard": n}` with the descriptors of the child's first n
    standard files, and of files that it keeps open. The other standard files are one pipe; the end of what is written
    there returns with `ended`, as does `cpu_s`, what the child and all that it started have computed.
    """
    channel = socket.socket(fileno=int(descriptor))
    process_group.become_subreaper()
    _send(channel, loaded=_load() if forks() else {})
    while (request := _next_request(channel)) is not None:
        before, output = _computed_s(), _Output()
        pid = _start(*request, output, channel)
        _send(channel, pid=pid)
        code = _wait(pid, channel, output)
        process_group.kill_descendants()
        if code is None:
            break
        _send(channel, ended=code, tail=output.tail(), cpu_s=_computed_s() - before)
        output.close()
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


class _Output:
    """A pipe for what a child prints. Its writing end stays open here too, so that reading it never comes to an end."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._tail = b""

    def fileno(self) -> int:
        return self._read_end

    def read(self) -> None:
        """Take what is there; never waits."""
        with contextlib.suppress(BlockingIOError):
            self._tail = (self._tail + os.read(self._read_end, PIPE_BYTES))[-TAIL_BYTES:]

    def tail(self) -> str:
        self.read()
        return self._tail.decode(errors="replace")

    def close(self) -> None:
        os.close(self._read_end)
        os.close(self.write_end)


def _computed_s() -> float:
    """What this process and everything that it has reaped have computed, in seconds."""
    usages = (resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _send(channel: socket.socket, **message: Any) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        channel.sendall(json.dumps(message).encode() + b"\n")


def _next_request(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    if not select.select([channel], [], [], IDLE_S)[0]:
        return None
    with contextlib.suppress(ConnectionResetError):
        line, descriptors, _, _ = socket.recv_fds(channel, 65536, MAX_DESCRIPTORS)
        if line:
            return json.loads(line), descriptors
    return None


def _start(request: dict[str, Any], descriptors: list[int], output: _Output, channel: socket.socket) -> int:
    count = request["standard"]
    standard = [*descriptors[:count], *[output.write_end] * (3 - count)]
    try:
        if not forks():
            return _spawn(request, standard, descriptors[count:])
        if pid := os.fork():
            return pid
        _run_fork(request, standard, [*descriptors[:count], channel.detach(), output.fileno(), output.write_end])
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _spawn(request: dict[str, Any], standard: list[int], inherited: list[int]) -> int:
    stdin, stdout, stderr = standard
    process = subprocess.Popen(
        [sys.executable, "-c", START.format("run"), request["task"], *sys.path],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=request["cwd"],
        pass_fds=inherited,
        start_new_session=True,
    )
    process.returncode = 0  # reaped elsewhere
    return process.pid


def _run_fork(request: dict[str, Any], standard: list[int], unneeded: list[int]) -> NoReturn:
    """The child that is forked."""
    code = 1
    try:
        os.setsid()
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
        for descriptor in unneeded:
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


def _wait(pid: int, channel: socket.socket, output: _Output) -> int | None:
    """The exit code of a child (negative: its signal); None if the sweep is gone first."""
    with _end_of(pid) as end:
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            sources: list[socket.socket | _Output | int] = [channel, output, *end]
            readable, _, _ = select.select(sources, [], [], None if end else POLL_S)
            if output in readable:
                output.read()
            if channel in readable:  # nothing is asked while a child runs: it was closed
                return None
    process_group.kill_group(pid)  # before it is reaped, so that the number is still its own
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextlib.contextmanager
def _end_of(pid: int) -> Iterator[list[int]]:
    """A descriptor that is readable when a process has ended, where the system has such (Linux)."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        yield []
        return
    try:
        yield [descriptor]
    finally:
        os.close(descriptor)
