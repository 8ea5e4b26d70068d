"""Mechanisms that print or hang without end: their cell's own limits hold them."""

import contextlib
import time

import pytest
from aftermath import Sweep
from misbehaving import STUBBORN

from bench.execution.processes import GRACE_S

pytestmark = pytest.mark.faults


def between_good_ones(tmp_path, kind, *overrides, **settings):
    return Sweep(tmp_path, *overrides, cells=3, attention=f"odd_fine_0,odd_{kind},odd_fine_1", **settings)


def watched(sweep, look, every_s=0.05):
    """Run a sweep; gives the largest of what is seen meanwhile, and what it said."""
    process, largest = sweep.start(), 0
    while process.poll() is None:
        largest = max(largest, look(process))
        time.sleep(every_s)
    _, stderr = process.communicate(timeout=100)
    assert "Traceback" not in stderr, stderr
    return largest, stderr


def the_odd_one(sweep, kind):
    """Its record, when its neighbours are as they should be."""
    records = {record.config["label"]: record for record in sweep.records()}
    assert len(records) == 3 and records["odd_fine_0"].status == records["odd_fine_1"].status == "ok", records
    assert sweep.leftovers() == []
    return records[f"odd_{kind}"]


FLOODS = {"print_3_gigabytes": "ok", "print_without_end": "timeout", "print_without_end_from_a_daemon": "ok"}
KEPT_BYTES = 4000
TIMEOUT_S, FLOOD_TIMEOUT_S = 6, 20


@pytest.mark.parametrize("kind", FLOODS)
def test_output_without_end_fills_no_disk(tmp_path, kind, promise):
    """A mechanism that prints without end, or gigabytes, fills no disk and no memory: the last 4,000 characters are
    kept; one that comes to its end is measured
    """
    sweep = between_good_ones(tmp_path, kind, f"timeout={FLOOD_TIMEOUT_S}")
    most, stderr = watched(sweep, lambda process: bytes_in(sweep.results / "scratch", sweep.tmp))
    record = the_odd_one(sweep, kind)
    assert record.status == FLOODS[kind], (record.reason, stderr)
    if record.status != "ok":  # the end, with where it was when it was asked to end
        assert record.stderr_tail.startswith("xxx") and len(record.stderr_tail) <= KEPT_BYTES
    assert most < 2**20
    sweep.wait_for_orphans()
    promise(floods=1, most_bytes_on_disk=most, neighbours_lost=0)


def bytes_in(*folders):
    total = 0
    for path in (path for folder in folders for path in folder.rglob("*")):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


@pytest.mark.parametrize("kind", STUBBORN)
def test_a_hang_that_ignores_every_request_ends_in_time(tmp_path, kind, promise):
    """A mechanism that hangs and ignores, blocks or outlives SIGTERM, with others beside it, is gone 5 s after its
    timeout; its neighbours are `ok`
    """
    assert GRACE_S == 5
    sweep = between_good_ones(tmp_path, kind, f"timeout={TIMEOUT_S}")
    watched(sweep, lambda process: 0)
    record = the_odd_one(sweep, kind)
    assert record.status == "timeout"
    late = record.duration_s - TIMEOUT_S
    assert 0 <= late < GRACE_S + 2, record.duration_s
    sweep.wait_for_orphans()
    promise(hangs=1, gone_after_its_timeout_by=late, none="neighbours_lost orphans")
