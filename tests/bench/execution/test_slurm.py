"""Sweeps as arrays of Slurm jobs: what is asked for, and a real Slurm on this machine."""

import pytest
from command import TINY, bench
from slurm_cluster import cluster

from bench.records.store import Store


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    yield from cluster(tmp_path_factory.mktemp("slurm"))


@pytest.mark.commands
def test_a_sweep_on_a_real_slurm(slurm, tmp_path):
    typed = ["hydra/launcher=slurm", "hydra.launcher.cells_per_job=2", "tracking=none", f"results_dir={tmp_path}/runs"]
    result = bench(*TINY, *typed, "attention=v_mean", "seed=1,2,3,4,5", **slurm.environment)
    print(result.stdout, result.stderr)
    assert result.returncode == 0
    records = Store(tmp_path / "runs").load()
    assert sorted((record.config["seed"], record.status) for record in records) == [(n, "ok") for n in range(1, 6)]
    assert {record.machine["job"]["node"] for record in records} <= {"n1", "n2"}
