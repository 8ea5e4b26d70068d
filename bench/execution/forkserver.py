"""The parent of a sweep's children: it has imported torch and the suite, so that a child is ready at once.

It measures nothing, starts no thread and touches no GPU: a child that it forks is as new as one that is started from
nothing. It runs one child at a time, and when that has ended, kills and reaps whatever it left, also what had left its
session. It ends when whoever asks does, with everything below it. Meanwhile it takes what the child prints, and counts
what the child starts: one that starts processes without end is killed.
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
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bench.common.errors import ConfigError, bounded
from bench.execution import family
from bench.execution.output import Output

# A notebook that measures nothing more need not keep a process; the next cell brings another.
IDLE_S = 120.0
PLUGINS = "ATTENTION_ZOO_PLUGINS"
PACKAGES = ("attention_zoo", "bench")
# What Linux takes in one message.
MOST_DESCRIPTORS = 253
COUNT_EVERY_S = 0.1
# What the first call of a cell imports anyway.
LIBRARIES = ("torch.profiler", "torch.nn.attention", "safetensors.torch")
TASKS = ("bench.execution.child", "bench.execution.rehearsal")
# As in `python -m`, but for the search path, which may be one that only the asking process knows.
START = "import sys; sys.path[:] = sys.argv[2:]; from bench.execution import forkserver; forkserver.{}(sys.argv[1])"


def forks() -> bool:
    """Whether children are forked here, or started from nothing: macOS does not allow the first.

    ATTENTION_ZOO_START=spawn asks for the second, to compare or where a library minds.

    Raises:
        ConfigError: it asks for something else.
    """
    asked = os.environ.get("ATTENTION_ZOO_START", "fork")
    if asked not in ("fork", "spawn"):
        raise ConfigError(f"ATTENTION_ZOO_START={bounded(asked)!r}: must be fork or spawn")
    return sys.platform == "linux" and asked == "fork"


def serve(descriptor: str) -> NoReturn:
    """Answer requests on a socket: the first line says what is loaded, then one `pid` and one `ended` for each.

    A request is one line `{"task": module, "cwd": folder, "standard": n}` with the descriptors of the child's first n
    standard files, and of files that it keeps open. Standard files that are not given are one, of which the end is
    returned with `ended`, as is `cpu_s`, what the child and all that it started have computed.
    """
    channel = socket.socket(fileno=int(descriptor))
    family.adopt_orphans()
    loaded = _load() if forks() else {}
    ended = _told_of_children()
    _say(channel, loaded=loaded)
    while (request := _next_request(channel)) is not None:
        before, output = _computed(), Output()
        _say(channel, pid=(pid := _start(*request, output, (channel, *ended, output))))
        code, reason = _wait(pid, channel, ended[0], output)
        family.end_descendants()
        if code is None:
            break
        _say(channel, ended=code, reason=reason, tail=output.tail(), cpu_s=_computed() - before)
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


def _next_request(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    if not select.select([channel], [], [], IDLE_S)[0]:
        return None
    with contextlib.suppress(ConnectionResetError):
        line, descriptors, _, _ = socket.recv_fds(channel, 65536, MOST_DESCRIPTORS)
        if line:
            return json.loads(line), descriptors
    return None


def _start(
    request: dict[str, Any], descriptors: list[int], output: Output, own: Sequence[socket.socket | Output]
) -> int:
    given = request["standard"]
    standard = [*descriptors[:given], *[output.write_end] * (3 - given)]
    try:
        return (_fork if forks() else _spawn)(request, standard, descriptors[given:], own)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _spawn(request: dict[str, Any], standard: list[int], kept: list[int], own: Sequence[socket.socket | Output]) -> int:
    stdin, stdout, stderr = standard
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


def _fork(request: dict[str, Any], standard: list[int], kept: list[int], own: Sequence[socket.socket | Output]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
        for descriptor in standard[: request["standard"]]:
            os.close(descriptor)
        for one in own:
            one.close()
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


def _wait(pid: int, channel: socket.socket, ended: socket.socket, output: Output) -> tuple[int | None, str | None]:
    """The exit code of a child (negative: its signal), and why it was killed here.

    The code is None if whoever asked is gone first.
    """
    crowd, count_at = family.Crowd(pid), 0.0
    while True:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            family.kill_group(pid)  # before it is reaped, so that the number is still its own
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), None
        sources: list[socket.socket | Output] = [channel, ended, output]
        readable, _, _ = select.select(sources, [], [], COUNT_EVERY_S)
        if ended in readable:
            with contextlib.suppress(BlockingIOError):
                ended.recv(4096)
        if output in readable:
            output.take()
        if channel in readable:  # nothing is asked while a child runs: it was closed
            return None, None
        if time.monotonic() >= count_at:
            count_at = time.monotonic() + COUNT_EVERY_S
            if (reason := crowd.ended()) is not None:
                return -signal.SIGKILL, reason
