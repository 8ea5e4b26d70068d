"""A results folder full of odd records: a sweep goes on beside them, and the analysis draws what is good."""

import subprocess
import sys

import pytest
from command import ROOT, TINY, bench, environment
from odd_records import UNREADABLE, good, spoil, unusable
from synthetic_records import written

from bench.records.store import Store


@pytest.mark.faults
def test_odd_records_cost_no_other(tmp_path, promise):
    """A record that is torn, forged, of another type, a pipe, a device or full of nonsense is one line; a sweep goes on
    beside it, and every figure and table is made of the others
    """
    arguments = [*TINY, "seed=1,2", "tracking=none", f"results_dir={tmp_path}"]
    assert bench(*arguments).returncode == 0
    fine = {record.record_id for record in Store(tmp_path).load()}
    written(tmp_path, good())
    for kind in UNREADABLE:
        spoil(Store(tmp_path), kind)
    written(tmp_path, (odd := unusable()).values())

    again = bench(*arguments)
    assert again.returncode == 0 and "2 cells, 2 done already" in again.stderr
    assert ": skipped, " not in again.stderr, "it reads the records of its own cells only"
    assert fine <= {record.record_id for record in Store(tmp_path).load()}
    for what in ("figures", "tables"):
        command = [sys.executable, "-m", "analysis", what, "--results", str(tmp_path)]
        drawn = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
        assert drawn.returncode == 0, drawn.stderr
        assert drawn.stderr.count("skipped, ") == len(UNREADABLE) + len(odd) and "Traceback" not in drawn.stderr
    promise(kinds=len(UNREADABLE) + len(odd), none="lost figures_lost")
