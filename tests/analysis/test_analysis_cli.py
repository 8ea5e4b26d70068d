"""`python -m analysis` from the outside: files, words, one-line errors, exit codes."""

import numpy as np
import pandas as pd
import pytest
from synthetic_records import latency

from analysis.__main__ import main
from analysis.registry import FIGURES, TABLES
from bench.records.store import Store


@pytest.fixture
def one_cell(tmp_path):
    Store(tmp_path / "runs").write(latency("flash", 512, np.random.default_rng(0)))
    return tmp_path / "runs"


def test_figures_writes_what_it_can_and_says_why_not(one_cell, capsys):
    assert main(["figures", "--results", str(one_cell)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(FIGURES)
    written = sorted(path.name for path in (one_cell / "figures").iterdir())
    assert written == ["polysketchformer_figure1.png", "polysketchformer_figure1.svg"]
    assert "memory: skipped, needs records of bench=memory" in said


def test_one_figure_elsewhere(one_cell, tmp_path):
    arguments = ["figures", "--results", str(one_cell), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--figure", "polysketchformer_figure1"]) == 0
    assert len(list((tmp_path / "out").iterdir())) == 2
    assert main([*arguments, "--figure", "memory"]) == 1


def test_tables_are_written_as_markdown_and_csv(synthetic_results, one_cell, tmp_path, capsys):
    assert main(["tables", "--results", str(synthetic_results), "--out", str(tmp_path / "out")]) == 0
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {f"{name}.{suffix}" for name in TABLES for suffix in ("md", "csv")}
    rows = (tmp_path / "out" / "skeinformer_table3.md").read_text().splitlines()
    numbers = pd.read_csv(tmp_path / "out" / "skeinformer_table3.csv")
    assert len(rows) == 2 + len(numbers) and rows[0].split(" | ")[1:3] == ["attention", "n"]
    capsys.readouterr()
    assert main(["tables", "--results", str(one_cell), "--table", "skeinformer_table3"]) == 1
    assert capsys.readouterr().out == "skeinformer_table3: skipped, needs records of bench=flops\n"


def test_list_names_every_figure_and_table(synthetic_results, one_cell, capsys):
    assert main(["list", "--results", str(synthetic_results)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == [*FIGURES, *TABLES] and all(line.endswith("ready") for line in said)
    assert main(["list", "--results", str(one_cell)]) == 0
    assert "needs records of bench=spectral_norm" in capsys.readouterr().out


def test_table_has_one_row_per_cell_and_csv_has_every_number(synthetic_results, tmp_path, capsys):
    assert main(["table", "--results", str(synthetic_results), "--csv", str(tmp_path / "all.csv")]) == 0
    said = capsys.readouterr().out
    cells = len(list((synthetic_results / "records").iterdir()))
    tables, crossovers = said.split("Crossovers:")
    rows = [line for line in tables.splitlines() if line.startswith("| ")]
    benches = tables.count("| bench |")
    assert len(rows) == cells + 2 * benches
    assert any("softmax" in row and "oom" in row for row in rows) and "performer" in crossovers
    written = pd.read_csv(tmp_path / "all.csv")
    assert written["cell_id"].nunique() == cells and "raw" not in written


def test_no_records_is_one_line(tmp_path, capsys):
    assert main(["figures", "--results", str(tmp_path / "missing")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("analysis: results_dir=") and "missing" in error


@pytest.mark.parametrize("arguments", [[], ["paint"], ["figures", "--figure", "nothing"]])
def test_wrong_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
