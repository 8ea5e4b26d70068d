"""Sweeps through launchers and sweepers of Hydra from elsewhere: planned whole, worst exit code, table, mirror."""

import os
import pickle

import pytest
from command import HERE, TINY, bench, environment, fake_config_dir
from synthetic_records import config, record

from bench.launchers import ExitCode
from bench.plan.load import Loader
from bench.records.store import Store
from bench.tracking.mirror import Mirror

PATH = os.pathsep.join([environment()["PYTHONPATH"], str(HERE / "launcher")])


def run(tmp_path, *overrides, **env):
    return bench(*TINY, f"results_dir={tmp_path}/runs", *overrides, PYTHONPATH=PATH, **env)


def statuses(tmp_path):
    return sorted((record.config["seed"], record.status) for record in Store(tmp_path / "runs").load())


def rows(result):
    return [line for line in result.stdout.splitlines() if line.startswith("| ") and not line.startswith("| status")]


def test_a_loader_can_be_sent_to_another_process(tmp_path):
    (tmp_path / "attention").mkdir()
    (tmp_path / "attention" / "mine.yaml").write_text("name: flash\n")
    loader = Loader(str(tmp_path))
    loader.load([])
    assert pickle.loads(pickle.dumps(loader)).load(["attention=mine"]).attention.name == "flash"


@pytest.mark.commands
@pytest.mark.parametrize("launcher", ["basic", "elsewhere"])
def test_a_launcher_from_elsewhere_gives_the_table_the_mirror_and_the_worst_exit_code(launcher, tmp_path):
    typed = ["seed=1,2", f"hydra/launcher={launcher}"]
    first = run(tmp_path, *typed)
    assert first.returncode == 0, first.stderr
    assert len(rows(first)) == 2 and statuses(tmp_path) == [(1, "ok"), (2, "ok")]
    assert first.stdout.splitlines()[-1].startswith(
        f"figures: python -m analysis figures --results {tmp_path / 'runs'}"
    )
    # All is done: nothing is launched, and what the mirror lacks is written.
    (tmp_path / "runs" / "mlflow.db").unlink()
    again = run(tmp_path, *typed)
    assert again.returncode == 0 and rows(again) == rows(first)
    assert Mirror(tmp_path / "runs").sync(Store(tmp_path / "runs").load()) == 0
    refused = run(tmp_path, "seed=1,-2", f"hydra/launcher={launcher}")
    assert (refused.returncode, refused.stdout) == (2, "") and refused.stderr.startswith("error: seed=-2: ")
    assert len(statuses(tmp_path)) == 2


@pytest.mark.commands
def test_a_job_that_fails_or_dies_is_the_exit_code_and_costs_no_other(tmp_path):
    folder = fake_config_dir(tmp_path, ["fake_error"])
    typed = ["--config-dir", str(folder), "tracking=none", "hydra/launcher=elsewhere"]
    plugins = {"ATTENTION_ZOO_PLUGINS": "fake_mechanisms"}
    failed = run(tmp_path, *typed, "attention=fake_error,flash", **plugins)
    assert failed.returncode == 1 and len(rows(failed)) == 2
    died = run(tmp_path, *typed, "seed=1,2", DEADLY_JOB="0", **plugins)
    assert died.returncode == 1 and len(rows(died)) == 1
    assert "1 of 2 cells have no record" in died.stderr and "Traceback" not in died.stderr


@pytest.mark.commands
def test_what_a_job_measured_on_a_node_of_another_kind_is_in_the_table(tmp_path):
    typed = ["tracking=none", "hydra/launcher=elsewhere", "seed=1,2"]
    result = run(tmp_path, *typed, JOB_ON_ANOTHER_KIND_OF_NODE="1")
    assert result.returncode == 0 and "no record" not in result.stderr, result.stderr
    assert len(rows(result)) == 2 and statuses(tmp_path) == [(1, "ok"), (2, "ok")]
    models = {record.config["seed"]: record.machine["cpu_model"] for record in Store(tmp_path / "runs").load()}
    assert models[2] == "a processor of another kind" != models[1]
    # There it is done, too.
    again = run(tmp_path, *typed, JOB_ON_ANOTHER_KIND_OF_NODE="1")
    assert again.returncode == 0 and rows(again) == rows(result) and len(statuses(tmp_path)) == 2


def test_an_exit_code_is_a_number_to_sweepers_and_keeps_its_cells_on_the_way():
    code = ExitCode.of([record(config("flash", {"name": "latency"}, 64), status="crash")])
    sent = pickle.loads(pickle.dumps(code))
    assert (sent, float(sent), f"{sent}") == (1, 1.0, "1")
    assert sent.cell_ids == code.cell_ids and len(sent.cell_ids) == 1


@pytest.mark.commands
def test_a_comparison_needs_our_own_launcher(tmp_path):
    typed = ["bench=compare", "attention=flash,v_mean", "hydra/launcher=basic"]
    result = bench(f"results_dir={tmp_path}/runs", *typed)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: bench=compare: ") and "hydra/launcher=cells" in result.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.commands
def test_a_sweeper_from_elsewhere_gets_results_from_our_launcher(tmp_path):
    typed = ["seed=1,2,3", "hydra/sweeper=basic", "hydra.sweeper.max_batch_size=2", "tracking=none"]
    result = run(tmp_path, *typed)
    assert result.returncode == 0, result.stderr
    assert statuses(tmp_path) == [(1, "ok"), (2, "ok"), (3, "ok")] and len(rows(result)) == 3
