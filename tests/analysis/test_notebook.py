"""Notebooks find records, draw figures by their names, and go on where there are no records."""

import numpy as np
import pytest
from synthetic_records import capacity, latency, memory, written

from analysis import notebook
from analysis.plots.layout import page
from analysis.selection import MissingRecords

LENGTHS = (512, 1024)


def latencies(labels=("flash", "performer")):
    rng = np.random.default_rng(0)
    return [latency(label, n, rng) for label in labels for n in LENGTHS]


def memories():
    return [memory(label, n) for label in ("softmax", "flash") for n in LENGTHS]


@pytest.fixture
def displayed(monkeypatch):
    """What was displayed."""
    seen = []
    monkeypatch.setattr(notebook, "display", seen.append)
    return seen


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The folder of notebooks in an empty checkout."""
    monkeypatch.delenv("RESULTS_DIR", raising=False)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    return tmp_path


def test_records_are_those_named_else_ones_own_else_those_of_the_repository(here, monkeypatch, capsys):
    with pytest.raises(MissingRecords, match="RESULTS_DIR names"):
        notebook.records()
    written(here / "results" / "quality", memories())
    written(here / "results" / "laptop", latencies())
    both = notebook.records()
    benches = both.groupby("folder", sort=False)["bench"].unique().map(list).to_dict()
    assert benches == {"results/laptop": ["latency"], "results/quality": ["memory"]}
    assert both.index.is_unique and "4 cells of results/laptop, 4 cells of results/quality" in capsys.readouterr().out
    (here / "runs").mkdir()  # of a server, say, that has seen no records yet
    assert notebook.records().equals(both)
    written(here / "runs", latencies(["flash"]))
    assert set(notebook.records()["folder"]) == {f"{here.name}/runs"}
    named = written(here / "other", memories())
    monkeypatch.setenv("RESULTS_DIR", f"{named}:{here / 'results' / 'laptop'}")
    assert set(notebook.records()["folder"]) == {f"{here.name}/other", "results/laptop"}


def test_a_figure_is_drawn_for_each_folder_that_has_records_for_it(here, displayed, capsys):
    written(here / "results" / "laptop", latencies() + memories())
    written(here / "results" / "quality", memories())
    frame = notebook.records()
    notebook.figure("polysketchformer_figure1", frame)
    assert [one.alt for one in displayed] == ["polysketchformer_figure1"]
    notebook.figure("memory", frame)
    assert [one.alt for one in displayed] == ["polysketchformer_figure1", "memory", "memory"]
    assert all(one.data.startswith(b"\x89PNG") for one in displayed)
    capsys.readouterr()
    notebook.figure("thesis", frame)
    notebook.table("capacities", frame)
    assert len(displayed) == 3
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in said] == [["thesis:", "skipped,"], ["capacities:", "skipped,"]]


def test_what_no_folder_has_alone_is_made_from_all(here, displayed, monkeypatch):
    written(here / "results" / "laptop", latencies())
    written(here / "results" / "quality", memories())

    def both(rows):
        if rows["bench"].nunique() < 2:
            raise MissingRecords("needs both")
        return rows[["bench"]].drop_duplicates()

    monkeypatch.setitem(notebook.TABLES, "both", both)
    notebook.table("both", notebook.records())
    assert len(displayed) == 1 and "latency" in displayed[0].data and "memory" in displayed[0].data


def test_a_table_in_a_notebook_links_to_no_file(here, displayed):
    rng = np.random.default_rng(0)
    records = [capacity("polysketch_random_r32", size, pairs, rng) for size, pairs in ((8, 30), (16, 120))]
    written(here / "runs", records)
    notebook.table("capacities", notebook.records())
    assert "|" in displayed[0].data and "csv" not in displayed[0].data


def test_a_caption_that_is_not_in_the_picture_is_printed_in_short_lines(here, displayed, capsys):
    written(here / "runs", latencies())
    frame = notebook.records()
    with page("single", captions=False):
        notebook.figure("polysketchformer_figure1", frame)
    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1 and max(map(len, lines)) <= notebook.WIDTH


def test_an_unknown_name_is_a_mistake():
    with pytest.raises(ValueError, match="name='nothing': must be one of skeinformer_figure1, "):
        notebook.figure("nothing", None)
