"""Kills below and beside a sweep on a cluster of Ray with two nodes: the same command goes on."""

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile

import psutil
import pytest
from aftermath import HERE, Sweep, kill_one, rows
from command import HERE as BENCH_TESTS
from command import ROOT, environment

from bench.execution.executors.ray import LOCAL

pytest.importorskip("ray", reason="Ray is not installed")

CELLS, KILLS = 100, 6
TASK = "ray::measure"


@contextlib.contextmanager
def cluster(env):
    """Two nodes; yields the address, the process that one of them is, and who all are below."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "ray_nodes.py")],
            env={**env, "RAY_TMPDIR": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            said = next(line for line in process.stdout if line.startswith("{"))
            yield json.loads(said)["address"], psutil.Process(json.loads(said)["raylet"]), psutil.Process(process.pid)
        finally:
            below = psutil.Process(process.pid).children(recursive=True)
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            for each in (process, *below):
                with contextlib.suppress(psutil.Error):
                    each.kill()
            process.wait()


def tasks_of(nodes):
    found = []
    for process in nodes.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[:1] == [TASK]:
                found.append(process)
    return found


@pytest.mark.faults
def test_lost_nodes_workers_and_heads_cost_no_cell(tmp_path, promise):
    """A sweep on two nodes of Ray outlives `kill -9` of its head process (the same command goes on), of a node and of
    random workers: every cell is measured once, table and exit code are right
    """
    rng = random.Random(0)
    ray = {**LOCAL, "RAY_AUTH_TOKEN": "0" * 64}
    path = os.pathsep.join(map(str, (ROOT, BENCH_TESTS, HERE)))
    env = environment(**ray, PYTHONPATH=path, ATTENTION_ZOO_PLUGINS="misbehaving")
    with cluster(env) as (address, node, nodes):
        typed = ["hydra/launcher=ray", f"hydra.launcher.address={address}", "hydra.launcher.timings_alone=false"]
        sweep = Sweep(tmp_path, *typed, cells=CELLS)
        process = sweep.start(**ray)
        sweep.wait_for_records(10, process)
        process.kill()
        process.communicate()
        process = sweep.start(**ray)
        sweep.wait_for_records(40, process)
        node.kill()
        for kill in range(KILLS):
            sweep.wait_for_records(45 + 5 * kill, process)
            assert kill_one(rng, process, lambda head: tasks_of(nodes))
        _, stderr = process.communicate(timeout=500)
        assert process.returncode == 0, stderr
        records = sweep.records()
        hosts = {record.machine["job"]["node_id"] for record in records}
        assert len(hosts) == 2
        result = sweep.run(**ray)
        assert result.returncode == 0 and f"{CELLS} done already" in result.stderr, result.stderr
        assert len(sweep.ok()) == CELLS and set(sweep.ok().values()) == {1}
        assert rows(result.stdout) == CELLS
        assert len(sweep.records()) == len(records)
        assert sweep.leftovers() == []
    promise(cells=CELLS, heads_killed=1, nodes_killed=1, workers_killed=KILLS, none="lost measured_twice left_over")
