"""Children of the sweep: each in a session of its own, from a server that is ready before they are needed."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.execution import forkserver
from bench.execution.process_group import kill_tree
from bench.plan.sources import Source

GRACE_S = 5.0
# One for each GPU of a node.
MAX_SERVERS = 8
_servers = threading.local()  # one child at a time: each thread that sweeps has its own


class LostServer(RuntimeError):
    """The server ended, and with it what it knew of its child."""


class Child:
    """A process that a server started."""

    def __init__(self, server: Server, pid: int, stdin: int) -> None:
        self.pid = pid
        self.exit_code: int | None = None
        """Negative: the signal that ended it. None while it runs, and if nobody knows any more."""
        self.cpu_s: float | None = None
        """What it and all that it started have computed, when it has ended and somebody knows."""
        self.tail = ""
        """When it has ended: the end of what it printed, unless that went elsewhere."""
        self._server = server
        self._stdin: int | None = stdin

    def send_line(self, line: bytes) -> None:
        """Write a line to its standard input, which stays open as long as this process lives."""
        assert self._stdin is not None
        view = memoryview(line + b"\n")
        with contextlib.suppress(BrokenPipeError):
            while view:
                view = view[os.write(self._stdin, view) :]

    def wait(self, seconds: float) -> bool:
        """Wait for its end; returns whether it came.

        Raises:
            LostServer: the server was killed meanwhile.
        """
        if self.exit_code is None:
            message = self._server.receive(seconds)
            if message is not None:
                self.exit_code, self.cpu_s, self.tail = message["ended"], message["cpu_s"], message["tail"]
        return self.exit_code is not None

    def end(self) -> None:
        """End it and everything that it started: ask first, then kill its group and what has left it."""
        if self._stdin is None:
            return
        try:
            if self.exit_code is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGTERM)
                with contextlib.suppress(LostServer):
                    self.wait(GRACE_S)
        finally:  # also when the user interrupts the wait
            if self.exit_code is None:
                kill_tree(self.pid)
                with contextlib.suppress(LostServer):
                    if not self.wait(GRACE_S):  # the server does not answer
                        self._server.kill()
            os.close(self._stdin)
            self._stdin = None


class Server:
    """The sweep's side of `bench.execution.forkserver`, for one environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", forkserver.START.format("serve"), str(theirs.fileno()), *_search_path()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=dict(environment),
                cwd=_working_directory(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._unread = b""
        self._loaded: dict[str, str] = self._answer()["loaded"]

    def serves(self, sources: Iterable[Source]) -> bool:
        """Whether it lives and has loaded what these files hold now."""
        loaded = self._loaded
        return self._process.poll() is None and all(
            loaded.get(each.name, each.sha256) == each.sha256 for each in sources
        )

    def start(self, task: str, outputs: Sequence[int], inherited: Sequence[int]) -> Child:
        """Start a child with a pipe to its standard input; the rest as in the function `start`."""
        read, write = os.pipe()
        standard = [read, *outputs]
        request = json.dumps({"task": task, "cwd": _working_directory(), "standard": len(standard)}).encode()
        try:
            with contextlib.suppress(BrokenPipeError):
                socket.send_fds(self._channel, [request], [*standard, *inherited])
            return Child(self, self._answer()["pid"], write)
        except BaseException:
            os.close(write)
            raise
        finally:
            os.close(read)

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """The next message, or None when the time is over.

        Raises:
            LostServer: it has ended.
        """
        deadline = time.monotonic() + seconds
        while b"\n" not in self._unread:
            if not select.select([self._channel], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            received = b""
            with contextlib.suppress(ConnectionResetError):
                received = self._channel.recv(1 << 20)
            if not received:
                raise LostServer(self._exit_message())
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _answer(self) -> dict[str, Any]:
        while (message := self.receive(1.0)) is None:
            pass
        return message

    def close(self) -> None:
        """Let it end."""
        self._channel.close()
        self._process.wait()

    def kill(self) -> None:
        """End it and all that is below it."""
        kill_tree(self._process.pid)
        self._process.wait()

    def _exit_message(self) -> str:
        assert self._process.stderr is not None
        code = self._process.wait()
        lines = self._process.stderr.read().decode(errors="replace").strip().splitlines()
        return ": ".join([f"the process that starts cells ended with exit code {code}", *lines[-1:]])


def start(
    task: str,
    environment: Mapping[str, str],
    sources: Iterable[Source],
    *,
    outputs: Sequence[int] = (),
    inherited: Sequence[int] = (),
) -> Child:
    """Start a child that runs the module `task` with today's sources.

    Args:
        task: a module with a function `main`.
        environment: the child's.
        sources: files of code; a server that has loaded other versions of them is replaced.
        outputs: descriptors for its standard output and error, in place of what becomes `Child.tail`.
        inherited: further descriptors that it holds open.

    Raises:
        LostServer: the server for it does not come up.
    """
    servers: dict[str, Server] = _servers.__dict__.setdefault("all", {})
    key = json.dumps([sorted(environment.items()), _search_path(), _limits()])
    server = servers.pop(key, None)
    if server is not None and not server.serves(sources):
        server.close()
        server = None
    server = server or Server(environment)
    child = server.start(task, outputs, inherited)
    servers[key] = server  # one that was interrupted half-way is of no use
    while len(servers) > MAX_SERVERS:
        servers.pop(next(iter(servers))).close()
    return child


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # a mechanism may have removed it
        return "/"


def _search_path() -> list[str]:
    return [folder or _working_directory() for folder in sys.path]


def _limits() -> list[Any]:
    """What a child inherits beside its environment."""
    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [*limits, cores]
