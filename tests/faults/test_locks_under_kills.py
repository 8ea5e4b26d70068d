"""Many processes on one folder and one device, killed at random: one cell is measured at a time, and none twice."""

import itertools
import os
import random
import subprocess
import time
from collections import Counter

import psutil
import pytest
from aftermath import ORPHANS_END_WITHIN_S
from command import ROOT, TINY, command, environment, family, spans

from bench.execution.locks import holder
from bench.records.store import Store

PROCESSES = 16
CELLS = 24
# 600 for the whole figure: cells are measured for as long, and those that are begun are finished.
SECONDS = float(os.environ.get("ATTENTION_ZOO_KILLS_S", "45"))


class Crowd:
    """Processes that all run one sweep, one after the other in one results folder."""

    def __init__(self, folder):
        self.folder, self.results, self.log, self.slots = folder, folder / "runs", folder / "log", folder / "slots"
        self.stderr = open(folder / "stderr", "ab")  # noqa: SIM115
        self.environment = environment(
            ATTENTION_ZOO_PLUGINS="fake_mechanisms",
            ATTENTION_ZOO_SLOTS=str(self.slots),
            ATTENTION_ZOO_TEST=str(folder),
            FAKE_LOG=str(self.log),
        )
        self.kills = Counter()

    def start(self, seeds):
        arguments = ["attention=v_mean", "attention.name=fake_logged", "tracking=none", f"results_dir={self.results}"]
        return subprocess.Popen(
            command("-m", *arguments, *TINY, f"seed={seeds}"),
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=self.stderr,
            start_new_session=True,
        )

    def sweep(self, number, rng):
        """Run a sweep in all processes while one after the other is killed; returns when its cells are measured."""
        seeds = ",".join(str(CELLS * number + each) for each in range(CELLS))
        processes = [self.start(seeds) for _ in range(PROCESSES)]
        while self.measured() < CELLS * (number + 1):
            time.sleep(rng.uniform(0.2, 3))
            self.kill_one(rng)
            for place, process in enumerate(processes):
                if process.poll() is not None:
                    processes[place] = self.start(seeds)
        assert {process.wait(300) for process in processes} <= {0, 1, -9}

    def kill_one(self, rng):
        alive = sorted(family(str(self.folder)), key=lambda each: each.pid)
        # Heads are as many as all others: half of the kills are for those.
        heads = [each for each in alive if "bench" in _words(each)]
        others = [each for each in alive if each not in heads]
        for victims, kind in ((others, "other"), (heads, "head"))[:: rng.choice((1, -1))]:
            if victims:
                rng.choice(victims).kill()
                self.kills[kind] += 1
                return

    def measured(self):
        return len({record.cell_id for record in self.records() if record.terminal})

    def records(self):
        return Store(self.results).load()


def _words(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.faults
def test_one_cell_at_a_time_and_none_twice_whoever_is_killed(tmp_path, promise):
    """Of 16 processes that run one sweep on one device while a random one of them, or of what they started, is killed
    every other second, one measures at a time; no cell is measured twice, no lock outlives its holder
    """
    crowd, rng, began = Crowd(tmp_path), random.Random(0), time.monotonic()
    sweeps = 0
    while time.monotonic() < began + SECONDS:
        crowd.sweep(sweeps, rng)
        sweeps += 1
    last = time.monotonic()
    while family(str(tmp_path)):
        assert time.monotonic() < last + ORPHANS_END_WITHIN_S
        time.sleep(0.05)
    assert not any(holder(path) for folder in (crowd.slots, crowd.results / "locks") for path in folder.glob("*.lock"))
    assert {path.name for path in crowd.slots.glob("*.lock")} == {"machine.lock"}
    measured = spans(crowd.log)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(measured))
    terminal = Counter(record.cell_id for record in crowd.records() if record.terminal)
    assert len(terminal) == sweeps * CELLS and set(terminal.values()) == {1}
    assert b"Traceback" not in (tmp_path / "stderr").read_bytes()
    promise(
        cells=len(terminal),
        measurements_begun=len(measured),
        kills_of_sweeps=crowd.kills["head"],
        kills_of_what_they_started=crowd.kills["other"],
        **{"killing for": time.monotonic() - began},
        none="overlaps measured_twice locks_left processes_left",
    )
