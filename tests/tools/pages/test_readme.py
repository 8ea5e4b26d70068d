"""What README says of the records, of planted ones."""

import csv

import pandas as pd
import pytest
from synthetic_quality import run, runs

from analysis.frame import tidy
from analysis.paired import UNDECIDED, WORSE
from analysis.training import panels, trained_cells
from tools.pages import readme


@pytest.mark.parametrize(
    ("loss", "words"), [(2.4, "as good as"), (2.2, "better than"), (2.6, "worse than"), (1.9, "better than")]
)
def test_what_the_fastest_learned_stands_beside_softmax_and_no_attention(loss, words):
    planted = {"softmax": 1.9, "identity": 2.4, "performer": loss}
    records = [run(label, seed, of) for label, of in planted.items() for seed in range(5)]
    said = readme.learned("performer", tidy(records))
    beside_softmax, beside_nothing = said.split("was ")[1].split(" and ")
    assert beside_softmax.startswith("as good as softmax" if loss == 1.9 else "worse than softmax")
    assert beside_nothing.startswith(f"{words} `identity`")
    difference = float(beside_nothing.split("(")[1].split(" nats")[0])
    assert difference == pytest.approx(loss - 2.4, abs=0.02)
    assert readme.learned("flash", tidy(records)) == "What a model learns with `flash` was not measured."


@pytest.mark.parametrize("loss", [2.4, 2.8])
def test_a_speed_at_another_length_stands_beside_a_loss_that_is_worse_than_without_attention(loss, monkeypatch):
    planted = {64: {"softmax": 1.9, "identity": 2.4, "performer": 2.2}}
    planted[128] = planted[64] | {"performer": loss}
    records = [one for n, losses in planted.items() for one in runs(losses, seq_len=n)]
    ((kind, _), _), _ = panels(trained_cells(tidy(records))[0])
    speeds = [(64, "performer", 1.5), (128, "performer", 3.0)]
    steps = pd.DataFrame([(kind, *one) for one in speeds], columns=["kind", "n", "series", "speed"])
    steps = steps.assign(**{"speed low": 1.2, "speed high": 4.0, "timed": "interleaved"})
    monkeypatch.setattr(readme, "lengths", lambda frame, data: steps)
    said = readme.learned("performer", tidy(records))
    assert " made, beside softmax, 1.50x (1.20 to 4.00) as many at n = 64 and 3.00x (1.20 to 4.00) as many at" in said
    assert (" At n = 128 it was worse than `identity`." in said) == (loss == 2.8)


@pytest.mark.parametrize(("n", "verdict"), [("512", UNDECIDED), ("1024", WORSE)])
def test_linear_learned_no_more_than_no_attention_as_docs_choosing_says(n, verdict):
    with (readme.QUALITY / "tables" / "paired.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["task"], row["n"]) == ("language modelling, sympy", n)]
    found = {(row["attention"], row["against"]): row for row in rows}["linear", "identity"]
    assert {row["verdict"] for row in rows if row["against"] == "flash"} == {WORSE}, "no mechanism learned as much"
    assert (found["seeds"], found["verdict"]) == ("5", verdict)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (2.6, "Each of the 2 mechanisms trained at n = 64 was worse than softmax, and worse than `identity`, the"),
        (2.1, "Each of the 2 mechanisms trained at n = 64 was worse than softmax (the setting"),
        (1.9, "As good as softmax or better: "),
    ],
)
def test_where_no_mechanism_is_as_good_softmax_is_what_to_take(loss, words):
    planted = {"softmax": 1.9, "identity": 2.4, "performer": 2.6, "polysketch_random_r32": loss}
    said = readme.learned("performer", tidy(runs(planted)))
    assert words in said and ("take `softmax`" in said) == (loss > 1.9) == ("`polysketch_random_r32`" not in said)


def test_tasks_that_rank_mechanisms_are_named_apart_from_those_that_do_not():
    planted = {"softmax": 1.9, "identity": 2.4, "local": 2.3, "performer": 2.5}
    records = [*runs(planted), *runs(planted | {"local": 1.9}, task="compression")]
    diagnostic, blind = readme._ranked(dict(panels(trained_cells(tidy(records))[0])))
    assert diagnostic.startswith("- **Diagnostic**: language modelling") and "softmax against local: -0." in diagnostic
    assert blind == (
        "- **Not diagnostic here**, so that nothing is ranked: softmax is not clearly better in compression, n = 64."
    )
    (beaten,) = readme._ranked(dict(panels(trained_cells(tidy(runs(planted | {"local": 1.0}, task="compression")))[0])))
    assert beaten.endswith(": a control is clearly better in compression, n = 64.")
