"""`kill -9` of `python -m bench.merge` at random moments: the same command goes on."""

import random
import subprocess
import sys
import time

import pytest
from aftermath import Sweep
from command import ROOT, environment

from bench.records.store import Store

KILLS, CELLS = 40, 60


def merging(sources, into):
    command = [sys.executable, "-m", "bench.merge", *map(str, sources), str(into)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=pipe, stderr=pipe, text=True)


def contents(results):
    """Every file that is to be there after a merge, by its place."""
    places = ("records", "samples", "sweeps")
    files = [path for place in places for path in (results / place).rglob("*") if path.is_file()]
    return {path.relative_to(results): path.read_bytes() for path in files}


@pytest.mark.faults
def test_a_merge_that_is_killed_goes_on(tmp_path, promise):
    """`kill -9` of a merge at a random moment tears no record; the same command adds what is missing, and clears what
    was left over
    """
    sweeps = [Sweep(tmp_path / str(number), "hydra/launcher=devices", cells=CELLS) for number in range(2)]
    sweeps[1].arguments.append("seq_len=48")
    for sweep in sweeps:
        assert sweep.run().returncode == 0
    sources = [sweep.results for sweep in sweeps]
    began = time.monotonic()
    assert merging(sources, tmp_path / "undisturbed").wait() == 0
    duration = time.monotonic() - began
    whole, rng, midway = contents(tmp_path / "undisturbed"), random.Random(0), 0
    assert len(Store(tmp_path / "undisturbed").load()) == 2 * CELLS
    for kill in range(KILLS):
        into = tmp_path / f"into-{kill}"
        process = merging(sources, into)
        time.sleep(rng.uniform(0, duration))
        process.kill()
        process.communicate()
        before = Store(into).load()  # whole records, each with its samples
        midway += 0 < len(before) < 2 * CELLS
        again = merging(sources, into)
        said, stderr = again.communicate(timeout=60)
        assert (again.returncode, stderr) == (0, "") and f"{2 * CELLS - len(before)} records added" in said, stderr
        assert contents(into) == whole
    promise(kills=KILLS, kills_between_records=midway, none="torn lost left_over")
