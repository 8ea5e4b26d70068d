"""What README says of the records, of planted ones."""

import csv
import re

import numpy as np
import pandas as pd
import pytest
from synthetic_quality import HYBRID, hybrid, run, runs

from analysis.attribution import ALONE, attributions
from analysis.controls import diagnose
from analysis.frame import tidy
from analysis.paired import UNDECIDED, WORSE
from analysis.training import panels, trained_cells
from tools.pages import readme, small_tasks


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


@pytest.mark.parametrize(("longer", "words"), [(1.6, "grows"), (1.9, "stays the same"), (1.96, "shrinks"), (2.2, None)])
def test_a_lead_that_grows_with_the_context_is_found_unless_a_length_is_not_diagnostic(longer, words):
    lengths = {64: 1.9, 128: longer}
    frame = tidy([one for n, loss in lengths.items() for one in runs({"softmax": loss, "local": 2.0}, seq_len=n)])
    found = dict(panels(trained_cells(frame)[0]))
    said = readme._growth(found, {key: diagnose(rows) for key, rows in found.items()})
    if words is None:
        assert said == ""
    else:
        assert said.startswith(f" The lead {words} from n = 64 to 128: ")
        assert float(said.split(": ")[1].split(" nats")[0]) == pytest.approx(longer - 1.9, abs=0.02)


def test_a_longer_context_names_each_mechanism_with_its_differences_and_nobody_else():
    data, _ = trained_cells(tidy(runs({"softmax": 1.9, "identity": 2.4, "local": 2.3, "performer": 2.5})))
    ((key, rows),) = panels(data)
    said = readme._longer(rows, diagnose(rows), key, pd.DataFrame({"speed": []}))
    assert re.fullmatch(
        r" Other mechanisms there: `performer`: minus `softmax` \+0\.(60|59)\d \(.*\), worse; "
        r"minus `identity` \+0\.(10|09)\d \(.*\), worse\.",
        said,
    )


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
        (2.6, "Each of the 2 mechanisms trained there was worse than softmax and none better than `identity`, the"),
        (2.1, "Each of the 2 mechanisms trained there was worse than softmax (the setting"),
        (1.9, "As good as softmax or better: "),
    ],
)
def test_where_no_mechanism_is_as_good_softmax_is_what_to_take(loss, words):
    planted = {"softmax": 1.9, "identity": 2.4, "performer": 2.6, "polysketch_random_r32": loss}
    said = readme.learned("performer", tidy(runs(planted)))
    assert words in said and ("take `softmax`" in said) == (loss > 1.9) == ("`polysketch_random_r32`" not in said)


def test_a_speed_whose_interval_contains_1_is_called_a_tie():
    step = pd.Series({"speed": 1.04, "speed low": 0.99, "speed high": 1.06, "timed": "interleaved"})
    assert readme._speed(step) == "1.04x (0.99 to 1.06, tie)"
    assert readme._speed(step.replace(0.99, 1.01)) == "1.04x (1.01 to 1.06)"


def task(losses, right):
    records = runs(losses, task="compression")
    for one in records:
        one.measurements["test"]["token_accuracy"] = right[one.config["label"]]
    head, _, row = small_tasks.table(trained_cells(tidy(records))[0]).strip().splitlines()
    return dict(zip(*([cell.strip() for cell in line.strip("|").split("|")] for line in (head, row)), strict=True))


def test_of_a_task_shares_are_bold_where_the_loss_is_clearly_smaller_than_the_best_controls():
    right = {"softmax": 1.0, "performer": 0.9, "polysketch_random_r32": 0.3, "local": 0.25, "identity": 0.0625}
    told = {"softmax": 1.5, "performer": 1.6, "polysketch_random_r32": 3.0, "local": 3.0, "identity": 3.5}
    shown = {"`softmax`": "**100 (100–100) 5/5**", "`polysketch_random_r32`": "30 (30–30) 0/5"}
    shown |= {"`performer`": "**90 (90–90) 5/5**", "best control": "`local` 25 (25–25) 0/5", "no attention": "6"}
    shown |= {"trained for": "400 steps", "rates": "0.001", "block (nats)": "–"}
    head = "answers right (%)"
    assert task(told, right) == {head: "compression, n = 64: diagnostic"} | shown
    plain = {name: said.replace("*", "") for name, said in shown.items()}
    assert task(told | {"local": 1.0}, right) == {head: "compression, n = 64: not diagnostic here"} | plain


