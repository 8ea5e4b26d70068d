"""A clock that is set back in the middle of a sweep, as after a suspension or by a time server."""

import mmap
import platform
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
from aftermath import Sweep
from command import environment

from bench.records.store import Store, latest

pytestmark = [
    pytest.mark.faults,
    pytest.mark.needs("cc"),
    pytest.mark.skipif(platform.system() != "Linux", reason="clocks are set by means of Linux"),
]

SHIM = Path(__file__).with_name("clock.c")
HOUR = 3600
CELLS = 6


class Clock:
    """The time of day of the processes that are started with its environment."""

    def __init__(self, folder):
        library, file = folder / "clock.so", folder / "offset"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(SHIM), "-o", str(library), "-ldl"], check=True)
        file.write_bytes(bytes(8))
        with open(file, "r+b") as opened:
            self._offset = mmap.mmap(opened.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(file)}

    def jump(self, seconds):
        """Set it forward, or back."""
        before = int.from_bytes(self._offset[:], "little", signed=True)
        self._offset[:] = (before + seconds).to_bytes(8, "little", signed=True)


@pytest.fixture
def clock(tmp_path):
    clock = Clock(tmp_path)
    clock.jump(-HOUR)
    code = "import time; print(time.time())"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment(**clock.environment)
    )
    assert abs(float(told.stdout) - (time.time() - HOUR)) < 60, "the shim does not set the clock"
    return clock


def jump_after(cells, sweep, clock, seconds, *more):
    """Run a sweep, and set the clock when that many cells have ended."""
    process = sweep.start(*more, **clock.environment)
    said = []
    while sum(line.split()[:1] == ["ok"] for line in said) < cells and process.poll() is None:
        said.append(process.stderr.readline().rpartition("\r")[2])
    clock.jump(seconds)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0 and "Traceback" not in stderr, (said, stderr)


@pytest.mark.parametrize("tracking", ["none", "mlflow"])
def test_a_clock_that_is_set_back_costs_nothing(tmp_path, clock, tracking, promise):
    sweep = Sweep(tmp_path / "sweep", cells=CELLS, tracking=tracking)
    jump_after(2, sweep, clock, -HOUR)
    first = {record.record_id for record in sweep.records()}
    assert len(sweep.ok()) == CELLS and set(sweep.ok().values()) == {1}
    # What is measured afresh stands, though it ended before; and a second command does not measure it again.
    jump_after(1, sweep, clock, -HOUR, "rerun=all")
    records = sweep.records()
    assert len(records) == 2 * CELLS and set(sweep.ok().values()) == {2}
    store = Store(sweep.results)
    standing = latest(store.load())
    assert len(standing) == CELLS and first.isdisjoint(record.record_id for record in standing.values())
    assert all([record.attempt for record in store.of_cell(cell_id)] == [1, 2] for cell_id in standing)
    negative = [record for record in records if lasted(record) < 0 or record.duration_s < 0]
    assert sweep.run(**clock.environment).returncode == 0
    assert len(sweep.records()) == 2 * CELLS and negative == []
    if tracking == "mlflow":
        assert sweep.mirrored() == dict.fromkeys((record.record_id for record in records), "FINISHED")
    promise(
        "A clock that is set back an hour in the middle of a sweep, and of one that measures afresh, costs no cell: the"
        " later attempt stands, none is measured twice, no duration is negative",
        jumps=2,
        cells=2 * CELLS,
        lost=0,
        measured_twice=0,
        negative_durations=0,
    )


def test_measuring_afresh_goes_on_after_the_clock_was_set_back(tmp_path, clock, promise):
    sweep = Sweep(tmp_path / "sweep", cells=3)
    assert sweep.run(**clock.environment).returncode == 0
    process = sweep.start("rerun=all", **clock.environment)
    while "ok" not in process.stderr.readline():
        assert process.poll() is None
    clock.jump(-HOUR)
    process.terminate()
    process.communicate(timeout=60)
    done = len(sweep.records())
    assert sweep.run("rerun=all", **clock.environment).returncode == 0
    finished = [record for record in sweep.records() if record.status == "ok"]
    assert done > 3 and len(finished) == 6, (done, len(finished))
    promise("The same, interrupted meanwhile and repeated", jumps=1, lost=0, measured_twice=0)


def lasted(record):
    return (datetime.fromisoformat(record.ended) - datetime.fromisoformat(record.started)).total_seconds()
