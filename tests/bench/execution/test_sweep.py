"""Sweeps through the real command line: every ending is a record, resuming measures only what is missing."""

import dataclasses
import fcntl
from datetime import UTC, datetime

import pytest
from command import FAKES, bench, family, start, sweep_of, wait_for
from filelock import FileLock
from synthetic_everything import everything

from bench.api import exit_code
from bench.cli import main as app
from bench.execution import runner, sweep
from bench.execution.runner import Runner
from bench.plan.cell import Cell
from bench.plan.config import Config
from bench.records.store import Store

pytestmark = pytest.mark.commands

# One for each status; what else a mechanism may do, tests/faults/test_mechanisms.py tries.
ENDINGS = {
    "fake_fine": "ok",
    "fake_exit": "crash",
    "fake_hang": "timeout",
    "fake_daemon": "ok",
    "fake_error": "error",
    "fake_oom": "oom",
    "fake_nan": "nonfinite",
    "fake_wrong": "incorrect",
    "fake_fine_too": "ok",
}


@pytest.fixture(scope="module")
def endings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("endings")
    result = bench(*sweep_of(folder, *ENDINGS), "timeout=8", ATTENTION_ZOO_TEST=str(folder), **FAKES)
    # Nothing is left running.
    assert family(str(folder)) == [] and list((folder / "runs" / "scratch").iterdir()) == []
    return folder, result


def test_every_ending_becomes_a_record(endings):
    folder, result = endings
    records = {record.config["label"]: record for record in Store(folder / "runs").load()}
    assert {label: record.status for label, record in records.items()} == ENDINGS
    assert result.returncode == 1
    for label, status in ENDINGS.items():
        assert bool(records[label].measurements) == (status == "ok")
        assert status == "ok" or records[label].reason
        assert f"| {label}" in result.stdout
    assert "a mistake in the mechanism" in records["fake_error"].reason
    assert records["fake_error"].phase == "check"
    assert "ValueError" in records["fake_error"].stderr_tail
    assert records["fake_hang"].duration_s < 8 + 15


def test_resume_measures_again_only_what_failed(endings):
    folder, _ = endings
    store = Store(folder / "runs")
    before = {record.record_id for record in store.load()}
    names = ("fake_fine", "fake_exit", "fake_oom", "fake_nan", "fake_wrong")
    result = bench(*sweep_of(folder, *names), "timeout=8", **FAKES)
    new = [record for record in store.load() if record.record_id not in before]
    assert [(record.config["label"], record.attempt) for record in new] == [("fake_exit", 2)]
    assert result.returncode == 1


def test_an_unsupported_cell_is_a_gap_in_a_sweep(tmp_path):
    assert app.run([*sweep_of(tmp_path, "linformer", "v_mean"), "causal=true"]) == 0
    statuses = {record.config["label"]: record.status for record in Store(tmp_path / "runs").load()}
    assert statuses == {"linformer": "unsupported", "v_mean": "ok"}


def test_interrupting_keeps_what_is_done(tmp_path):
    process = start(*sweep_of(tmp_path, "v_mean", "fake_hang"), ATTENTION_ZOO_TEST=str(tmp_path), **FAKES)
    store = Store(tmp_path / "runs")
    wait_for(lambda: len(store.load()) == 1 and len(family(str(tmp_path))) == 3)  # sweep, server, cell
    process.terminate()
    assert process.wait(30) == 130
    assert [record.status for record in store.load()] == ["ok", "interrupted"]
    assert family(str(tmp_path)) == []


def test_two_sweeps_at_once_try_a_failed_cell_once(tmp_path):
    counter = tmp_path / "counter"
    arguments = [*sweep_of(tmp_path, "fake_counted_exit"), "seed=0,1"]
    env = {"FAKE_COUNTER": str(counter), **FAKES}
    store = Store(tmp_path / "runs")
    assert bench(*arguments, **env).returncode == 1
    with FileLock(store.root / "locks" / f"{store.load()[0].cell_id[:16]}.lock"):  # until both have read what there is
        both = [start(*arguments, **env) for _ in range(2)]
        for process in both:
            assert "0 done already" in process.stderr.readline()
    assert [process.wait(120) for process in both] == [1, 1]
    assert sorted(record.attempt for record in store.load()) == [1, 1, 2, 2]
    assert len(counter.read_text().split()) == 4


