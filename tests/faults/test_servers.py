"""A tracking server that ends, hangs, dawdles or errs costs one line at most, no cell, and no time between cells."""

import signal
import time
from datetime import datetime
from itertools import pairwise

import pytest
from command import TINY, bench, start, wait_for
from tracking_server import answers, finished, in_front_of, mlflow_server

from bench.records.store import Store

pytestmark = pytest.mark.faults

CELLS = 6
SWEEP = [word for word in TINY if "min_sample" not in word] + [
    "bench.min_sample_ms=300",
    f"seed=range({CELLS})",
    "tracking=mlflow",
]
# Between the end of a cell and the start of the next.
LONGEST_GAP_S = 0.3


def longest_gap(results):
    """Seconds between cells, after all of them were measured well."""
    records = Store(results).load()
    assert [record.status for record in records] == ["ok"] * CELLS
    gaps = [datetime.fromisoformat(b.started) - datetime.fromisoformat(a.ended) for a, b in pairwise(records)]
    return max(gap.total_seconds() for gap in gaps)


def assert_all_is_told(results, folder):
    """The same command, with a server that is well, measures nothing and tells it everything."""
    with mlflow_server(folder) as (address, _):
        again = bench(*SWEEP, f"tracking.uri={address}", f"results_dir={results}")
        assert (again.returncode, "warning" in again.stderr) == (0, False), again.stderr
        assert finished(address, "cell", "summary") == (CELLS, 1)
    assert len(Store(results).load()) == CELLS


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["ends", "hangs"])
def test_a_tracking_server_that_goes_away_costs_no_cell(number, tmp_path, promise):
    """A tracking server that ends or hangs during a sweep is one warning, given up after seconds; no cell is lost or
    waits for it, and the same command tells it all
    """
    results = tmp_path / "runs"
    with mlflow_server(tmp_path) as (address, send):
        sweep = start(*SWEEP, f"tracking.uri={address}", f"results_dir={results}")
        wait_for(lambda: len(list(results.glob("records/*"))) >= 2)
        send(number)
        gone = time.monotonic()
        out, err = sweep.communicate(timeout=300)
        took = time.monotonic() - gone
    assert sweep.returncode == 0, err
    assert out.count("| ok ") == CELLS and "http" not in out
    assert err.count("\nwarning: ") == 1 and "Traceback" not in err, err
    gap = longest_gap(results)
    assert gap < LONGEST_GAP_S
    assert_all_is_told(results, tmp_path)
    promise(servers=1, cells_lost=0, longest_between_two_cells=gap, rest_of_the_sweep=took)


def hangs(request):
    time.sleep(300)


def dawdles(request):
    time.sleep(2)


def drips(request):
    """No read ever takes long, and no answer ever comes."""
    request.send_response(200)
    request.send_header("Content-Length", "1000000")
    request.end_headers()
    for _ in range(300):
        request.wfile.write(b" ")
        time.sleep(1)
    return True


@pytest.mark.parametrize("kind", [hangs, dawdles, drips])
def test_a_tracking_server_that_is_no_good_costs_no_cell(kind, tmp_path, promise):
    """One that never answers, takes 2 s for each answer, or answers without end, costs one line, or the slow one none;
    it is waited for when all is measured, a minute without an answer at most
    """
    results = tmp_path / "runs"
    with mlflow_server(tmp_path) as (address, _), in_front_of(address, kind) as front:
        began = time.monotonic()
        done = bench(*SWEEP, f"tracking.uri={front}", f"results_dir={results}", timeout=400)
        took = time.monotonic() - began
        if kind is dawdles:
            assert finished(address, "cell", "summary") == (CELLS, 1)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert done.stdout.count("| ok ") == CELLS
    assert done.stderr.count("warning: ") == (kind is not dawdles), done.stderr
    gap = longest_gap(results)
    assert gap < LONGEST_GAP_S
    assert_all_is_told(results, tmp_path)
    promise(servers=1, cells_lost=0, longest_between_two_cells=gap, whole_sweep=took)


def test_ctrl_c_waits_for_no_server(tmp_path, promise):
    """Ctrl-C waits for no tracking server"""
    results = tmp_path / "runs"
    with mlflow_server(tmp_path) as (address, _), in_front_of(address, hangs) as front:
        assert answers(address)
        sweep = start(*SWEEP, f"tracking.uri={front}", f"results_dir={results}")
        wait_for(lambda: list(results.glob("records/*.json")))
        sweep.send_signal(signal.SIGINT)
        sent = time.monotonic()
        _, err = sweep.communicate(timeout=60)
        took = time.monotonic() - sent
    assert sweep.returncode == 130 and "Traceback" not in err and "Exception" not in err, err
    assert took < 5
    promise(signals=1, ended_within=took)
