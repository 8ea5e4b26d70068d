"""`python -m bench.tracking.ui`: serves the MLflow pages of a results folder, for this machine only (127.0.0.1)."""

import argparse
import ctypes
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from tqdm import tqdm

from bench.common import signals
from bench.common.errors import ConfigError, Parser, named_path, one_line
from bench.common.quiet import QUIET
from bench.records import own
from bench.records.disk import require_file
from bench.records.summary import Results
from bench.tracking import views
from bench.tracking.mirror import SHOWN, Mirror, TrackingError

# Not configurable: MLflow has no authentication.
HOST = "127.0.0.1"
ENVIRONMENT = QUIET | dict.fromkeys(("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "MLFLOW_ENABLE_REMOTE_ASSISTANT"), "false")
LOG = "mlflow-server.log"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class ServerError(RuntimeError):
    """The server did not start; the message is one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM; returns the exit status."""
    parser = Parser(prog="python -m bench.tracking.ui", description=__doc__)
    parser.add_argument("--results", type=named_path, default=Path("runs"), metavar="DIR", help="default: runs")
    parser.add_argument("--port", type=_port, default=5000, help="default: 5000")
    options = parser.parse_args(arguments)
    try:
        _require_free(options.port)
        if not options.results.is_dir():
            allowed = "a results folder, such as runs"
            raise ConfigError(f"--results={str(options.results)!r}: is no folder; must be {allowed}")
        own.claim(options.results, own.RESULTS, "--results")
        mirror = Mirror(options.results)
        experiment_id = mirror.create()
        store = Results(mirror.results_dir)
        if names := store.names():
            print(f"reading {len(names)} records of {mirror.results_dir}", flush=True)
            mirror.complete(store.read(tqdm(names, "reading", unit=" records", disable=len(names) < SHOWN or None)))
        with serving(mirror, options.port, views.address("comparison", experiment_id)) as server:
            print(f"{'comparison:':12}http://{HOST}:{options.port}")
            for name in ("runs", "sweeps"):
                print(f"{name + ':':12}http://{HOST}:{options.port}{views.address(name, experiment_id)}")
            print("Ctrl-C stops the server.", flush=True)
            status = server.wait()
            raise ServerError(f"mlflow server: ended by itself with exit status {status}; see {LOG}")
    except KeyboardInterrupt:
        return 0
    except (ConfigError, OSError, ServerError, TrackingError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


@contextmanager
def serving(mirror: Mirror, port: int, landing: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server, wait until it answers (its bare address opens `landing`), or raise `ServerError`.

    Afterwards none of its processes remains, and this process ignores signals.
    """
    command = [sys.executable, "-m", "bench.tracking.front", mirror.uri, mirror.artifacts_uri, HOST, str(port), landing]
    require_file(mirror.results_dir / LOG)
    with open(mirror.results_dir / LOG, "wb") as output:
        server = subprocess.Popen(
            command,
            env=os.environ | ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_this_process,
        )
    try:
        _wait_until_healthy(server, port)
        yield server
    finally:
        _end_group(server)


def _end_with_this_process() -> None:
    """On Linux, let the server end when this process ends, even by `kill -9`."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number from 1 to 65535")
    return int(text)


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ServerError(f"port={port}: {error.strerror}; choose another with --port") from None


def _wait_until_healthy(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise ServerError(f"mlflow server: did not start, exit status {server.returncode}; see {LOG}")
        with suppress(OSError), closing(http.client.HTTPConnection(HOST, port, timeout=5)) as connection:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.2)
    raise ServerError(f"mlflow server: no answer within {START_TIMEOUT_S:.0f} s; see {LOG}")


def _end_group(server: subprocess.Popen[bytes]) -> None:
    """End all processes of the server's session, since its workers would outlive the first one."""
    signals.answer(signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + STOP_TIMEOUT_S
        with suppress(ProcessLookupError):  # all processes have ended
            os.killpg(server.pid, number)
            while time.monotonic() < deadline:
                server.poll()  # reap it, or it would remain as a zombie
                os.killpg(server.pid, 0)
                time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(signals.run(main))
