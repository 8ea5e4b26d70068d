"""The committed figures and tables are those that the committed records make, and name the machine they come from."""

import re
from pathlib import Path

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.frame import load
from analysis.plots.files import save
from analysis.registry import FIGURES, made
from bench.records.store import Store

RESULTS = Path(__file__).parents[1] / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("*/records"))


def parts(svg):
    """A figure's text without numbers, and the numbers."""
    svg = re.sub(r"\b[pm][0-9a-f]{10}\b", "id", svg)
    return re.sub(r"\d+\.\d+", "#", svg), [float(number) for number in re.findall(r"\d+\.\d+", svg)]


def rounded(text):
    """The text without digits that another processor may round otherwise."""
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.1f}", text)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_figures_are_made_from_the_records(folder, tmp_path):
    frame = load(folder)
    drawn = dict(made(frame, FIGURES, lambda name, figure: save(figure, tmp_path, name, ["svg"])))
    assert len(drawn) == len(FIGURES)
    found = {path.name: parts(path.read_text()) for path in tmp_path.glob("*.svg")}
    committed = {path.name: parts(path.read_text()) for path in (folder / "figures").glob("*.svg")}
    assert found and found.keys() == committed.keys()
    for name, (text, numbers) in found.items():
        again = f"{name}: draw it again with `make figures RESULTS={folder}`"
        assert text == committed[name][0], again
        # The layout moves a little after a first drawing, here of the PNG, which takes as long as all of this.
        np.testing.assert_allclose(numbers, committed[name][1], atol=0.2, err_msg=again)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_tables_are_made_from_the_records(folder, tmp_path):
    main(["tables", "--results", str(folder), "--out", str(tmp_path)])
    made = {path.name: rounded(path.read_text()) for path in tmp_path.glob("*.md")}
    committed = {path.name: rounded(path.read_text()) for path in (folder / "tables").glob("*.md")}
    assert made and made == committed, f"write them again with `make tables RESULTS={folder}`"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_records_say_where_they_come_from(folder):
    records = Store(folder).load()
    assert len(records) == len(list((folder / "records").glob("*.json"))) >= 9
    for record in records:
        assert record.machine["device_name"] and record.machine["torch"] and record.code["git_sha"]
        assert record.status in ("ok", "oom", "unsupported"), record.config["label"]
