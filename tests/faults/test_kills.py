"""Kills at random moments: of a sweep, of what it started, by `kill -9` and by signals that a program may answer."""

import random
import signal
import time

import pytest
from aftermath import Sweep, kill_one, lines

pytestmark = pytest.mark.faults

KILLS = 50
BATCHES = 10
# Python's own start, in which nobody can answer a signal.
PYTHON_STARTS_S = 0.3


def undisturbed_seconds(folder, **settings):
    """How long the sweep takes when nobody disturbs it."""
    began = time.monotonic()
    assert Sweep(folder, **settings).run().returncode == 0
    return time.monotonic() - began


def sleep_until(moment, process):
    """Wait for a moment of the monotonic clock or the end of a process; returns whether the moment came first."""
    while time.monotonic() < moment and process.poll() is None:
        time.sleep(0.005)
    return process.poll() is None


@pytest.mark.parametrize("batch", range(BATCHES))
def test_kill_9_at_any_moment_loses_nothing_and_runs_nothing_twice(tmp_path, batch, promise):
    """`kill -9` of a sweep at a random moment (uniform over its duration), while its mechanisms run processes of their
    own (a child, one in a session of its own, a daemon), loses nothing; the same command goes on
    """
    rng = random.Random(batch)
    # Five with MLflow, which makes a sweep long.
    settings = {"cells": 2, "tracking": "mlflow"} if batch == 0 else {"cells": 3, "attention": "odd_family"}
    duration, orphaned_for = undisturbed_seconds(tmp_path / "undisturbed", **settings), 0.0
    for kill in range(KILLS // BATCHES):
        sweep = Sweep(tmp_path / str(kill), **settings)
        process = sweep.start()
        sleep_until(time.monotonic() + rng.uniform(0, duration), process)
        process.kill()
        process.communicate()
        orphaned_for = max(orphaned_for, sweep.wait_for_orphans())
        before = {record.record_id: record for record in sweep.records()}
        sweep.assert_goes_on()
        after = {record.record_id: record for record in sweep.records()}
        assert before.items() <= after.items() and len(after) == sweep.cells
        if batch == 0:
            assert sweep.mirrored() == dict.fromkeys(after, "FINISHED")
    none = "lost torn measured_twice orphans left_over"
    promise(kills=KILLS // BATCHES, all_processes_gone_within=orphaned_for, none=none)


@pytest.mark.parametrize("batch", range(2))
def test_kill_9_of_any_process_below_a_sweep_costs_one_cell_at_most(tmp_path, batch, promise):
    """`kill -9` of a random process that a sweep has started costs one cell at most, which is measured again"""
    rng, kills = random.Random(10 + batch), 6
    settings = {"cells": 3, "attention": "odd_family"}
    duration, killed = undisturbed_seconds(tmp_path / "undisturbed", **settings), 0
    for kill in range(kills):
        sweep = Sweep(tmp_path / str(kill), **settings)
        process = sweep.start()
        sleep_until(time.monotonic() + rng.uniform(0.3, 1) * duration, process)
        killed += kill_one(rng, process, lambda head: head.children(recursive=True))
        _, stderr = process.communicate(timeout=100)
        assert process.returncode in (0, 1) and "Traceback" not in stderr, stderr
        records = sweep.records()
        assert len(records) == 3 and [record.status for record in records].count("ok") >= 2, stderr
        sweep.wait_for_orphans()
        sweep.assert_goes_on()
    promise(kills=killed, none="other_cells_lost orphans")


def assert_answered(process, stdout, stderr):
    """What a shell calls 130, and one line, or the table of a sweep that was done."""
    said = lines(stderr)
    assert "Traceback" not in stderr and "Exception ignored" not in stderr, stderr
    assert said and (said[-1].startswith("interrupted: ") or stdout.startswith("| status")), stderr
    # Python itself answers a signal that comes while it ends.
    assert process.returncode == 130 or (process.returncode <= 0 and stdout), (process.returncode, stderr)


def interrupt(sweep, moments, number):
    """Start a sweep and send it a signal at each of the moments (s after its start).

    Returns how long it took to end; None if it had ended before.
    """
    process, began = sweep.start(), time.monotonic()
    in_time = [sleep_until(began + moment, process) and process.send_signal(number) is None for moment in moments]
    sent = time.monotonic()
    stdout, stderr = process.communicate(timeout=60)
    took = time.monotonic() - sent
    if not in_time[0]:
        return None
    assert_answered(process, stdout, stderr)
    sweep.wait_for_orphans()
    return took


SIGNALS = {
    "SIGINT": (signal.SIGINT, None, 8, 0.0),
    "SIGINT during imports": (signal.SIGINT, 2.0, 8, 0.0),
    "SIGINT twice": (signal.SIGINT, None, 8, 0.5),
    "SIGTERM": (signal.SIGTERM, None, 6, 0.0),
    "SIGHUP": (signal.SIGHUP, None, 4, 0.0),
}
"""The signal, seconds in which it comes (None: those of the sweep), how often, and how soon it comes once more."""


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_at_any_moment_ends_a_sweep_in_one_line(tmp_path, name, promise):
    """Ctrl-C, once or twice, SIGTERM and a closing terminal end a sweep with one line and exit code 130, from its first
    half second on; the same command goes on
    """
    number, until, times, again_within = SIGNALS[name]
    rng, settings = random.Random(name), {"cells": 3, "attention": "odd_family"}
    until = until or undisturbed_seconds(tmp_path / "undisturbed", **settings)
    took = []
    for each in range(times):
        first = rng.uniform(PYTHON_STARTS_S, until)
        moments = [first, first + rng.uniform(0.01, again_within)] if again_within else [first]
        took.append(interrupt(Sweep(tmp_path / str(each), **settings), moments, number))
    for each in range(times):
        sweep = Sweep(tmp_path / str(each), **settings)
        sweep.records()
        if each % 3 == 0:
            sweep.assert_goes_on()
    ended = [each for each in took if each is not None]
    promise(signals=len(ended), ended_within=max(ended, default=0.0), none="tracebacks orphans")
