"""Kills above and below two workers of one machine: the same command goes on."""

import random
import time

import pytest
from aftermath import A_WORKER_PER_CORE, Sweep, kill_one, rows

CELLS, HEADS, BELOW = 100, 3, 8

pytestmark = [pytest.mark.faults, pytest.mark.needs("two_cores")]


def children(process):
    """The servers of children."""
    return process.children()


def grandchildren(process):
    return [child for server in process.children() for child in server.children()]


def test_kills_of_two_workers_cost_no_cell(tmp_path, promise):
    """A sweep with two workers outlives `kill -9` of its head process, of the processes that start cells and of cells:
    the same command goes on, every cell is measured once, table and exit code are right
    """
    rng = random.Random(0)
    sweep = Sweep(tmp_path, *A_WORKER_PER_CORE, cells=CELLS)
    for head in range(HEADS):
        process = sweep.start()
        sweep.wait_for_records(10 * (head + 1), process)
        time.sleep(rng.uniform(0, 0.5))
        process.kill()
        process.communicate()
        sweep.wait_for_orphans()
    process, killed = sweep.start(), 0
    for kill in range(BELOW):
        sweep.wait_for_records(40 + 5 * kill, process)
        time.sleep(rng.uniform(0, 0.3))
        killed += kill_one(rng, process, children if kill % 2 == 0 else grandchildren)
    _, stderr = process.communicate(timeout=300)
    records = sweep.records()
    crashed = {record.cell_id for record in records if record.status == "crash"}
    assert process.returncode == (1 if crashed else 0) and "Traceback" not in stderr, stderr
    # A process that was killed between two cells costs none.
    assert len(sweep.ok()) == CELLS - len(crashed) and 0 < len(crashed) <= killed
    sweep.assert_goes_on()
    assert {record.status for record in sweep.records()} <= {"ok", "crash"}
    finished = sweep.run()
    assert f"{CELLS} done already" in finished.stderr
    assert rows(finished.stdout) == CELLS
    promise(cells=CELLS, heads_killed=HEADS, others_killed=killed, none="lost measured_twice left_over")
