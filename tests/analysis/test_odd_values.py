"""Whatever a record says, the figures and tables of the others are drawn, and its text is shown as it is."""

import xml.etree.ElementTree

from odd_records import TEXTS, extreme, good, said, strange
from synthetic_records import written

import analysis
from analysis.__main__ import main
from analysis.frame import tidy
from analysis.registry import FIGURES, TABLES, made
from bench.records.summary import Results


def test_values_that_nobody_expects_cost_no_figure(tmp_path):
    """Nor a table of good records, nor a word."""
    odd = extreme().values()
    written(tmp_path, odd)
    loaded, lines = said(Results(tmp_path).load)
    assert len(loaded) == len(odd) and lines == []
    frame, lines = said(tidy, [*good(), *loaded])
    assert all(text.startswith("skipped, ") for text in lines) and len(lines) <= len(odd)
    for entries in (FIGURES, TABLES):
        done, lines = said(lambda entries=entries: dict(made(frame, entries, lambda name, one: "made")))
        assert lines == [] and {name for name, one in done.items() if one != "made"} == set()
    assert main(["table", "--results", str(tmp_path)]) == 0


def test_figures_with_all_texts_can_be_written(tmp_path):
    for kind in TEXTS:
        written(tmp_path, strange(kind)[:2])  # of latency and memory
    paths, lines = said(analysis.figures, tmp_path)
    assert {path.stem for path in paths} >= {"polysketchformer_figure1", "memory"}
    assert not any(text.startswith("warning: ") for text in lines)
    for path in paths:
        if path.suffix == ".svg":
            xml.etree.ElementTree.parse(path)
    assert "<!-- v$_{$.yaml -->" in (tmp_path / "figures" / "memory.svg").read_text(), "a dollar is drawn as one"
