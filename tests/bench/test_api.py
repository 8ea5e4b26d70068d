"""The front doors: what they show of a finished sweep may fail, the sweep does not."""

import subprocess
import sys

import pytest
from command import ROOT, environment
from synthetic_everything import everything

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


@pytest.mark.parametrize(
    ("owner", "name", "warning", "drawn"),
    [
        (analysis, "draw", "figures of the sweep: Axis limits cannot be NaN or Inf; the records are safe", [[]]),
        (Mirror, "summary", "Axis limits cannot be NaN or Inf", []),
    ],
)
def test_what_cannot_be_drawn_or_mirrored_costs_a_warning(owner, name, warning, drawn, finished, monkeypatch, capsys):
    sweep, records, summaries = finished
    monkeypatch.setattr(analysis, "draw", lambda *args: [])
    monkeypatch.setattr(owner, name, fail)
    assert api.launch(sweep, api.print_table) == records
    assert summaries == drawn
    printed = capsys.readouterr()
    # Beside them it says that it waits for MLflow, on a slow machine.
    (line,) = [line for line in printed.err.splitlines() if line.startswith("warning: ")]
    assert warning in line and printed.out.startswith("| status")


def test_the_summary_shows_the_figures_of_its_sweep_alone(finished, monkeypatch):
    sweep, records, summaries = finished
    monkeypatch.setattr(analysis, "draw", lambda *args: list(args))
    api.launch(sweep)
    ((results_dir, folder, cell_ids),) = summaries
    assert folder.parent.parent == results_dir and folder.name == sweep.sweep_id
    assert cell_ids == {record.cell_id for record in records}


@pytest.mark.parametrize(
    ("module", "needs", "neither"),
    [
        ("bench.execution.sweep", "torch", ("bench.tracking.mirror", "mlflow", "analysis", "matplotlib")),
        ("bench.execution.child", "bench.measures.context", ("bench.plan.co", "bench.plan.cell", "hydra")),
        ("bench.records.statistics", "numpy", ("torch", "hydra", "mlflow", "pandas", "matplotlib")),
        ("bench.tracking.mirror", "bench.records", ("torch", "mlflow", "pandas")),
        ("analysis", "analysis", ("torch", "bench.measures", "pandas", "matplotlib")),
        ("analysis.__main__", "pandas", ("torch", "bench.measures", "hydra", "mlflow")),
    ],
)
def test_what_importing_loads(module, needs, neither):
    code = f"import sys, {module}; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=environment()
    )
    loaded = ran.stdout.split()
    assert needs in loaded and not [name for name in loaded if name.startswith(neither)]
