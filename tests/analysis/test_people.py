"""Tables in Markdown are for people: units, words, intervals in one cell, a page at most; the CSV has the rest."""

import numpy as np
import pandas as pd
import pytest
from synthetic_records import compare, memory, train, train_step

from analysis.controls import BLIND
from analysis.formats import latex
from analysis.frame import tidy
from analysis.plots import crossover, scaling
from analysis.registry import TABLES, explanation
from analysis.tables import trained
from analysis.tables.peers import peers
from analysis.tables.people import MOST, VALUES, WORDS, readable


def rows(text):
    """The cells of each row, the header first."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]


def test_a_value_and_its_interval_are_one_cell_and_what_all_share_is_said_once():
    table = pd.DataFrame({"attention": ["a", "b"], "seq_len": [512, 1024], "causal": True, "speed": [1.23456, 2000.4]})
    text = readable("mine", table.assign(low=[1.1, np.nan], high=[1.3, np.nan], dtype="float32"))
    assert rows(text) == [["mechanism", "n (tokens)", "speed"], ["a", "512", "1.23 [1.1, 1.3]"], ["b", "1024", "2,000"]]
    assert "In all rows that were measured here: mask causal; dtype float32." in text
    assert text.endswith("[mine.csv](mine.csv).")


def test_an_answer_keeps_its_column_though_all_rows_have_the_same():
    answers = {"difference (nats)": 0.5, "verdict": BLIND, "loss is": "worse", "equal from": "unknown at n = 16"}
    table = pd.DataFrame({"attention": ["a", "b"], "seeds": 5, **answers})
    header, *body = rows(readable("mine", table))
    assert header == ["mechanism", *answers]
    assert [row[1:] for row in body] == [[str(value) for value in answers.values()]] * 2
    (text,) = latex(table)
    assert "In all rows: seeds 5." in text and text.count(BLIND) == 2


def test_a_long_table_is_cut_and_says_so():
    table = pd.DataFrame({"attention": [f"m{i}" for i in range(MOST + 5)], "n": range(MOST + 5)})
    text = readable("long", table)
    assert len(rows(text)) == 1 + MOST and f"These are {MOST} of {MOST + 5} rows" in text and "(long.csv)" in text
    assert "These are" not in readable("short", table[:MOST])


@pytest.mark.parametrize("name", TABLES)
def test_no_table_is_longer_than_a_page_or_has_names_of_code_in_its_header(name, frame):
    table = TABLES[name](frame)
    assert "disturbed" not in table
    text = readable(name, table)
    header, *body = rows(text)
    assert 1 <= len(body) <= MOST and len(set(map(len, [header, *body]))) == 1
    assert not {"low", "high", "from", "to"} & set(header) and not (WORDS.keys() - WORDS.values()) & set(header)
    assert not {"True", "forward_backward"} & {cell for row in body for cell in row}


def test_speeds_are_over_the_best_softmax_at_the_longest_length_and_softmax_has_no_row(rng):
    names = ("flash", "softmax", "performer", "polynomial_p4")
    table = crossover.table(tidy([compare(names, n, rng) for n in (512, 1024, 8192)]))
    header, *body = rows(readable("crossover_speeds", table))
    assert [row[0] for row in body] == ["performer", "polynomial_p4"], "the fastest first"
    longest = table[(table["attention"] == "performer") & (table["seq_len"] == 8192)].iloc[0]
    speed = body[0][header.index("speed over the best exact softmax")]
    assert speed == "{:.3g} [{:.3g}, {:.3g}]".format(*longest[["over_best", "best_low", "best_high"]])
    start = body[0][header.index("faster from n (tokens)")]
    assert start.startswith(f"{longest['from_seq_len']:,.0f} [")
    assert body[1][header.index("faster from n (tokens)")] == "none measured"


def test_where_nothing_was_measured_a_length_has_no_end():
    numbers = {"over_best": [0.9, 2.0], "best_low": [0.8, 1.9], "best_high": [1.1, 2.1], "best_verdict": "faster"}
    numbers |= {"from_seq_len": 600.0, "from_low": 0.0, "from_high": np.inf}
    numbers |= {"interval": "range", "best": "flash float32"}
    table = pd.DataFrame({"attention": "performer", "dtype": "float32", "causal": False, "pass": "forward",
                          "seq_len": [512, 1024], **numbers})  # fmt: skip
    assert "600 [below 512, above 1024]" in readable("crossover_speeds", table)


@pytest.mark.parametrize(
    ("speeds", "verdicts", "said"),
    [
        ((1.1, 2.0), ("faster", "faster"), "all measured"),
        ((1.01, 2.0), ("tie", "faster"), "all measured, ties at n = 1,024"),
        ((0.99, 2.0), ("tie", "faster"), "none measured"),
    ],
)
def test_where_there_is_no_crossing_a_tie_is_not_called_faster(speeds, verdicts, said):
    numbers = {"over_best": speeds, "best_low": 0.9, "best_high": 2.1, "best_verdict": verdicts, "interval": "range"}
    numbers |= dict.fromkeys(("from_seq_len", "from_low", "from_high"), np.nan)
    table = pd.DataFrame({"attention": "performer", "dtype": "float32", "causal": False, "pass": "forward",
                          "seq_len": [1024, 2048], "best": "flash float32", **numbers})  # fmt: skip
    header, row = rows(readable("crossover_speeds", table))
    assert row[header.index("faster from n (tokens)")] == said


def test_text_has_tokens_that_are_right_and_no_example(rng):
    """No text is wholly right: 0 % would say nothing."""
    tasks, ends = ("language_modelling", "reversal"), {"softmax": 1.0, "performer": 2.0}
    records = [train(label, 64, 0, rng, final=end, task=task) for label, end in ends.items() for task in tasks]
    table = trained.trained(tidy(records)).set_index(["task", "attention"])
    text, other = table.loc[("language modelling, kjv", "softmax")], table.loc[("reversal", "softmax")]
    assert (text["right are"], other["right are"]) == ("tokens", "whole examples")
    assert text["right (%)"] == pytest.approx(100 * records[0].measurements["test"]["token_accuracy"])
    assert other["right (%)"] == pytest.approx(100 * records[1].measurements["test"]["example_accuracy"])
    header, *body = rows(readable("trained", table.reset_index()))
    assert header == ["mechanism", "language modelling, kjv, n = 64: loss (nats)", "reversal, n = 64: wholly right (%)"]
    assert [row[0] for row in body] == ["performer", "softmax"]
    assert "not diagnostic here: all tasks" in readable("trained", table.reset_index())
    diverged = readable("trained", table.assign(failed=4).reset_index())
    assert "(1 of 5 seeds)" in diverged and "seeds)" not in readable("trained", table.reset_index())


def test_ways_of_measuring_and_passes_stand_beside_each_other(rng):
    steps = tidy([train_step("softmax", n, rng) for n in (512, 1024)])
    rounds = steps.assign(bench="compare_train_step", cell_id=steps["cell_id"] + "0")
    table = scaling.steps_table(pd.concat([steps, rounds], ignore_index=True))
    header, *body = rows(readable("polysketchformer_table4", table))
    assert {"each by itself (steps/s)", "in interleaved rounds (steps/s)"} < set(header) and len(body) == 2
    pair = ("performer", "lucidrains_performer")
    both = peers(tidy([compare(pair, 1024, rng), *(memory(name, 1024) for name in pair)]))
    header, body = rows(readable("peers", both))
    peaks = " / ".join(map("{:.3g}".format, both[["mib", "peer_mib"]].iloc[0]))
    assert body[header.index("forward: peak memory, ours / the package's (MiB)")] == peaks


@pytest.mark.parametrize("name", TABLES)
def test_a_table_says_what_it_is_and_what_its_columns_mean(name):
    first, *more = explanation(name).split("\n\n")
    assert first.endswith(".") and len(" ".join(more).split()) > 10 and "Raises" not in first + "".join(more)


def test_what_ranks_nobody_comes_last_and_what_is_said_first():
    table = pd.DataFrame({"task": list("abcd"), "verdict": [BLIND, "worse", np.nan, "better"]})
    text = readable("paired", table, "Said.")
    assert text.startswith("Said.\n\n| task") and [row[0] for row in rows(text)[1:]] == ["b", "d", "a", "c"]


def test_values_are_words():
    assert [VALUES["pass"](name) for name in ("forward_backward", np.nan)] == ["forward + backward", ""]
    assert VALUES["bench"]("spectral_norm") == "spectral norm"
