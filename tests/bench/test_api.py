"""The front doors: what they show of a finished sweep may fail, the sweep does not."""

import pytest
from command import python
from refusals import refused
from synthetic_records import memory, written

import analysis
from bench import api
from bench.execution.sweep import Sweep
from bench.plan.config import Config
from bench.tracking.mirror import Mirror


@pytest.fixture
def finished(monkeypatch, tmp_path):
    """A sweep of two cells that is done; of the mirror only the figures of summaries are left."""
    records, summaries = [memory("flash", n) for n in (512, 1024)], []
    written(tmp_path, records)
    monkeypatch.setattr(api, "run_sweep", lambda sweep, on_records, on_progress: records)
    for name in ("load", "create", "sync"):
        monkeypatch.setattr(Mirror, name, lambda self, records=(): None)
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


def test_one_text_is_no_list_of_overrides():
    with refused("overrides='seq_len=64': must be a list, such as ["):
        api.run("seq_len=64")


BESIDE = ("bench", "analysis", "hydra", "mlflow", "pandas", "matplotlib", "transformers")
IMPORTS = {
    "analysis": [
        ("bench.cli.console", "bench.cli", ("torch", "numpy")),
        ("bench.records.statistics", "numpy", ("torch", "hydra", "mlflow", "pandas", "matplotlib")),
        ("analysis", "analysis", ("torch", "bench.measures", "pandas", "matplotlib")),
        ("analysis.__main__", "pandas", ("torch", "bench.measures", "hydra", "mlflow")),
    ],
    "bench": [
        ("bench.tracking.mirror", "bench.records", ("torch", "mlflow", "pandas")),
        ("bench.status", "bench.records.plans", ("torch", "hydra", "mlflow")),
    ],
    "torch": [
        ("attention_zoo", "torch", ("torch._dynamo", *BESIDE)),
        ("bench.execution.child", "bench.measures.context", ("bench.plan.co", "bench.plan.cell", "hydra")),
        ("bench.execution.sweep", "torch", ("torch._dynamo", "mlflow", "analysis", "matplotlib")),
    ],
}


@pytest.mark.parametrize("steps", IMPORTS.values(), ids=IMPORTS)
def test_what_importing_loads(steps):
    """One process imports several, one after the other: what is missing after a step was loaded by none so far."""
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name); print(*sys.modules)"
    ran = python("-c", code, *(module for module, *_ in steps))
    for (module, needs, neither), loaded in zip(steps, map(str.split, ran.stdout.splitlines()), strict=True):
        assert needs in loaded and not [name for name in loaded if name.startswith(neither)], module
