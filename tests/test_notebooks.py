"""The notebooks run, on synthetic records, and are stored without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.commands

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


def read(name):
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def execute(name, folder):
    client = NotebookClient(
        read(name), timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    return client.execute()


def mime_types(notebook):
    return [mime for cell in notebook.cells for output in cell.get("outputs", []) for mime in output.get("data", {})]


@pytest.mark.parametrize(("name", "figures"), [("speed_and_memory", 4), ("approximation_error", 4)])
def test_a_notebook_draws_its_figures_from_records(name, figures, synthetic_results, monkeypatch):
    monkeypatch.setenv("RESULTS_DIR", str(synthetic_results))
    shown = mime_types(execute(name, NOTEBOOKS))
    assert shown.count("image/png") == figures and "text/html" in shown


def test_one_cell_measures(tmp_path):
    done = execute("one_cell", tmp_path)
    assert "('ok', None)" in str(done.cells)
    assert "text/html" in mime_types(done)


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path):
    notebook = read(path.stem)
    assert notebook.metadata["kernelspec"]["name"] == "python3"
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