def a_cell_and_its_record():
    record = everything()[0]
    return Cell(record.config, record.cell_id, timeout=60.0), record


def a_sweep(tmp_path, cell, **changes):
    settings = Config(attention={}, bench={}, inputs={}, tracking={}, results_dir=str(tmp_path), **changes)
    return sweep.Sweep((cell,), settings, ())


def test_an_interrupt_while_measuring_afresh_tells_of_all_attempts(tmp_path, monkeypatch):
    cell, record = a_cell_and_its_record()
    Store(tmp_path).write(record)

    def interrupted(self, cell, attempt, options):
        return dataclasses.replace(record, record_id="f" * 32, attempt=attempt, status="interrupted", measurements={})

    monkeypatch.setattr(Runner, "run_cell", interrupted)
    told = []
    with pytest.raises(KeyboardInterrupt):
        sweep.run_sweep(a_sweep(tmp_path, cell, rerun="all"), told.append)
    assert [[each.attempt for each in records] for records in told] == [[record.attempt], [record.attempt, 2]]


@pytest.mark.parametrize("measured", [{}, {"passes": {"forward": {"samples": [-1.0]}}, "tokens": 1}])
def test_a_cell_that_claims_to_have_measured_what_cannot_be_is_measured_again(measured, tmp_path, monkeypatch):
    cell, good = a_cell_and_its_record()
    bad = dataclasses.replace(good, record_id="b" * 32, attempt=2, measurements=measured)
    Store(tmp_path).write(bad)
    monkeypatch.setattr(Runner, "run_cell", lambda self, cell, attempt, options: good)
    monkeypatch.setattr(sweep, "check_cells", lambda cells, cache_dir, **more: list(cells))
    (kept,) = sweep.run_sweep(a_sweep(tmp_path, cell))
    assert dataclasses.replace(kept, summary={}) == good


def test_a_measurement_that_cannot_be_is_an_error():
    _, good = a_cell_and_its_record()
    kept = runner.readable(dataclasses.replace(good, measurements={}))
    assert kept.status == "error" and kept.reason.startswith("what was measured is no record: ")
    assert dataclasses.replace(runner.readable(good), summary={}) == good


def test_what_killed_sweeps_left_is_cleared_and_what_others_write_is_not(tmp_path):
    cell, record = a_cell_and_its_record()
    store = Store(tmp_path)
    store.write(record)
    dead, alive = (tmp_path / "inputs" / f".{name}.safetensors.1.tmp" for name in ("dead", "alive"))
    unfinished = store.records_dir / f".{record.file_name}.1.tmp"
    half_a_plan = tmp_path / "sweeps" / ("a" * 16) / ".plan.json.gz.1.tmp"
    half_a_plan.parent.mkdir(parents=True)
    half_a_plan.write_text("{")
    left, measured = (tmp_path / "scratch" / (letter * 16) for letter in "bc")
    (tmp_path / "locks").mkdir()
    for folder in (left, measured):
        folder.mkdir(parents=True)
        (folder / "stderr").write_text("")
        (tmp_path / "locks" / f"{folder.name}.lock").write_text("")
    dead.parent.mkdir()
    dead.write_text("{")
    unfinished.write_text("{")
    with open(alive, "w") as file, FileLock(tmp_path / "locks" / f"{measured.name}.lock"):
        fcntl.flock(file, fcntl.LOCK_EX)
        sweep.run_sweep(a_sweep(tmp_path, cell))
    assert alive.exists() and not any(path.exists() for path in (dead, unfinished, half_a_plan))
    assert measured.exists() and not left.exists()
    sweep.run_sweep(a_sweep(tmp_path, cell))
    assert not alive.exists() and not measured.exists()


