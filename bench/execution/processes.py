"""Child processes of a sweep, each in its own session, started by a server that has already imported everything."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import send_handle
from typing import Any

import psutil

from bench.common.quiet import QUIET
from bench.execution import forkserver
from bench.plan.sources import Source

GRACE_S = 5.0
# Variables that nothing reads before a cell is measured: a server that has imported everything may still get them.
READ_LATER = frozenset({*QUIET, "CUDA_VISIBLE_DEVICES", "HYDRA_FULL_ERROR"})
# At most one; whichever thread starts the first server takes it.
_prepared: list[Fork] = []
_servers = threading.local()  # per thread, since a server runs one child at a time


class LostServer(RuntimeError):
    """The server ended; what became of its child is unknown."""


@dataclass(eq=False)
class Child:
    """A process that a server started.

    Attributes:
        channel: a socket; its other end is the child's standard input, on which the child may also answer.
        exit_code: negative: the signal that ended it; None while it runs, or if unknown.
        cpu_s: CPU time of the child and all that it started, once it has ended; None if unknown.
        tail: the end of its output, once it has ended.
    """

    server: Server
    pid: int
    channel: socket.socket
    exit_code: int | None = None
    cpu_s: float | None = None
    tail: str = ""

    def send_line(self, line: bytes) -> None:
        """Write a line to the child's standard input, which stays open as long as this process lives."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.channel.sendall(line + b"\n")

    def wait(self, seconds: float) -> bool:
        """Wait for the child's end; returns whether it ended in time. Raises `LostServer` if the server was killed."""
        if self.exit_code is None and (message := self.server.receive(seconds)) is not None:
            self.exit_code, self.cpu_s, self.tail = message
        return self.exit_code is not None

    def end(self) -> None:
        """End the child and everything that it started: SIGTERM first, then kill its group and other descendants."""
        if self.channel.fileno() == -1:
            return
        try:
            if self.exit_code is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGTERM)
                with contextlib.suppress(LostServer):
                    self.wait(GRACE_S)
        finally:  # also when the user interrupts the wait
            if self.exit_code is None:
                forkserver.kill_tree(self.pid)
                with contextlib.suppress(LostServer):
                    if not self.wait(GRACE_S):
                        self.server.kill()
            self.channel.close()


class Fork:
    """A copy of this process that becomes a server, with what `Server` uses of a `subprocess.Popen`."""

    def __init__(self) -> None:
        self.channel, theirs = multiprocessing.Pipe()
        self._state, self._environment = _state(), dict(os.environ)
        stderr, written = os.pipe()
        sys.stdout.flush()  # what is printed but not written yet would be written twice
        self.pid = os.fork()
        if self.pid == 0:
            self.channel.close()
            os.close(stderr)
            forkserver.serve_in_fork(theirs, written)
        theirs.close()
        os.close(written)
        self.stderr = os.fdopen(stderr, "rb")
        self._exit_code: int | None = None

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether a new process with this environment would have loaded the same, in the same way."""
        names = {*environment, *self._environment} - READ_LATER
        alike = all(environment.get(name) == self._environment.get(name) for name in names)
        return alike and _state() == self._state

    def discard(self) -> None:
        """Let it end without having served."""
        self.channel.close()
        self.wait()
        self.stderr.close()

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._waited(os.WNOHANG)

    def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        code = self._waited(0)
        assert code is not None
        return code

    def _waited(self, options: int) -> int | None:
        if self._exit_code is None and (ended := os.waitpid(self.pid, options))[0]:
            self._exit_code = os.waitstatus_to_exitcode(ended[1])
        return self._exit_code


class Server:
    """A client of a `bench.execution.forkserver` process, which has one environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process: Fork | subprocess.Popen[bytes]
        fork = _prepared.pop() if _prepared else None
        if fork is not None and not fork.fits(environment):
            fork.discard()
            fork = None
        if fork is None:
            self._started, (self._channel, theirs) = time.time(), multiprocessing.Pipe()
            with theirs:
                self._process = _start_new(theirs.fileno(), environment)
        else:  # its code is as old as this process
            self._started, self._channel, self._process = psutil.Process().create_time(), fork.channel, fork
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                fork.channel.send(dict(environment))
        self.receive(None)

    def serves(self, sources: Iterable[Source]) -> bool:
        """Whether the server runs, and none of these files has changed since it was started."""
        try:
            changed = max((os.stat(source.path).st_ctime for source in sources), default=0.0)
        except OSError:
            return False
        return self._process.poll() is None and changed < self._started

    def start(self, task: str, inherited: Sequence[int]) -> Child:
        """Start a child, as the function `start` does."""
        ours, theirs = socket.socketpair()
        with theirs:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._channel.send((task, _working_directory(), 1 + len(inherited)))
                for descriptor in (theirs.fileno(), *inherited):
                    send_handle(self._channel, descriptor, None)
            return Child(self, self.receive(None), ours)

    def receive(self, seconds: float | None) -> Any:
        """The next message, or None after `seconds`; raises `LostServer` if the server has ended."""
        try:
            return self._channel.recv() if self._channel.poll(seconds) else None
        except (EOFError, ConnectionResetError):
            raise LostServer(self._exit_message()) from None

    def close(self) -> None:
        """Let the server end, and wait for it."""
        self._channel.close()
        self._process.wait()

    def kill(self) -> None:
        """Kill a server that does not answer, and all its descendants."""
        forkserver.kill_tree(self._process.pid)
        self._process.wait()

    def _exit_message(self) -> str:
        assert self._process.stderr is not None
        code = self._process.wait()
        lines = self._process.stderr.read().decode(errors="replace").strip().splitlines()
        return ": ".join([f"the process that starts cells ended with exit code {code}", *lines[-1:]])


def prepare() -> None:
    """Fork what becomes the first server, so that it need not import again what this process has imported.

    For a process that has started no thread, used no GPU and imported no plugin.
    """
    if forkserver.forks() and forkserver.PLUGINS not in os.environ and threading.active_count() == 1:
        with contextlib.suppress(OSError):  # too many processes, or too little memory: the server is started anew
            _prepared.append(Fork())


def _start_new(channel: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", forkserver.START.format("serve"), str(channel), *_search_path()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=dict(environment),
        cwd=_working_directory(),
        pass_fds=[channel],
        start_new_session=True,
    )


def start(
    task: str, environment: Mapping[str, str], sources: Iterable[Source], *, inherited: Sequence[int] = ()
) -> Child:
    """Start a child that runs `main` of the module `task`; raises `LostServer` if no server starts.

    Args:
        task: the module's name.
        environment: the child's environment variables.
        sources: code files; a server that was started before one of them changed is replaced.
        inherited: descriptors that the child keeps open, besides its standard files.
    """
    servers: dict[str, Server] = _servers.__dict__.setdefault("all", {})
    key = json.dumps([sorted(environment.items()), _state()])
    server = servers.pop(key, None)
    if server is not None and not server.serves(sources):
        server.close()
        server = None
    server = server or Server(environment)
    child = server.start(task, inherited)
    servers[key] = server  # not stored if interrupted half-way
    return child


def _state() -> dict[str, Any]:
    """What a server has of the process that starts it, besides an environment."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return {"search path": _search_path(), "cores": cores}


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # a mechanism may have removed the folder
        return "/"


def _search_path() -> list[str]:
    return [folder or _working_directory() for folder in sys.path]
