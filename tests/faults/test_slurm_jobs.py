"""Sweeps on a real Slurm without accounting, whose jobs, nodes and head are ended from outside."""

import random
import time
from collections import Counter

import psutil
import pytest
from aftermath import Sweep, rows
from slurm_cluster import cluster

pytestmark = [pytest.mark.faults, pytest.mark.needs("slurm")]


@pytest.fixture
def slurm(tmp_path):
    yield from cluster(tmp_path)


class Jobs(Sweep):
    """A sweep that Slurm runs."""

    def __init__(self, slurm, folder, *overrides, cells, sleep=0.1):
        # Each task has devices of its own: nobody compares these numbers, and the test is over sooner.
        setup = f"hydra.launcher.setup=['export ATTENTION_ZOO_SLOTS={folder}/slots-$SLURM_ARRAY_TASK_ID']"
        super().__init__(folder, "hydra/launcher=slurm", setup, *overrides, cells=cells, attention="odd_sleepy")
        self.environment |= {**slurm.environment, "ATTENTION_ZOO_PLUGINS": "sleepy", "SLEEPY_S": str(sleep)}

    def wait_for(self, happened, head, seconds=120):
        deadline = time.monotonic() + seconds
        while not happened():
            assert head.poll() in (None, -9), head.communicate()
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.2)

    def logs(self):
        return [log.read_text()[-300:] for log in self.results.glob("sweeps/*/slurm/*.log")]

    def terminal(self):
        """How many records that stand each cell has."""
        return Counter(record.cell_id for record in self.records() if record.terminal)

    def assert_done(self, result):
        assert (result.returncode, rows(result.stdout)) == (0, self.cells), (result.stderr, self.logs())
        assert len(self.terminal()) == self.cells and set(self.terminal().values()) == {1}


def workers(job):
    """The processes of a job: that of its script, and what that has started."""
    return [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("SLURM_JOB_ID") == job]


def test_jobs_nodes_and_the_head_may_end_at_any_moment(slurm, tmp_path, promise):
    """100 cells in 10 jobs of a real Slurm, without accounting: after `scancel` and `scontrol requeue` of random jobs,
    `kill -9` of a `slurmd` and of the head, the same command ends with one terminal record for each cell, the whole
    table and exit code 0
    """
    rng = random.Random(0)
    sweep = Jobs(slurm, tmp_path, "hydra.launcher.cells_per_job=10", cells=100, sleep=0.3)
    head = sweep.start()
    sweep.wait_for(lambda: len(sweep.records()) >= 5, head)
    for job in rng.sample(slurm.jobs("RUNNING"), 2) + rng.sample(slurm.jobs("PENDING"), 1):
        slurm.call("scancel", job)
    slurm.call("scontrol", "requeue", rng.choice(slurm.jobs("RUNNING")))
    slurm.daemons["n2"].kill()
    slurm.daemons["n2"].wait()
    time.sleep(rng.uniform(0, 3))
    head.kill()
    head.communicate()
    time.sleep(rng.uniform(0, 3))
    slurm.start_node("n2")
    before = {record.record_id for record in sweep.records()}
    result = sweep.run(timeout=500)
    sweep.assert_done(result)
    assert before <= {record.record_id for record in sweep.records()}
    assert not sweep.leftovers() and not slurm.jobs()
    again = sweep.run()
    assert again.stdout == result.stdout and again.returncode == 0
    promise(cells=100, jobs_cancelled=3, jobs_requeued=1, daemons_killed=2, none="lost measured_twice")


def test_a_job_that_is_killed_or_requeued_in_the_middle_of_a_cell_goes_on(slurm, tmp_path, promise):
    """A job of Slurm that is killed (`kill -9` of all its processes) or requeued in the middle of a cell goes on with
    it; its head submits again what no job has
    """
    sweep = Jobs(slurm, tmp_path, "hydra.launcher.cells_per_job=2", cells=4, sleep=4)
    head = sweep.start()
    scratch = sweep.results / "scratch"
    sweep.wait_for(lambda: len(list(scratch.glob("*"))) == 2, head)
    killed, requeued = slurm.jobs("RUNNING")[:2]
    slurm.call("scontrol", "requeue", requeued)
    number = slurm.call("squeue", "-h", "-j", killed, "-o", "%A").strip()
    for process in workers(number):
        process.kill()
    stdout, stderr = head.communicate(timeout=200)
    assert (head.returncode, rows(stdout)) == (0, 4), (stderr, sweep.logs())
    assert set(sweep.terminal().values()) == {1} and len(sweep.terminal()) == 4
    statuses = Counter(record.status for record in sweep.records())
    assert statuses["interrupted"] == 1 and statuses["ok"] == 4, statuses
    promise(jobs_killed=1, jobs_requeued=1, none="lost measured_twice")


def test_a_job_whose_time_is_over_goes_on_without_its_head(slurm, tmp_path, promise):
    """A job of Slurm whose time is over saves what it has, queues again by itself and goes on, though its head is
    dead
    """
    limits = [
        "hydra.launcher.max_num_timeout=20",
        "hydra.launcher.timeout_min=1",
        "hydra.launcher.signal_delay_s=20",
        "timeout=40",
    ]
    sweep = Jobs(slurm, tmp_path, *limits, "hydra.launcher.cells_per_job=8", cells=8, sleep=3)
    head = sweep.start()
    sweep.wait_for(lambda: slurm.jobs("RUNNING"), head)
    head.kill()
    head.communicate()
    sweep.wait_for(lambda: len(sweep.terminal()) == 8, head, seconds=400)
    statuses = Counter(record.status for record in sweep.records())
    assert statuses["ok"] == 8 and statuses["interrupted"] >= 1, statuses
    sweep.assert_done(sweep.run())
    promise(cells=8, interrupted=statuses["interrupted"], none="lost measured_twice")


def test_a_cell_that_takes_its_job_with_it_costs_no_other(slurm, tmp_path, promise):
    """A cell that takes its whole job of Slurm with it, every time, is a `crash` record after three jobs, the last one
    of its own; its neighbours are `ok`
    """
    sweep = Jobs(slurm, tmp_path, "hydra.launcher.cells_per_job=3", cells=3, sleep=0)
    # In the first cell's place, whatever ends a job before it can say anything: memory, a broken node.
    result = sweep.run(SLEEPY_DEADLY="0")
    statuses = sorted((record.config["seed"], record.status) for record in sweep.records())
    assert statuses == [(0, "crash"), (1, "ok"), (2, "ok")], (result.stderr, sweep.logs())
    assert result.returncode == 1 and not slurm.jobs()
    (crash,) = (record for record in sweep.records() if record.status == "crash")
    assert crash.reason.startswith("3 jobs ended without a record of it: ")
    sweep.assert_done(sweep.run())
    promise(jobs_lost=3, neighbours=2, neighbours_lost=0)
