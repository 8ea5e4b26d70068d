"""The committed figures and tables are those that the committed records make, and name the machine they come from."""

import re
from pathlib import Path

import pytest

from analysis.__main__ import main
from bench.records.store import Store

RESULTS = Path(__file__).parents[1] / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("*/records"))


def rounded(svg):
    """The text without digits that another processor may round otherwise, and without the ids made from them."""
    svg = re.sub(r"\b[pm][0-9a-f]{10}\b", "id", svg)
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.1f}", svg)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_figures_are_made_from_the_records(folder, tmp_path):
    main(["figures", "--results", str(folder), "--out", str(tmp_path), "--formats", "svg"])
    made = {path.name: rounded(path.read_text()) for path in tmp_path.glob("*.svg")}
    committed = {path.name: rounded(path.read_text()) for path in (folder / "figures").glob("*.svg")}
    assert made and made.keys() == committed.keys()
    for name, svg in made.items():
        assert svg == committed[name], f"{name}: draw it again with `make figures RESULTS={folder}`"


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
