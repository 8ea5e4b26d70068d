"""The notebooks run, on any records; what they are stored with is of the records in `results/`, and small."""

import copy
import re

import nbformat
import pytest

from analysis.registry import FIGURES
from tools.pages.notebook_page import page, pictures
from tools.pages.notebooks import FOLDER, MEASURED, RESULTS, ROOT, kept, of_results, run

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST = 1.75e6  # bytes of all pictures, of thirteen tasks
AGAIN = "run them again: `make notebooks`"

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def runs(path):
    """What only shows figures and tables, which have tests of their own, is slow; what measures runs with commands."""
    mark = "commands" if f'"{MEASURED}"' in path.read_text() else "slow"
    return pytest.param(path, id=path.stem, marks=getattr(pytest.mark, mark))


def read(path):
    return nbformat.read(path, as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(notebook):
    """What a notebook shows: its texts and tables, without digits that another processor may round otherwise."""
    said = []
    for cell in code(notebook):
        if MEASURED not in cell.metadata.get("tags", []):
            for output in cell.outputs:
                data = output.get("data", {"text/plain": output.get("text", "")})
                text = "a picture" if "image/png" in data else data.get("text/markdown", data["text/plain"])
                said.append(re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.1f}", text))
    return said


def words(notebook):
    return "".join(output.get("text", "") for cell in code(notebook) for output in cell.outputs)


def number_of_pictures(notebook):
    return sum("image/png" in output.get("data", {}) for cell in code(notebook) for output in cell.outputs)


def test_every_figure_is_drawn_in_a_notebook():
    sources = "\n".join(cell.source for path in NOTEBOOKS for cell in code(read(path)))
    assert set(re.findall(r'figure\("(\w+)"', sources)) == set(FIGURES)


@each_notebook
def test_a_notebook_is_stored_with_what_it_shows_and_nothing_of_the_run(path):
    notebook = read(path)
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "results": of_results(),
    }, AGAIN
    assert [cell.execution_count for cell in code(notebook)] == [*range(1, len(code(notebook)) + 1)], AGAIN
    assert number_of_pictures(notebook) and all(cell.metadata.keys() <= {"tags"} for cell in notebook.cells)
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"display_data", "execute_result", "stream"}
    assert str(ROOT) not in path.read_text()


def test_the_notebooks_are_small():
    assert sum(len(content) for path in NOTEBOOKS for _, content in pictures(path)) < MOST


@each_notebook
def test_no_number_that_may_change_is_typed(path):
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    text = re.sub(r"Theorem 1\.1|Figures 5\.1 to 5\.8", "", text)
    assert re.findall(r"\d+\.\d+|\d+ ?(?:%|x\b|times)|\d,\d", text) == []


@each_notebook
def test_a_page_shows_every_picture_table_and_word(path):
    notebook, text = read(path), page(path.stem)
    files = dict(pictures(path))
    assert re.findall(r'src="\.\./_static/notebook_pictures/([^"]+)"', text) == [*files]
    assert len(files) == number_of_pictures(notebook)
    assert all(content.startswith(b"\x89PNG") for content in files.values())
    for cell in notebook.cells:
        assert cell.source.replace("](../docs/", "](") in text
        for output in cell.get("outputs", []):
            assert output.get("data", {}).get("text/markdown", "") in text and output.get("text", "").rstrip() in text
    assert "](../docs" not in text and "dataframe" not in text


def test_a_cell_that_measures_keeps_what_it_showed_until_its_code_changes():
    measured = nbformat.v4.new_code_cell("time()", metadata={"tags": [MEASURED]})
    old = nbformat.v4.new_notebook(cells=[measured, nbformat.v4.new_code_cell("figure()")])
    for number, cell in enumerate(old.cells):
        cell.outputs = [nbformat.v4.new_output("stream", text=f"old {number}")]
    new = copy.deepcopy(old)
    for cell in new.cells:
        cell.outputs = [nbformat.v4.new_output("stream", text="new")]
    changed = copy.deepcopy(new)
    changed.cells[0].source = "time.time()"
    assert words(kept(copy.deepcopy(new), old)) == "old 0new"
    assert words(kept(changed, old)) == "newnew"


@pytest.mark.parametrize("path", [runs(path) for path in NOTEBOOKS])
def test_a_notebook_runs_on_any_records_and_writes_nothing_beside_itself(path, synthetic_results, tmp_path):
    done = run(path, [synthetic_results], tmp_path)
    calls = sum(cell.source.count('figure("') for cell in code(done))
    assert number_of_pictures(done) >= calls >= 1 and "skipped" not in words(done)
    assert [*tmp_path.iterdir()] == []
    if path.stem == "one_cell":
        assert "('ok', None)" in str(done.cells)


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if shown(read(path))], ids=lambda path: path.stem)
def test_what_a_notebook_shows_is_of_the_records_in_the_repository(path):
    assert shown(run(path, RESULTS)) == shown(read(path)), AGAIN
