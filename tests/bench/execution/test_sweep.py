"""Sweeps through the real command line: every ending is a record, resuming measures only what is missing."""

import json
import os
import subprocess
import time

import psutil
import pytest
from command import ROOT, TINY, bench, command, environment, fake_config_dir
from filelock import FileLock

from bench.records.store import Store, latest

FAKES = {"ATTENTION_ZOO_PLUGINS": "fake_mechanisms"}
ENDINGS = {
    "fake_fine": "ok",
    "fake_segfault": "crash",
    "fake_exit": "crash",
    "fake_hang": "timeout",
    "fake_grandchild": "timeout",
    "fake_error": "error",
    "fake_oom": "oom",
    "fake_nan": "nonfinite",
    "fake_wrong": "incorrect",
    "fake_fine_too": "ok",
}


def children():
    """Processes that measure, or that a measuring process left behind."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if words[-2:] == ["-m", "bench.execution.child"] or words == ["sleep", "601"]:
            found.append(process)
    return found


@pytest.fixture(scope="module")
def endings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("endings")
    conf = fake_config_dir(folder, ENDINGS)
    arguments = [
        "--config-dir",
        str(conf),
        "attention=" + ",".join(ENDINGS),
        "tracking=none",
        "timeout=8",
        f"results_dir={folder / 'runs'}",
        *TINY,
    ]
    return folder, arguments, bench(*arguments, **FAKES)


def test_every_ending_becomes_a_record(endings):
    folder, _, result = endings
    records = {record.config["label"]: record for record in Store(folder / "runs").load()}
    assert {label: record.status for label, record in records.items()} == ENDINGS
    assert result.returncode == 1
    for label, status in ENDINGS.items():
        assert bool(records[label].measurements) == (status == "ok")
        assert status == "ok" or records[label].reason
        assert f"| {label}" in result.stdout
    assert "SIGSEGV" in records["fake_segfault"].reason
    assert "a mistake in the mechanism" in records["fake_error"].reason
    assert records["fake_error"].phase == "check"
    assert "ValueError" in records["fake_error"].stderr_tail
    assert records["fake_hang"].duration_s < 8 + 15


def test_nothing_is_left_running(endings):
    assert children() == []


def test_resume_measures_again_only_what_failed(endings):
    folder, arguments, _ = endings
    store = Store(folder / "runs")
    before = {record.record_id for record in store.load()}
    again = [a for a in arguments if not a.startswith("attention=")]
    result = bench(*again, "attention=fake_fine,fake_exit,fake_oom,fake_nan,fake_wrong", **FAKES)
    new = [record for record in store.load() if record.record_id not in before]
    assert [(record.config["label"], record.attempt) for record in new] == [("fake_exit", 2)]
    assert result.returncode == 1


def test_rerun_all_measures_afresh_and_the_newest_record_stands(tmp_path):
    arguments = ["attention=v_mean", "tracking=none", f"results_dir={tmp_path}", *TINY]
    first, second = bench(*arguments), bench(*arguments, "rerun=all")
    assert first.returncode == second.returncode == 0
    records = Store(tmp_path).load()
    assert [record.attempt for record in records] == [1, 2]
    assert latest(records)[records[0].cell_id].attempt == 2


def test_a_finished_sweep_starts_no_process(tmp_path):
    conf = fake_config_dir(tmp_path, ["fake_counted"])
    counter = tmp_path / "counter"
    arguments = ["--config-dir", str(conf), "attention=fake_counted", "seed=0,1", "tracking=none"]
    arguments += [f"results_dir={tmp_path / 'runs'}", *TINY]
    for _ in range(2):
        result = bench(*arguments, FAKE_COUNTER=str(counter), **FAKES)
        assert result.returncode == 0, result.stderr
    assert len(set(counter.read_text().split())) == 2
    assert "2 done already" in result.stderr


def test_an_unsupported_cell_is_a_gap_in_a_sweep_and_an_error_alone(tmp_path):
    arguments = ["tracking=none", f"results_dir={tmp_path}", "causal=true", *TINY]
    mixed = bench("attention=linformer,v_mean", *arguments)
    assert mixed.returncode == 0
    statuses = {record.config["label"]: record.status for record in Store(tmp_path).load()}
    assert statuses == {"linformer": "unsupported", "v_mean": "ok"}
    alone = bench("attention=linformer", *arguments)
    assert alone.returncode == 2
    assert alone.stderr == "error: causal=true: linformer cannot hide the future from the past\n"


def test_interrupting_keeps_what_is_done(tmp_path):
    conf = fake_config_dir(tmp_path, ["fake_hang"])
    arguments = ["--config-dir", str(conf), "attention=v_mean,fake_hang", "tracking=none"]
    arguments += [f"results_dir={tmp_path / 'runs'}", *TINY]
    process = subprocess.Popen(command(*arguments), cwd=ROOT, env=environment(**FAKES), stderr=subprocess.DEVNULL)
    store = Store(tmp_path / "runs")
    wait_for(lambda: len(store.load()) == 1 and children())
    process.terminate()
    assert process.wait(30) == 130
    assert [record.status for record in store.load()] == ["ok", "interrupted"]
    assert children() == []


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_kill_9_loses_nothing_and_runs_nothing_twice(tmp_path, kills):
    results = tmp_path / "runs"
    arguments = ["attention=v_mean,flash", f"seed={','.join(map(str, range(max(4, kills // 2))))}"]
    arguments += [f"results_dir={results}", *TINY]
    cells = 2 * max(4, kills // 2)
    store = Store(results)
    finished = {}
    for kill in range(kills):
        process = subprocess.Popen(
            command(*arguments), cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        done = len(store.load())
        wait_for(lambda: len(store.load()) > done or process.poll() is not None)  # noqa: B023
        # A different point of a cell's life each time: start-up, measuring, writing, mirroring.
        time.sleep((kill * 0.37) % 3.0)
        process.kill()
        process.wait()
        wait_for(lambda: not children(), 10)
        records = store.load()
        assert len(list(store.records_dir.glob("*.json"))) == len(records)
        now = {record.record_id: record for record in records}
        assert finished.items() <= now.items()
        finished = now
    last = bench(*arguments)
    assert last.returncode == 0, last.stderr
    records = store.load()
    assert [record.status for record in records] == ["ok"] * cells
    assert len({record.cell_id for record in records}) == cells
    assert {record.attempt for record in records} == {1}
    assert mlflow_runs(results) == {record.record_id: "FINISHED" for record in records}


def mlflow_runs(results):
    """Status by record id, as MLflow has it."""
    code = (
        "import json; from mlflow import MlflowClient;"
        f"c = MlflowClient('sqlite:///{results}/mlflow.db');"
        "e = c.get_experiment_by_name('attention-zoo').experiment_id;"
        "r = c.search_runs([e], \"tags.kind = 'cell'\");"
        "ids = [x.data.tags['record_id'] for x in r]; assert len(ids) == len(set(ids));"
        "print(json.dumps({x.data.tags['record_id']: x.info.status for x in r}))"
    )
    result = subprocess.run(
        [os.sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment()
    )
    return json.loads(result.stdout.splitlines()[-1])


def test_two_sweeps_at_once_try_a_failed_cell_once(tmp_path):
    conf = fake_config_dir(tmp_path, ["fake_counted_exit"])
    counter = tmp_path / "counter"
    arguments = ["--config-dir", str(conf), "attention=fake_counted_exit", "seed=0,1", "tracking=none"]
    arguments += [f"results_dir={tmp_path / 'runs'}", *TINY]
    env = environment(FAKE_COUNTER=str(counter), **FAKES)
    store = Store(tmp_path / "runs")
    assert subprocess.run(command(*arguments), cwd=ROOT, env=env, capture_output=True).returncode == 1
    hold = FileLock(store.root / "locks" / f"{store.load()[0].cell_id[:16]}.lock")
    with hold:  # until both have read what there is
        both = [subprocess.Popen(command(*arguments), cwd=ROOT, env=env, stderr=subprocess.PIPE) for _ in range(2)]
        for process in both:
            assert b"0 done already" in process.stderr.readline()
    assert [process.wait(120) for process in both] == [1, 1]
    assert sorted(record.attempt for record in store.load()) == [1, 1, 2, 2]
    assert len(counter.read_text().split()) == 4


def test_two_sweeps_at_once_share_the_work(tmp_path):
    conf = fake_config_dir(tmp_path, ["fake_counted"])
    counter = tmp_path / "counter"
    arguments = ["--config-dir", str(conf), "attention=fake_counted", "seed=0,1,2", "tracking=none"]
    arguments += [f"results_dir={tmp_path / 'runs'}", *TINY]
    env = environment(FAKE_COUNTER=str(counter), **FAKES)
    both = [subprocess.Popen(command(*arguments), cwd=ROOT, env=env, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    assert len(set(counter.read_text().split())) == 3
    assert len(Store(tmp_path / "runs").load()) == 3
