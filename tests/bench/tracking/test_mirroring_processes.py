"""Processes that write one mirror of records: quiet, killed at any point, and several at once."""

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
from collections import Counter

import pytest
from synthetic_records import written
from test_tracking import a_record, runs_of

from bench.records.store import Store
from bench.tracking import mirror
from bench.tracking.mirror import Mirror

pytestmark = pytest.mark.commands


def run_python(code, *arguments):
    """Run a script without the variables that turn telemetry off by themselves."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "MLFLOW"))}
    for name in ("CI", "GITHUB_ACTIONS", "DO_NOT_TRACK"):
        environment.pop(name, None)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_it_is_quiet_and_stays_off_the_network(tmp_path):
    Store(tmp_path).write(a_record())
    code = """
import os, sys, time
from pathlib import Path
from bench.records.store import Store
from bench.tracking.mirror import Mirror

def watch(event, arguments):
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.connect"):
        os.write(1, f"{event} {arguments}\\n".encode())

sys.addaudithook(watch)
(record,) = Store(sys.argv[1]).load()
mirror = Mirror(Path(sys.argv[1]))
mirror.sync([record])
mirror.summary("sweep", [record], [], "table")
time.sleep(1)  # telemetry is sent from a thread
"""
    done = run_python(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def forked(task, *arguments):
    """A process that does this, with MLflow imported as it is here."""
    process = multiprocessing.get_context("fork").Process(target=task, args=arguments)
    process.start()
    return process


def test_four_processes_may_start_on_a_store_that_does_not_exist(tmp_path):
    shares = [[a_record(10 * share + index) for index in range(3)] for share in range(4)]
    processes = [forked(Mirror(tmp_path).sync, share) for share in shares]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 4
    found = Counter(run.data.tags["record_id"] for run in runs_of(tmp_path))
    assert found == Counter(record.record_id for share in shares for record in share)
    assert {run.info.status for run in runs_of(tmp_path)} == {"FINISHED"}


def sync_until(results_dir, number, statement):
    """Mirror, but be killed before the statement of this number among those that begin so."""
    from sqlalchemy import Engine, event

    numbers = itertools.count(1)

    @event.listens_for(Engine, "before_cursor_execute")
    def kill(connection, cursor, text, *_):
        if text.startswith(statement) and next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    mirror.BATCH = 10
    Mirror(results_dir).sync(Store(results_dir).load())


def test_kill_at_any_point_loses_and_doubles_nothing(tmp_path):
    records = [a_record(number) for number in range(30)]
    store = Store(written(tmp_path, records))

    def kill_at(number, statement=""):
        killed = forked(sync_until, tmp_path, number, statement)
        killed.join(120)
        assert killed.exitcode == -signal.SIGKILL

    for number in (100, 700):  # of the migration
        kill_at(number)
        assert not (tmp_path / "mlflow.db").exists()
    Mirror(tmp_path).create()
    mirrored = []
    for number, table in ((1, "runs"), (1, "latest_metrics"), (2, "tags"), (2, "metrics")):
        kill_at(number, f"INSERT INTO {table} ")
        mirrored.append(len(runs_of(tmp_path)))
    assert mirrored == [0, 0, 10, 20], "a batch is there wholly or not at all"
    Mirror(tmp_path).sync(store.load())
    runs = runs_of(tmp_path)
    assert Counter(run.data.tags["record_id"] for run in runs) == Counter(record.record_id for record in records)
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert all(len(run.data.metrics) == 5 and len(run.data.params) == 9 for run in runs)
    assert Mirror(tmp_path).sync(store.load()) == 0