class Pretended:
    """Sweeps of four cells that are measured by `outcome(cell)`: fields of the record, or an exception to raise."""

    def __init__(self, folder, monkeypatch, outcome):
        self.cell, self.record = a_cell_and_its_record()
        self.store, self.measured, self.outcome = Store(folder), [], outcome
        self.cells = tuple(dataclasses.replace(self.cell, cell_id=digit * 64) for digit in "1234")
        monkeypatch.setattr(Runner, "run_cell", lambda runner, cell, attempt, options: self.run(cell, attempt))
        monkeypatch.setattr(sweep, "check_cells", lambda cells, cache_dir, **more: list(cells))

    def run(self, cell, attempt):
        changes = self.outcome(cell.cell_id[0])
        self.measured.append(cell.cell_id[0])
        now, number = datetime.now(UTC).isoformat(), len(self.store.names())
        ids = {"cell_id": cell.cell_id, "record_id": f"{number:x}".ljust(32, "0"), "started": now, "ended": now}
        return dataclasses.replace(self.record, attempt=attempt, **ids, **changes)

    def sweep(self, rerun):
        """The cells that are measured, and the records that stand."""
        self.measured.clear()
        settings = a_sweep(self.store.root, self.cell, rerun=rerun)
        return self.measured, sweep.run_sweep(dataclasses.replace(settings, cells=self.cells))


def test_a_rerun_that_was_interrupted_goes_on_and_a_finished_one_begins_afresh(tmp_path, monkeypatch):
    interrupted = []

    def outcome(digit):
        if digit == "3" and not interrupted:
            interrupted.append(digit)
            raise KeyboardInterrupt
        return {}

    pretended = Pretended(tmp_path, monkeypatch, outcome)
    with pytest.raises(KeyboardInterrupt):
        pretended.sweep("all")
    assert pretended.measured == ["1", "2"]
    assert pretended.sweep("all")[0] == ["3", "4"]
    assert pretended.sweep("all")[0] == ["1", "2", "3", "4"]
    assert len(pretended.store.load()) == 8


def test_a_cell_that_fails_when_it_is_measured_again_has_failed_and_keeps_its_result(tmp_path, monkeypatch):
    fails, failure = set(), {"status": "timeout", "measurements": {}}
    pretended = Pretended(tmp_path, monkeypatch, lambda digit: failure if digit in fails else {})
    assert exit_code(pretended.sweep("all")[1]) == 0
    fails.add("2")
    _, records = pretended.sweep("all")
    assert [one.status for one in records] == ["ok", "timeout", "ok", "ok"] and exit_code(records) == 1
    measured, records = pretended.sweep("failed")
    assert measured == [] and {one.status for one in records} == {"ok"}


@pytest.mark.parametrize("status", ["oom", "unsupported", "incorrect", "nonfinite"])
def test_a_rerun_of_one_status_repeats_that_alone(status, tmp_path, monkeypatch):
    """Beside what failed, which is measured again in any case; a result is kept if it fails the next time."""
    of_digit = {"1": ["timeout", "ok"], "2": [status, "crash", "ok"], "3": ["ok"]}
    of_digit["4"] = ["incorrect" if status == "oom" else "oom"]

    def outcome(digit):
        found = of_digit[digit].pop(0)
        return {"status": found} | ({} if found == "ok" else {"measurements": {}, "reason": found})

    pretended = Pretended(tmp_path, monkeypatch, outcome)
    assert pretended.sweep("failed")[0] == ["1", "2", "3", "4"]
    measured, records = pretended.sweep(status)
    assert measured == ["1", "2"] and [one.status for one in records][:3] == ["ok", "crash", "ok"]
    measured, records = pretended.sweep(status)
    assert measured == ["2"] and [one.status for one in records][:3] == ["ok"] * 3
    assert pretended.sweep(status)[0] == [] and len(pretended.store.load()) == 7


def test_a_rerun_of_what_was_disturbed_repeats_it_until_it_is_quiet(tmp_path, monkeypatch):
    said = {"1": [[]], "2": [["heat"], ["heat"], []], "3": [["heat"], []], "4": [None, []]}

    def outcome(digit):
        reasons = said[digit].pop(0)
        return {"status": "crash", "measurements": {}} if reasons is None else {"host_state": {"disturbed": reasons}}

    pretended = Pretended(tmp_path, monkeypatch, outcome)

    def again(rerun):
        measured, records = pretended.sweep(rerun)
        return measured, [bool(one.disturbed) for one in records]

    assert again("failed") == (["1", "2", "3", "4"], [False, True, True, False])
    assert again("failed") == (["4"], [False, True, True, False])
    assert again("disturbed") == (["2", "3"], [False, True, False, False])
    assert again("disturbed") == (["2"], [False, False, False, False])
    assert again("disturbed") == ([], [False, False, False, False])
    assert len(pretended.store.load()) == 8
