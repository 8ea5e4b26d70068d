"""Sweeps as arrays of Slurm jobs: what is asked for, what a queue says, and a real Slurm on this machine."""

import dataclasses
import os
import re
import shlex
import signal
import subprocess
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from command import ROOT, TINY, bench, environment, start, wait_for
from slurm_cluster import cluster

from bench import api
from bench.cli import wait
from bench.common.errors import ConfigError
from bench.execution.executors import remote, slurm_job
from bench.execution.executors import slurm as executor
from bench.execution.executors.slurm import Queue, SubmissionError, Submitter, Task, batch_script
from bench.execution.precheck import check_cells
from bench.execution.results_folder import prepare_folder
from bench.execution.runner import Runner
from bench.execution.sweep import save_plan
from bench.plan.executors import check
from bench.plan.load import Loader
from bench.plan.machine import Resources
from bench.records.store import Store

SWEEP = "0123456789abcdef"
pytestmark = pytest.mark.usefixtures("same_code")
TYPED = ["hydra/launcher=slurm", "tracking=none", *TINY, "attention=v_mean"]


def settings(**given):
    return check({"executor": "slurm", **given})


def tool(folder, name, script):
    """A command of Slurm that is a script."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A Slurm that takes everything, and whose queue is empty."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in executor.TOOLS:
        tool(folder, name, "echo 12" if name == "sbatch" else "")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def planned(tmp_path, *overrides):
    return api.planned(Loader(), [*TYPED, f"results_dir={tmp_path}/runs", *overrides])


def begun(tmp_path, *overrides):
    """A sweep whose jobs may start."""
    sweep = planned(tmp_path, *overrides)
    prepare_folder(sweep.settings.results_dir)
    save_plan(sweep)
    runner = Runner(Store(tmp_path / "runs"), sweep.sweep_id, sweep.overrides, executor=sweep.executor)
    remote.begin(runner, sweep.cells)
    return sweep, runner


@pytest.mark.parametrize(
    "given, message",
    [
        ({"timeout_min": 0}, "hydra.launcher.timeout_min=0: must be a number of at least 1"),
        ({"nodes": 2}, "hydra.launcher.nodes=2: unknown; known are"),
        ({"partition": "a\nrm -r ."}, "hydra.launcher.partition='a\\nrm -r .': must be a number, true or one line"),
        ({"additional_parameters": {"x y": 1}}, "hydra.launcher.additional_parameters.x y=1: must have the name of an"),
        ({"additional_parameters": {"job_name": "a"}}, "hydra.launcher.additional_parameters.job_name='a': the suite"),
        ({"additional_parameters": {"nice": "1\n:"}}, "hydra.launcher.additional_parameters.nice='1\\n:': must be a"),
    ],
)
def test_what_sbatch_cannot_be_told_is_refused(given, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        settings(**given)


def test_ids_hold_what_is_asked_for_and_decides_on_the_node(tmp_path):
    asked = {"partition": "gpu", "constraint": "a100", "cpus_per_task": 8}
    wanted = Resources("slurm partition=gpu constraint=a100", 8, True)
    assert settings(**asked, gpus_per_node=1).resources == wanted
    with_gres = dataclasses.replace(wanted, name=f"{wanted.name} gres=gpu:1")
    assert settings(**asked, gres="gpu:1", qos="x").resources == with_gres
    assert settings().resources == Resources("slurm", 1, False)
    more = ([], ["hydra.launcher.partition=a"], ["hydra.launcher.cpus_per_task=2"], ["hydra.launcher.qos=b"])
    ids = [planned(tmp_path, *each).cells[0].cell_id for each in more]
    assert len(set(ids)) == 3 and ids[3] == ids[0]


def test_the_script_says_all_that_is_asked_for_as_data(tools, tmp_path):
    folder = tmp_path / "50% of $HOME"
    asked = settings(
        partition="a b;$(touch x)", mem_gb=1.5, timeout_min=7, gpus_per_node=2, setup=["module load x"],
        array_parallelism=3, additional_parameters={"nice": 5, "exclusive": True},
    )  # fmt: skip
    lines = batch_script(asked, "name", folder / "name.json", 5).splitlines()
    told = """--array=0-4%3 --job-name=name --partition='a b;$(touch x)' --mem=1536M --time=7 --gpus-per-node=2
        --cpus-per-task=1 --signal=B:USR2@60 --requeue --open-mode=append --nice=5 --exclusive"""
    wanted = [f"--{option.strip()}" for option in told.split("--")[1:]]
    wanted.append(f"--output='{tmp_path}/50%% of $HOME/%x_%a.log'")
    assert {f"#SBATCH {option}" for option in wanted} <= {*lines}
    assert "module load x" in lines
    assert "#SBATCH --mem=0M" in batch_script(settings(mem_gb=0), "name", folder / "name.json", 1)  # all that there is
    (run,) = (line for line in lines if line.startswith("exec "))
    assert shlex.split(run)[-3:] == ["-m", "bench.execution.executors.slurm_job", str(folder / "name.json")]


def test_a_queue_is_read_by_name(tools, tmp_path):
    queue = Queue(settings(), tmp_path / "slurm", SWEEP)
    assert queue.active() == set()  # nobody is asked
    name = f"attention-zoo-{SWEEP}-abc"
    for each in (name, f"attention-zoo-{SWEEP}-ended"):
        (queue.folder / f"{each}.json").write_text('[["a", "b"], ["c"]]')
    lines = [f"{name} 0", f"{name} 1", "another 2", f"{name} N/A"]
    tool(tools, "squeue", "".join(f"echo '{line}';" for line in lines))
    assert queue.active() == {Task(name, 0), Task(name, 1)}
    assert queue.clear(queue.active()) == {Task(name, 0): ["a", "b"], Task(name, 1): ["c"]}
    assert queue.names() == [name]
    tool(tools, "squeue", "echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1")
    with pytest.raises(SubmissionError, match="slurm_load_jobs error: Unable to contact"):
        queue.active()


def test_an_array_is_known_before_it_is_submitted_and_forgotten_where_it_was_refused(tools, tmp_path):
    sweep = planned(tmp_path, "seed=1,2,3")
    queue = Queue(settings(), tmp_path / "slurm", SWEEP)
    tool(tools, "sbatch", f'ls {queue.folder} > {tmp_path}/listed; echo "12;cluster"')
    tasks = queue.submit([sweep.cells[:2], sweep.cells[2:]])
    assert f"{tasks[0].name}.json" in (tmp_path / "listed").read_text().split()
    chunks = queue.clear(tasks).values()
    assert list(chunks) == [[cell.cell_id for cell in sweep.cells[:2]], [sweep.cells[2].cell_id]]
    tool(tools, "sbatch", "echo 'sbatch: error: invalid partition' >&2; exit 1")
    with pytest.raises(SubmissionError, match="invalid partition"):
        queue.submit([sweep.cells])
    assert queue.names() == [tasks[0].name]


def test_what_cannot_run_is_refused_before_anything_is_submitted(tools, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"timeout=600: must be at most 540 seconds, what .*timeout_min=10 leaves"):
        api.launch(planned(tmp_path, "hydra.launcher.timeout_min=10"))
    tool(tools, "sbatch", "echo 'sbatch: error: no such partition' >&2; exit 1")
    with pytest.raises(ConfigError, match="hydra/launcher=slurm: sbatch: error: no such partition"):
        api.launch(planned(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="hydra/launcher=slurm: there is no sbatch here"):
        api.launch(planned(tmp_path))


def test_what_is_done_needs_no_slurm(tmp_path, monkeypatch):
    sweep, runner = begun(tmp_path)
    runner.measure(sweep.cells[0])
    monkeypatch.setenv("PATH", "/nowhere")
    assert [record.status for record in api.launch(sweep)] == ["ok"]
    assert not remote.round_file(tmp_path / "runs", sweep.sweep_id).exists()


def test_no_gpu_here_says_nothing_of_the_gpus_there(tmp_path):
    typed = ["hydra.launcher.gpus_per_node=1", "attention=linformer", "causal=true", "device=cpu,cuda"]
    cells = planned(tmp_path, *typed).cells
    assert [cell.config["device"] for cell in cells] == ["cpu", "cuda:0"]
    reasons = [cell.unsupported for cell in check_cells(cells, tmp_path, elsewhere=True)]
    assert reasons[0] and reasons[1] is None


def test_a_job_measures_its_cells_once_as_often_as_it_runs(tmp_path):
    sweep, runner = begun(tmp_path, "seed=1,2")
    file = tmp_path / "runs" / "sweeps" / sweep.sweep_id / "slurm" / "name.json"
    file.parent.mkdir()
    file.write_text(f'[[], ["{sweep.cells[1].cell_id}"]]')
    assert slurm_job.main(file, 1) == 0 and slurm_job.main(file, 1) == 0
    assert [record.config["seed"] for record in runner.store.load()] == [2]
    remote.round_file(runner.store.root, runner.sweep_id).unlink(missing_ok=True)
    assert slurm_job.main(file, 1) == 1  # the sweep has ended


def test_a_cell_given_up_has_a_record_unless_somebody_measured_it(tmp_path):
    sweep, runner = begun(tmp_path, "seed=1,2")
    remote.give_up(runner, sweep.cells[0], "why")
    remote.give_up(runner, sweep.cells[0], "again")
    (record,) = runner.store.load()
    assert (record.status, record.reason, record.cell_id) == ("crash", "why", sweep.cells[0].cell_id)


class Pretended(Queue):
    """Jobs that end as soon as they are there; `measure` says what comes of their cells."""

    def __init__(self, folder, measure, size):
        super().__init__(settings(cells_per_job=size), folder, SWEEP)
        self.measure, self.sizes = measure, []

    def active(self):
        return set()

    def submit(self, chunks):
        self.sizes.append([len(chunk) for chunk in chunks])
        for chunk in chunks:
            self.measure(chunk)
        return [Task(f"array{len(self.sizes)}", number) for number in range(len(chunks))]


def run_head(tmp_path, measure, monkeypatch, cells):
    """The sizes of the tasks in each array, and what became of the cells."""
    monkeypatch.setattr(executor, "POLL_S", 0.0)
    monkeypatch.setattr(executor, "LOOK_S", 0.0)
    sweep, runner = begun(tmp_path, f"seed=range({cells})")
    queue = Pretended(tmp_path / "slurm", lambda chunk: measure(runner, chunk), 5)
    Submitter(queue, runner, sweep.cells, SimpleNamespace(on_cell_end=lambda cell: None), {}).run()
    return queue.sizes, runner.store.load()


def record(runner, cell, status):
    """Write what a job would."""
    remote.give_up(runner, cell, "as if")
    for made in runner.store.of_cell(cell.cell_id):
        if made.reason == "as if":
            (runner.store.records_dir / made.file_name).unlink()
            runner.store.write(dataclasses.replace(made, status=status, reason=None if status == "ok" else "why"))


def test_where_nothing_comes_of_any_job_a_few_try_before_all_is_given_up(tmp_path, monkeypatch):
    sizes, records = run_head(tmp_path, lambda runner, chunk: None, monkeypatch, 30)
    assert sizes == [[5] * 6, [1] * 10, [1] * 10]
    assert {record.reason for record in records} == {"3 jobs ended without a record of it: it has no log"}
    assert len(records) == 30 and {record.status for record in records} == {"crash"}


def test_a_cell_that_ends_its_jobs_is_alone_in_the_last_and_costs_no_other(tmp_path, monkeypatch):
    def measure(runner, chunk):
        if not any(cell.config["seed"] == 1 for cell in chunk):
            for cell in chunk:
                record(runner, cell, "ok")

    sizes, records = run_head(tmp_path, measure, monkeypatch, 10)
    assert sizes == [[5, 5], [5], [1] * 5]
    assert Counter(record.status for record in records) == {"ok": 9, "crash": 1}


def test_a_cell_that_is_interrupted_without_end_is_given_up(tmp_path, monkeypatch):
    def measure(runner, chunk):
        record(runner, chunk[0], "interrupted")

    sizes, records = run_head(tmp_path, measure, monkeypatch, 1)
    assert sizes == [[1]] * 20
    assert Counter(record.status for record in records) == {"interrupted": 20, "crash": 1}
    assert records[-1].reason == "interrupted in each of 20 jobs"


def test_wait_says_what_became_of_a_sweep(tmp_path, capsys):
    sweep, runner = begun(tmp_path, "seed=1,2")
    with pytest.raises(ConfigError, match=r"^no sweep in"):
        wait.run(["fedcba9876543210", "--results", str(tmp_path)])
    runner.measure(sweep.cells[0])
    remote.round_file(runner.store.root, runner.sweep_id).unlink(missing_ok=True)
    arguments = [sweep.sweep_id, "--results", f"{tmp_path}/runs"]
    assert wait.run(arguments) == 1
    said = capsys.readouterr()
    assert said.out.count("| ok") == 1 and "error: 1 of 2 cells have no record, and no job" in said.err
    runner.measure(sweep.cells[1])
    assert wait.run(arguments) == 0
    figures = f"figures: python -m analysis figures --results {tmp_path}/runs --sweep {sweep.sweep_id}"
    assert capsys.readouterr().out.splitlines()[-1] == figures


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    yield from cluster(tmp_path_factory.mktemp("slurm"))


@pytest.mark.commands
@pytest.mark.needs("slurm")
def test_a_sweep_on_a_real_slurm(real, tmp_path):
    typed = [*TYPED, "hydra.launcher.cells_per_job=2", f"results_dir={tmp_path}/runs", "seed=1,2,3"]
    result = bench(*typed, **real.environment)
    assert result.returncode == 0, result.stderr
    records = Store(tmp_path / "runs").load()
    assert sorted((record.config["seed"], record.status) for record in records) == [(n, "ok") for n in (1, 2, 3)]
    assert {record.machine["job"]["node"] for record in records} <= {"n1", "n2"}
    refused = bench(*typed, "hydra.launcher.partition=nowhere", **real.environment)
    last = refused.stderr.splitlines()[-1]
    assert refused.returncode == 2 and last.startswith("error: hydra/launcher=slurm: sbatch:")


@pytest.mark.needs("slurm")
@pytest.mark.commands
def test_jobs_outlive_ctrl_c_of_their_head_and_can_be_waited_for(real, tmp_path):
    typed = [*TYPED, f"results_dir={tmp_path}/runs", "seed=1,2"]
    head = start(*typed, **real.environment)
    while not real.jobs():
        assert head.poll() is None, head.communicate()
        time.sleep(0.1)
    time.sleep(0.5)
    head.send_signal(signal.SIGINT)
    stderr = head.communicate(timeout=60)[1]
    assert head.returncode == 130 and "Traceback" not in stderr
    (line,) = (line for line in stderr.splitlines() if line.startswith("slurm: jobs go on; "))
    waiting = [head.args[0], *shlex.split(line.split("`")[1])[1:]]
    env = environment(**real.environment)
    waited = subprocess.run(waiting, capture_output=True, text=True, timeout=200, cwd=ROOT, env=env)
    assert waited.returncode == 0 and waited.stdout.count("| ok") == 2, waited.stderr
    assert len(Store(tmp_path / "runs").load()) == 2
    wait_for(lambda: not real.jobs())  # a job lives a moment longer than the record of its last cell
