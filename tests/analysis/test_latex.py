"""Tables for papers: what LaTeX acts upon is text, nothing is lost, and everything fits across a page."""

import re
import subprocess

import numpy as np
import pandas as pd
import pytest

from analysis.formats import LINES, LONG, latex, write
from analysis.frame import load
from analysis.registry import TABLES

PAPER = r"""\documentclass[twocolumn]{article}
\usepackage{array,booktabs,graphicx}\usepackage{textcomp}
\begin{document}
%s
\end{document}
"""


def rows(text):
    return [line.removesuffix(r" \\") for line in text.splitlines() if line.endswith(r" \\")]


def test_what_latex_would_act_upon_is_text_in_it():
    table = pd.DataFrame({"a_b": ["50 % of $x^2 & \\{~}#", "<|>"], "µs": [1.5, 2]})
    head, first, second = rows(*latex(table))
    assert head == r"a b & \textmu{}s"
    assert first == r"50 \% of \$x\textasciicircum{}2 \& \textbackslash{}\{\textasciitilde{}\}\# & 1.5"
    assert second == r"\textless{}\textbar{}\textgreater{} & 2"


def test_an_interval_stands_behind_its_number():
    ends = {"low": [1, np.nan], "high": [2, np.nan]}
    table = pd.DataFrame({"name": ["a", "b"], "speed": [1.5, 2.5], **ends, "n": [1, 2]})
    assert rows(*latex(table)) == ["name & speed & n", "a & 1.5 [1, 2] & 1", "b & 2.5 & 2"]
    named = pd.DataFrame({"name": ["a"], "right (%)": [50.0], "lowest right (%)": [40.0], "highest right (%)": [60.0]})
    assert rows(*latex(named))[1] == "a & 50 [40, 60]"
    assert len(table.columns) == 5


def test_what_all_rows_share_stands_once():
    table = pd.DataFrame({"name": ["a", "a"], "dtype": "float32", "n": [1, 2], "empty": "", "seeds": [3, 3]})
    (text,) = latex(table)
    assert rows(text) == ["name & n", "a & 1", "a & 2"]
    assert "In all rows: dtype float32, seeds 3." in text
    assert rows(*latex(table[:1]))[1] == "a & float32 & 1 &  & 3"


def test_a_table_higher_than_a_page_is_in_parts():
    table = pd.DataFrame({"name": [f"m{i}" for i in range(2 * LINES + 3)], "n": range(2 * LINES + 3)})
    parts = [rows(part) for part in latex(table)]
    assert [len(part) - 1 for part in parts] == [LINES, LINES, 3]
    assert all(part[0] == "name & n" for part in parts)
    assert [row for part in parts for row in part[1:]] == [f"m{i} & {i}" for i in range(len(table))]
    high = pd.DataFrame({"name": ["m"] * LINES, "why": [f"{i} " + "w " * LONG for i in range(LINES)]})
    assert [len(rows(part)) - 1 for part in latex(high)] == [LINES // 3] * 3


def test_parts_are_files_with_numbers(tmp_path):
    table = pd.DataFrame({"name": [f"m{i}" for i in range(LINES + 3)], "n": range(LINES + 3)})
    paths = write(table, tmp_path, "long", ["tex", "csv"])
    assert [path.name for path in paths] == ["long_1.tex", "long_2.tex", "long.csv"]
    assert all(path.read_bytes().endswith(b"}\n") for path in paths[:2])
    assert paths[2].read_text() == table.to_csv(index=False)


@pytest.mark.commands
@pytest.mark.needs("pdflatex")
def test_every_table_fits_across_a_page(synthetic_results, tmp_path):
    frame = load(synthetic_results)
    long_name = "a_mechanism_with_a_very_long_name_of_its_own size=1024"
    long = pd.DataFrame({"attention": [long_name, "b"], "why": ["many words " * 9, ""]})
    tables = [*(entry(frame) for entry in TABLES.values()), long]
    parts = (part for table in tables for part in latex(table))
    floats = (rf"\begin{{table*}}{part}\end{{table*}}\clearpage" for part in parts)
    (tmp_path / "paper.tex").write_text(PAPER % "\n".join(floats))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stdout[-2000:]
    assert not re.search(r"Overfull|Float too large", ran.stdout)
