"""The front doors: what they show of a finished sweep may fail, the sweep does not."""

import subprocess
import sys

import pytest
from command import ROOT, environment
from synthetic_records import everything

import analysis
from bench import api
from bench.execution.sweep import Sweep
from bench.plan.config import Config
from bench.records.store import Store
from bench.tracking.mirror import Mirror


@pytest.fixture
def finished(monkeypatch, tmp_path):
    """A sweep of two cells that is done; the mirror's summaries are lists of figures."""
    records, summaries = everything()[:2], []
    store = Store(tmp_path)
    for record in records:
        store.write(record)
    monkeypatch.setattr(api, "run_sweep", lambda sweep, on_records, on_progress: records)
    monkeypatch.setattr(Mirror, "summary", lambda self, sweep_id, records, figures, table: summaries.append(figures))
    tracking = {"name": "mlflow", "experiment": "attention-zoo", "uri": None}
    settings = Config(attention={}, bench={}, inputs={}, tracking=tracking, results_dir=str(tmp_path))
    return Sweep((), settings, ()), records, summaries


def fail(*args, **kwargs):
    raise ValueError("Axis limits cannot be NaN or Inf\nand more")


def warnings_in(stderr):
    """Beside them it says that it waits for MLflow, on a slow machine."""
    return [line.removeprefix("warning: ") for line in stderr.splitlines() if line.startswith("warning: ")]


def test_a_figure_that_cannot_be_drawn_costs_a_warning(finished, monkeypatch, capsys):
    sweep, records, summaries = finished
    monkeypatch.setattr(analysis, "draw", fail)
    assert api.launch(sweep, api.print_table) == records
    assert summaries == [[]]
    printed = capsys.readouterr()
    assert warnings_in(printed.err) == ["figures of the sweep: Axis limits cannot be NaN or Inf; the records are safe"]
    assert printed.out.startswith("| status")


def test_a_summary_that_cannot_be_written_costs_a_warning(finished, monkeypatch, capsys):
    sweep, records, _ = finished
    monkeypatch.setattr(analysis, "draw", lambda *args: [])
    monkeypatch.setattr(Mirror, "summary", fail)
    assert api.launch(sweep, api.print_table) == records
    printed = capsys.readouterr()
    (warning,) = warnings_in(printed.err)
    assert "Axis limits" in warning
    assert printed.out.startswith("| status")


def test_the_summary_shows_the_figures_of_its_sweep_alone(finished, monkeypatch):
    sweep, records, summaries = finished
    monkeypatch.setattr(analysis, "draw", lambda *args: list(args))
    api.launch(sweep)
    ((results_dir, folder, cell_ids),) = summaries
    assert folder.parent.parent == results_dir and folder.name == sweep.sweep_id
    assert cell_ids == {record.cell_id for record in records}


def loaded_by(module):
    code = f"import sys, {module}; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=environment()
    )
    return set(result.stdout.split())


def test_execution_knows_neither_mlflow_nor_figures():
    loaded = loaded_by("bench.execution.sweep")
    assert "torch" in loaded
    assert not {"bench.tracking.mirror", "mlflow", "analysis", "matplotlib"} & loaded


def test_the_child_imports_neither_the_planner_nor_hydra():
    loaded = loaded_by("bench.execution.child")
    assert "bench.measures.context" in loaded
    assert not {module for module in loaded if module.startswith(("bench.plan.co", "bench.plan.cell", "hydra"))}
