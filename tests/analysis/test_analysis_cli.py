"""`python -m analysis` from the outside: files, words, one-line errors, exit codes."""

import signal
import subprocess
import sys

import pandas as pd
import pytest
from odd_records import one_of_each
from synthetic_quality import quality
from synthetic_records import compare, flops, latency, memory, train_step, written

from analysis import __main__ as cli
from analysis.__main__ import main
from analysis.registry import FIGURES, TABLES


@pytest.fixture
def one_cell(tmp_path, rng):
    return written(tmp_path / "runs", [latency("flash", 512, rng)])


def test_figures_writes_what_it_can_and_says_why_not(one_cell, tmp_path, capsys):
    assert main(["figures", "--results", str(one_cell)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(FIGURES)
    written = sorted(path.name for path in (one_cell / "figures").glob("[!.]*"))
    assert written == ["polysketchformer_figure1.png", "polysketchformer_figure1.svg"]
    assert "memory: skipped, needs an ok record of bench=memory" in said
    arguments = ["figures", "--results", str(one_cell), "--out", str(tmp_path / "out"), "--figure"]
    assert [main([*arguments, name]) for name in ("polysketchformer_figure1", "memory")] == [0, 1]
    assert len(list((tmp_path / "out").glob("[!.]*"))) == 2


def test_tables_are_written_as_markdown_and_csv(one_cell, tmp_path, capsys):
    sizes = {"softmax": None, "skeinformer": 256}
    counted = [flops(label, n, n * 10**6, size) for label, size in sizes.items() for n in (1024, 2048)]
    assert main(["tables", "--results", str(written(tmp_path / "two", counted)), "--out", str(tmp_path / "out")]) == 0
    names = {path.name for path in (tmp_path / "out").glob("[!.]*")}
    assert names == {f"{name}.{suffix}" for name in ("skeinformer_table3", "gate_cost") for suffix in ("md", "csv")}
    assert capsys.readouterr().out.count(": skipped, ") == len(TABLES) - 2
    text = (tmp_path / "out" / "skeinformer_table3.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    numbers = pd.read_csv(tmp_path / "out" / "skeinformer_table3.csv")
    assert len(rows) == 2 + len(numbers) and rows[0].split(" | ")[1:3] == ["mechanism", "n (tokens)"]
    assert main(["tables", "--results", str(one_cell), "--table", "skeinformer_table3"]) == 1
    said = "skeinformer_table3: skipped, needs ok records of bench=flops at head_dim=32, d=256\n"
    assert capsys.readouterr().out == said


def test_what_a_figure_leaves_out_is_said_once_with_its_name(tmp_path, rng, capsys):
    records = [latency("flash", n, rng, causal=causal) for n, causal in ((512, True), (1024, True), (512, False))]
    arguments = ["figures", "--results", str(written(tmp_path, records)), "--figure", "polysketchformer_figure1"]
    assert main(arguments) == 0
    said = capsys.readouterr().err.splitlines()
    assert said == ["polysketchformer_figure1: bench=latency: left out what has one length: not causal"]


MECHANISMS = ("polysketch_random_r32", "flash", "polysketch_learned_local_r64", "softmax")


def test_a_figure_for_a_paper(tmp_path):
    results = written(tmp_path / "runs", [memory(label, n) for label in MECHANISMS for n in (512, 1024)])
    arguments = ["figures", "--results", str(results), "--out", str(tmp_path), "--figure", "memory"]
    arguments += ["--formats", "pdf,csv", "--width", "single", "--captions", "txt", "--names", "papers"]
    assert main([*arguments, "--mechanisms", "softmax", "polysketch*"]) == 0
    assert {path.name for path in tmp_path.glob("memory*")} == {"memory.pdf", "memory.csv", "memory.txt"}
    numbers = pd.read_csv(tmp_path / "memory.csv")
    named = ["Softmax", "Polysketch (learned + local, r = 64)", "Polysketch (random, r = 32)"]
    assert sorted(set(numbers["series"])) == sorted(named)
    assert (tmp_path / "memory.txt").read_text().startswith("Peak memory above that of inputs and parameters.")


def test_a_table_for_a_paper(tmp_path, rng):
    results = written(tmp_path / "runs", [train_step(label, n, rng) for label in MECHANISMS for n in (512, 1024)])
    arguments = ["tables", "--results", str(results), "--out", str(tmp_path), "--names", "papers"]
    arguments += ["--table", "polysketchformer_table4", "--formats", "tex,csv", "--mechanisms", "polysketch*", "flash"]
    assert main(arguments) == 0
    numbers = pd.read_csv(tmp_path / "polysketchformer_table4.csv")
    named = ["Polysketch (learned + local, r = 64)", "Polysketch (random, r = 32)", "FlashAttention"]
    assert list(dict.fromkeys(numbers["attention"])) == named
    lines = (tmp_path / "polysketchformer_table4.tex").read_text().splitlines()
    assert [line for line in lines if line.endswith("rule")] == [r"\toprule", r"\midrule", r"\bottomrule"]
    rows = [line for line in lines if line.endswith(r" \\")]
    assert len(rows) == 1 + len(numbers) and len({row.count(" & ") for row in rows}) == 1


def test_a_table_of_some_mechanisms_has_rows_of_the_whole_table(tmp_path, monkeypatch):
    """Diagnoses, baselines and corrections are those of all that was measured, whatever is shown."""
    names = ("paired", "equal_quality", "trained")
    monkeypatch.setattr(cli, "TABLES", {name: TABLES[name] for name in names})
    arguments = ["tables", "--results", str(written(tmp_path / "runs", quality())), "--formats", "csv"]
    assert main([*arguments, "--out", str(tmp_path / "whole")]) == 0
    assert main([*arguments, "--out", str(tmp_path / "some"), "--mechanisms", "performer"]) == 0
    for name in names:
        whole, some = (pd.read_csv(tmp_path / folder / f"{name}.csv") for folder in ("whole", "some"))
        expected = whole[whole["attention"].str.split().str[0] == "performer"]
        assert 0 < len(expected) < len(whole), name
        pd.testing.assert_frame_equal(some, expected.reset_index(drop=True))


def test_list_names_every_figure_and_table(one_cell, capsys):
    assert main(["list", "--results", str(one_cell)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == [*FIGURES, *TABLES]
    assert [line.split(":")[0] for line in said if line.endswith("ready")] == ["polysketchformer_figure1", "gate_cost"]
    assert any("needs an ok record of bench=spectral_norm" in line for line in said)


def test_table_has_one_row_per_cell_and_csv_has_every_number(tmp_path, rng, capsys):
    records = [compare(("flash", "performer"), 8192, rng), latency("softmax", 512, rng, "oom")]
    records += one_of_each(0).values()
    results = written(tmp_path / "runs", records)
    assert main(["table", "--results", str(results), "--csv", str(tmp_path / "all.csv")]) == 0
    said = capsys.readouterr().out
    cells = len(records)
    tables, crossovers = said.split("Crossovers:")
    rows = [line for line in tables.splitlines() if line.startswith("| ")]
    benches = tables.count("| bench |")
    assert len(rows) == cells + 2 * benches
    assert any("softmax" in row and "oom" in row for row in rows) and "performer" in crossovers
    numbers = pd.read_csv(tmp_path / "all.csv")
    assert numbers["cell_id"].nunique() == cells and "raw" not in numbers


@pytest.mark.commands
def test_it_ends_quietly_where_nobody_reads_on(one_cell):
    command = [sys.executable, "-m", "analysis", "table", "--results", one_cell]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.close()
        assert running.stderr.read() == b"" and running.wait() == -signal.SIGPIPE


def test_no_records_is_one_line(tmp_path, capsys):
    assert main(["figures", "--results", str(tmp_path / "missing")]) == 2
    assert capsys.readouterr().err.startswith("error: --results=")
    (tmp_path / "missing").mkdir()
    assert main(["figures", "--results", str(tmp_path / "missing")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("error: results_dir=") and "missing" in error


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        ("", "figures|tables|table|list"),
        ("paint", "'figures'"),
        ("figures --figure nothing", "skeinformer_figure1"),
        ("figures --formats png,gif", "'gif': must be some of png, svg, pdf, csv"),
        ("tables --formats svg", "'svg': must be some of md, csv, tex"),
        ("tables --names mine", "papers"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what_is_allowed(arguments, allowed, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments.split())
    assert stopped.value.code == 2 and allowed in capsys.readouterr().err
