"""A results folder that is gone for a while in the middle of a sweep, and comes back."""

import shutil
import signal
import time

import pytest
from aftermath import Sweep

from bench.records.patience import PATIENCE_S

pytestmark = pytest.mark.faults

CELLS = 30


def ended(sweep):
    """How many cells have a record."""
    return len(list((sweep.results / "records").glob("*.json")))


def started(folder, after=3, **settings):
    """A sweep that is in its midst."""
    sweep = Sweep(folder, cells=CELLS, **settings)
    process = sweep.start()
    while ended(sweep) < after:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    return sweep, process


@pytest.mark.parametrize("way", ["renamed", "unmounted"])
@pytest.mark.parametrize("seconds, tracking", [(5, "none"), (5, "mlflow"), (60, "none")])
def test_a_folder_that_is_away_for_a_minute_is_waited_for(tmp_path, way, seconds, tracking, promise):
    sweep, process = started(tmp_path, tracking=tracking)
    away = tmp_path / "away"
    sweep.results.rename(away)
    if way == "unmounted":  # a place to mount it is left
        sweep.results.mkdir()
    time.sleep(seconds)
    if way == "unmounted":
        left = [path for path in sweep.results.rglob("*") if path.is_file()]
        assert not [path for path in left if path.suffix in (".json", ".db")], left
        shutil.rmtree(sweep.results)
    assert not sweep.results.exists(), "another folder was made in its place"
    before = len(list((away / "records").glob("*.json")))
    assert before < CELLS and process.poll() is None
    away.rename(sweep.results)
    _, stderr = process.communicate(timeout=200)
    assert process.returncode == 0 and "Traceback" not in stderr, stderr
    assert f"waiting for it, {PATIENCE_S:.0f} s at most" in stderr
    assert len(sweep.ok()) == CELLS and set(sweep.ok().values()) == {1} and len(sweep.records()) == CELLS
    sweep.assert_goes_on()
    promise(
        "A results folder that is gone for a minute, renamed or unmounted, is waited for, at most two minutes: no cell"
        " is lost or measured twice, and no other folder is made in its place",
        times=1,
        cells=CELLS,
        lost=0,
        measured_twice=0,
        away_for=float(seconds),
    )


def test_ctrl_c_ends_the_wait_at_once(tmp_path, promise):
    sweep, process = started(tmp_path)
    sweep.results.rename(tmp_path / "away")
    while "waiting for it" not in process.stderr.readline():
        assert process.poll() is None
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    took = time.monotonic() - began
    assert process.returncode == 130 and "Traceback" not in stderr, stderr
    assert not sweep.results.exists()
    (tmp_path / "away").rename(sweep.results)
    sweep.assert_goes_on()
    promise("Ctrl-C ends this wait at once, and the same command goes on", times=1, lost=0, ended_within=took)