def test_in_recall_less_than_twice_as_many_as_by_naming_any_value_is_not_bold():
    losses = {"softmax": 1.0, "performer": 2.0, "identity": 3.0}
    records = runs(losses, task="associative_recall", settings={"num_pairs": 4})
    for one in records:
        one.measurements["test"]["token_accuracy"] = {"softmax": 1.0, "performer": 0.49}.get(one.config["label"], 0.0)
    made = small_tasks.table(trained_cells(tidy(records))[0])
    assert "| **100 (100–100) 5/5** | 49 (49–49) 0/5 |" in made


def test_of_few_mechanisms_no_correlation_is_said(monkeypatch):
    """Of a panel of five there is none, and the others are said without it."""
    pairs = np.arange(8.0)
    panels = [
        pd.DataFrame({"task": "recall", "n": n, "keys": "gaussian", "pairs": pairs[:count], "recall": pairs[:count]})
        for n, count in ((64, 5), (256, 8))
    ]
    both = pd.concat(panels).assign(control=False)
    monkeypatch.setattr(small_tasks, "matched", lambda frame: frame)
    assert " at n = 256, gaussian keys: 1.00 to 1.00; predicts: 1 of 1 (n = 256)." in small_tasks.foretold(both)
    assert small_tasks.foretold(both[both["n"] == 64]).endswith("Too few mechanisms were trained to say.")


@pytest.mark.parametrize(("window", "word"), [(-0.3, "costs"), (0.0, "earns nothing"), (0.3, "earns")])
def test_what_the_block_of_a_hybrid_adds_is_what_the_table_says_if_the_task_is_diagnostic(window, word):
    data, _ = trained_cells(tidy(hybrid(window, 0.0, base=3.0, task="compression")))
    value, verdict = small_tasks.added(data).removesuffix(")").split(" (")
    assert float(value) == pytest.approx(window, abs=0.02) and verdict.split(", ")[1] == word
    assert small_tasks.added(data[~data["control"].astype(bool)]) == "–"


def test_branches_of_models_with_different_rates_are_compared_at_one_too():
    """At its own rate the hybrid gains 0.3 nats over both branches, at the one that all had nothing."""
    usual = hybrid(0.0, 0.0, base=2.4)
    faster = [run(HYBRID, seed, 2.1, without={"sketch": 2.4, "window": 2.4}, learning_rate=3e-3) for seed in range(5)]
    for records, words in ((usual, []), ([*usual, *faster], ["earns nothing"] * 2)):
        rows = trained_cells(tidy(records))[0]
        (one,) = attributions(rows)
        assert {part.word for part in one.parts if part.how == ALONE} == {"earns" if words else "earns nothing"}
        said = readme._at_one_rate(one, tidy(records), rows)
        assert re.findall(r"[+-]0\.0\d \(.*?, (.*?)\)", said) == words
        assert said.startswith(" The hybrid was trained at a rate of 0.003, ") == bool(words)
        assert said.count(" alone at 0.001") == said.count("all at 0.001: ") * 2 == len(words)


def test_models_trained_on_shorter_contexts_are_tested_beside_those_trained_on_longer_ones():
    shorter, longer = {"softmax": 1.9, "local": 2.0, "identity": 2.4}, {"softmax": 1.8, "local": 2.1, "identity": 2.5}
    tested = {"softmax": 1.85, "local": 1.95, "identity": 2.4}
    short = [run(of, seed, shorter[of], longer={128: tested[of]}) for of in shorter for seed in range(5)]
    found = dict(panels(trained_cells(tidy([*short, *runs(longer, seq_len=128)]))[0]))
    diagnoses = {key: diagnose(rows) for key, rows in found.items()}
    said = readme._trained_shorter(found, diagnoses)
    numbers = [float(one) for one in re.findall(r"([+-]\d\.\d{3}) \(", said)]
    assert numbers == pytest.approx([-0.1, -0.15, -0.05, 0.15, 0.1], abs=0.02), said
    assert re.findall(r"`(\w+)` [+-]", said) == ["softmax", "local", "identity"]
    (first, rows), (last, others) = found.items()
    untested = {first: rows[~rows["metric"].eq("loss_at_128_by_unit")], last: others}
    assert readme._trained_shorter(untested, diagnoses) == ""
