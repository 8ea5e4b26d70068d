"""`python -m bench.status`: what of a sweep is done, running, waiting and failed."""

import dataclasses
import os
import time

import pytest
from synthetic_records import memory

from bench import status
from bench.common.errors import ConfigError
from bench.execution.locks import hold
from bench.measures.progress import Progress
from bench.records import plans
from bench.records.store import Store


def planned(folder, statuses):
    """A sweep whose cells have these statuses; None waits."""
    store, cells = Store(folder), []
    for seed, told in enumerate(statuses):
        one = memory("flash", 64, told or "oom", seed=seed)
        cells.append(plans.SavedCell(one.cell_id, "latency flash", one.config, 60.0, None, []))
        if told:
            store.write(one)
    plan = plans.SavedPlan("ab" * 8, ["seed=1,2"], {}, {}, [], cells)
    (folder / plans.FOLDER).mkdir()
    plans.save(folder, plan)
    return plan


def ask(capsys, folder, *arguments):
    code = status.main([*arguments, "--results", str(folder)])
    return code, capsys.readouterr()


def test_it_counts_and_says_why_cells_failed(tmp_path, capsys):
    planned(tmp_path, ["ok", "oom", "crash"])
    code, told = ask(capsys, tmp_path, "ab")
    assert code == 1 and "3 cells: 2 done (1 ok, 1 oom), 1 failed, 0 running, 0 waiting" in told.out
    assert "failed   latency flash seed=2: crash, synthetic crash" in told.out
    assert "python -m bench seed=1,2" in told.out
    assert ask(capsys, tmp_path, "--watch")[0] == 1


def test_an_interrupted_cell_waits(tmp_path, capsys):
    """As those of a job that was preempted: the same command, or the requeued job, goes on."""
    planned(tmp_path, ["ok", "interrupted"])
    code, told = ask(capsys, tmp_path)
    assert code == status.UNFINISHED and "1 done (1 ok), 0 failed, 0 running, 1 waiting" in told.out


def test_a_failed_cell_that_is_interrupted_when_it_is_tried_again_waits(tmp_path, capsys):
    plan = planned(tmp_path, ["crash"])
    (crash,) = Store(tmp_path).load()
    later = {"record_id": "f" * 32, "attempt": 2, "ended": "9" + crash.ended[1:]}
    Store(tmp_path).write(dataclasses.replace(crash, status="interrupted", **later))
    assert len(Store(tmp_path).of_cell(plan.cells[0].cell_id)) == 2
    code, told = ask(capsys, tmp_path)
    assert code == status.UNFINISHED and "0 failed, 0 running, 1 waiting" in told.out


def test_what_is_measured_again_waits_until_it_is(tmp_path, capsys):
    plan = planned(tmp_path, ["ok", "crash", "ok"])
    older = plans.older(tmp_path, plan.sweep_id)
    older.write_text("\n".join(one.record_id for one in Store(tmp_path).load() if one.status == "ok"))
    assert ask(capsys, tmp_path)[0] == status.FAILURES, "another command left it"
    plans.save(tmp_path, dataclasses.replace(plan, settings={"rerun": "all"}))
    code, told = ask(capsys, tmp_path)
    assert code == status.UNFINISHED and "1 failed, 0 running, 2 waiting" in told.out
    older.unlink()
    assert ask(capsys, tmp_path)[0] == status.FAILURES


def test_it_says_what_runs_and_how_long_the_rest_takes(tmp_path, capsys, monkeypatch):
    plan = planned(tmp_path, ["ok", None, None])
    name = plan.cells[1].cell_id[:16]
    scratch = tmp_path / "scratch" / name
    scratch.mkdir(parents=True)
    assert "0 running, 2 waiting" in ask(capsys, tmp_path)[1].out  # of a sweep that was killed
    (scratch / "progress").write_text(Progress("sample 3 of 10").encode())
    for key, value in {"JOB_ID": "14", "ARRAY_JOB_ID": "12", "ARRAY_TASK_ID": "3"}.items():
        monkeypatch.setenv(f"SLURM_{key}", value)
    with hold(tmp_path / "locks" / f"{name}.lock", "x"):
        code, told = ask(capsys, tmp_path)
    assert code == status.UNFINISHED and "1 running, 1 waiting" in told.out and "sample 3 of 10" in told.out
    assert ", slurm job 12_3, for " in told.out
    assert "time left: about 2 s" in told.out or "time left: about 1 s" in told.out
    code, told = ask(capsys, tmp_path)
    assert code == status.UNFINISHED and "time left: unknown" in told.out


def test_a_sweep_that_goes_on_is_the_newest(tmp_path):
    plan = planned(tmp_path, ["ok"])
    file = plans.save(tmp_path, plan)
    os.utime(file, (1, 1))
    plans.save(tmp_path, dataclasses.replace(plan, sweep_id="cd" * 8))
    assert plans.find(tmp_path, "").sweep_id == "cd" * 8
    time.sleep(0.02)
    plans.save(tmp_path, plan)
    assert plans.find(tmp_path, "").sweep_id == plan.sweep_id


@pytest.mark.parametrize("wanted", ["cd", "ab"])
def test_what_is_not_there_is_one_line(wanted, tmp_path, capsys):
    planned(tmp_path, ["ok"])
    if wanted == "ab":
        (tmp_path / "sweeps" / ("ab" * 8) / "plan.json.gz").write_bytes(b"torn")
    code, told = ask(capsys, tmp_path, wanted)
    assert code == 2 and told.out == "" and told.err.startswith("error: ") and told.err.count("\n") == 1
    assert ask(capsys, tmp_path, "--all")[0] == 0


def test_the_begin_of_an_id_names_a_sweep_if_no_other_begins_so(tmp_path):
    with pytest.raises(ConfigError, match=r"^no sweep in .*; --results=DIR says where sweeps write$"):
        plans.find(tmp_path, "")
    planned(tmp_path, [None])
    for sweep_id in ("cd" * 8, "ce" * 8):
        plans.save(tmp_path, plans.SavedPlan(sweep_id, [], {}, {}, [], []))
    assert plans.find(tmp_path, "cd").sweep_id == "cd" * 8
    with pytest.raises(ConfigError, match=r"^sweep='c': several sweeps begin so; must be one of c.{15}, c.{15}$"):
        plans.find(tmp_path, "c")
    with pytest.raises(ConfigError, match=r"^sweep='x': no sweep in .* begins so; must be one of .*abab"):
        plans.find(tmp_path, "x")


def test_what_a_cell_costs_does_not_grow_with_their_number(tmp_path):
    few, many = (tmp_path / name for name in ("few", "many"))
    costs = {}
    for folder, cells in ((few, 500), (many, 5000)):
        folder.mkdir()
        plan = planned(folder, [None] * cells)
        costs[cells] = min(_seconds_of_report(folder, plan, cells) for _ in range(3))
    assert costs[5000] < 20 * costs[500], "in proportion they are 10 to 1"


def _seconds_of_report(folder, plan, cells):
    began = time.process_time()
    state = status.State(Store(folder), plans.load(folder, plan.sweep_id))
    status.report(state)
    assert len(state.waiting) == cells
    return time.process_time() - began
