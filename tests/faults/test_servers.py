"""A tracking server that ends or hangs in the middle of a sweep costs one line; the next sweep tells it everything."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import psutil
import pytest
from command import TINY, bench, command, environment

from bench.records.store import Store

CELLS = 6
SWEEP = [word for word in TINY if "min_sample" not in word] + [
    "bench.min_sample_ms=300",
    f"seed=range({CELLS})",
    "tracking=mlflow",
]


@contextmanager
def mlflow_server(folder):
    """A real server over a store in the folder; yields its address and a way to signal all of its processes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    arguments = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port)]
    arguments += ["--backend-store-uri", f"sqlite:///{folder}/store.db", "--default-artifact-root", f"{folder}/files"]
    with open(os.devnull, "w") as nowhere:
        process = psutil.Popen(arguments, stdout=nowhere, stderr=nowhere)

    def send(number):
        for each in [process, *process.children(recursive=True)]:
            each.send_signal(number)

    try:
        deadline = time.monotonic() + 120
        while not answers(address):
            assert process.is_running() and time.monotonic() < deadline
            time.sleep(0.2)
        yield address, send
    finally:
        if process.is_running():
            send(signal.SIGKILL)
        process.wait()


def answers(address):
    try:
        return urllib.request.urlopen(f"{address}/health", timeout=5).status == 200
    except OSError:
        return False


def runs(address):
    """The number of runs that the server knows, asked by a client of its own."""
    code = (
        "import mlflow; client = mlflow.MlflowClient();"
        "ids = [e.experiment_id for e in client.search_experiments()];"
        "print(sum(run.info.status == 'FINISHED' for run in client.search_runs(ids)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(MLFLOW_TRACKING_URI=address),
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["ends", "hangs"])
def test_a_tracking_server_that_goes_away_costs_no_cell(number, tmp_path, promise):
    results = tmp_path / "runs"
    with mlflow_server(tmp_path) as (address, send):
        arguments = [*SWEEP, f"tracking.uri={address}", f"results_dir={results}"]
        sweep = subprocess.Popen(
            command(*arguments), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        while len(list(results.glob("records/*"))) < 2:
            assert sweep.poll() is None
            time.sleep(0.05)
        send(number)
        gone = time.monotonic()
        out, err = sweep.communicate(timeout=300)
        took = time.monotonic() - gone
    assert sweep.returncode == 0, err
    assert [record.status for record in Store(results).load()] == ["ok"] * CELLS
    assert out.count("| ok ") == CELLS and "http" not in out
    assert err.count("\nwarning: ") == 1 and "Traceback" not in err, err
    with mlflow_server(tmp_path) as (address, _):
        again = bench(*SWEEP, f"tracking.uri={address}", f"results_dir={results}")
        assert (again.returncode, "warning" in again.stderr) == (0, False), again.stderr
        assert runs(address) >= CELLS
    promise(
        "A tracking server that ends or hangs during a sweep is one warning, given up after seconds; no cell is lost,"
        " and the next sweep tells it all",
        servers=1,
        cells_lost=0,
        rest_of_the_sweep=took,
    )
