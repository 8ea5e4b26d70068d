"""What README says of the records, of planted ones."""

import csv
import re

import pandas as pd
import pytest
from synthetic_quality import hybrid, run, runs

from analysis.controls import diagnose
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
    assert (found["seeds"], found["verdict"]) == ("5", verdict) and float(found["difference (nats)"]) > 0


@pytest.mark.parametrize(
    ("loss", "words"), [(2.1, "None of the 2 mechanisms"), (1.9, "As good as softmax or better: ")]
)
def test_where_no_mechanism_is_as_good_softmax_is_what_to_take(loss, words):
    planted = {"softmax": 1.9, "identity": 2.4, "performer": 2.2, "polysketch_random_r32": loss}
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
    head, _, row = readme._tasks(trained_cells(tidy(records))[0]).strip().splitlines()
    return dict(zip(*([cell.strip() for cell in line.strip("|").split("|")] for line in (head, row)), strict=True))


def test_of_a_task_shares_are_bold_where_the_loss_is_clearly_smaller_than_the_best_controls():
    right = {"softmax": 1.0, "performer": 0.9, "polysketch_random_r32": 0.3, "local": 0.25, "identity": 0.0625}
    told = {"softmax": 1.5, "performer": 1.6, "polysketch_random_r32": 3.0, "local": 3.0, "identity": 3.5}
    shown = {"`softmax`": "**100 (100–100)**", "`polysketch_random_r32`": "30 (30–30)", "`performer`": "**90 (90–90)**"}
    shown |= {"best control": "`local` 25 (25–25)", "block (nats)": "–"}
    assert task(told, right) == {"right (%)": "compression, n = 64: diagnostic"} | shown
    plain = {name: said.replace("*", "") for name, said in shown.items()}
    assert task(told | {"local": 1.0}, right) == {"right (%)": "compression, n = 64: not diagnostic here"} | plain


@pytest.mark.parametrize(("window", "word"), [(-0.3, "costs"), (0.0, "earns nothing"), (0.3, "earns")])
def test_what_the_block_of_a_hybrid_adds_has_the_verdict_of_all_diagnostic_tasks_together(window, word):
    one = hybrid(window, 0.0, base=3.0, task="compression")
    blind = hybrid(window, 0.0, base=3.0, task="compression", seq_len=32)
    for record in blind:
        if record.config["label"] == "softmax":
            record.measurements["test"]["loss_by_unit"] = [9.0] * len(record.measurements["test"]["loss_by_unit"])
    said = readme._added(dict(panels(trained_cells(tidy([*one, *blind]))[0])))
    assert said.keys() == {("compression", 64)}
    value, verdict = said["compression", 64].removesuffix(")").split(" (")
    assert float(value) == pytest.approx(window, abs=0.02) and verdict.split(", ")[1].startswith(word)


def test_a_doubt_that_is_one_of_many_stays_one(monkeypatch):
    """Verdicts are those of the whole family, not of each task."""
    families = []
    monkeypatch.setattr(readme, "verdicts", lambda family: families.append([*family]) or [(1.0, UNDECIDED)] * 4)
    tasks = [hybrid(-0.3, 0.0, base=3.0, task="compression", seq_len=n) for n in (32, 64)]
    said = readme._added(dict(panels(trained_cells(tidy([*tasks[0], *tasks[1]]))[0])))
    assert [len(family) for family in families] == [4]
    assert len(said) == 2 and all(one.endswith(", undecided)") for one in said.values())
