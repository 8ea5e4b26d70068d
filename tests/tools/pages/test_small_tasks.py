"""What is said of recall and MAD's tasks, of planted records."""

import numpy as np
import pandas as pd
import pytest
from synthetic_quality import hybrid, runs

from analysis.frame import tidy
from analysis.training import trained_cells
from tools.pages import small_tasks


def task(losses, right):
    records = runs(losses, task="compression")
    for one in records:
        one.measurements["test"]["token_accuracy"] = right[one.config["label"]]
    head, _, row = small_tasks.table(tidy(records)).strip().splitlines()
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
    made = small_tasks.table(tidy(records))
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


def test_mechanisms_are_listed_by_how_many_of_their_seeds_solve_a_task_that_is_diagnostic():
    losses = {"softmax": 1.0, "performer": 2.0, "polysketch_random_r32": 2.5, "local": 3.0}
    records = runs(losses, task="compression")
    right = {"softmax": 0.9, "performer": 0.5, "polysketch_random_r32": 0.89, "local": 0.25}
    for one in records:
        is_lucky = one.config["label"] == "performer" and one.config["seed"] < 2
        one.measurements["test"]["token_accuracy"] = 1.0 if is_lucky else right[one.config["label"]]
    (row,) = small_tasks.solved(trained_cells(tidy(records))[0]).splitlines()[2:]
    assert [cell.strip() for cell in row.split("|")[1:-1]] == [
        *("compression, n = 64, 400 steps", "`softmax`", "`performer` (2/5, median 50 %)"),
        *("`polysketch_random_r32` 89 %", "`local` 25 %"),
    ]
    assert small_tasks.solved(trained_cells(tidy(runs(losses | {"local": 1.0}, task="compression")))[0]) == ""
