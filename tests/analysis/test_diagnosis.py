"""What is said of a task by its controls, on simulated runs."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
from synthetic_quality import LOSSES, run, runs
from synthetic_records import under

from analysis.controls import BLIND, DIAGNOSTIC, Losses, compared, control_comparisons, diagnoses, losses
from analysis.frame import tidy
from analysis.paired import corrected, verdict, verdicts
from analysis.training import trained_cells


def only(records):
    ((_, found),) = diagnoses(trained_cells(tidy(records))[0]).items()
    return found


def test_a_task_on_which_context_helps_is_diagnostic():
    found = only(runs())
    assert found.word == DIAGNOSTIC and (found.positive, found.negative) == ("softmax", "local")
    assert found.sentence.startswith("softmax against local: -0.0")
    assert "over 5 seeds and 32 documents" in found.sentence


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"local": 1.9}, "softmax against local: "),
        ({"local": 1.88, "identity": 1.5}, "softmax against identity: +0.39"),
        ({"local": 1.5, "identity": 1.88}, "softmax against local: +0.40"),
    ],
)
def test_a_task_that_a_control_explains_is_not(changes, why):
    found = only(runs(LOSSES | changes))
    assert found.word == BLIND and found.sentence.startswith(why)


def test_a_diagnosis_says_the_interval_that_the_comparison_of_the_same_two_has():
    """Two controls are as good, so that the seeds chose the best: one comparison has one interval everywhere."""
    records = runs({"softmax": 1.9, "local": 2.0, "identity": 2.0, "performer": 1.95}, noise=0.02)
    found = only(records)
    table = control_comparisons(tidy(records)).set_index(["attention", "against"])
    row = table.loc[(found.positive, found.negative)]
    assert found.sentence.split(" over ")[0].endswith(f"interval {row['low']:+.3f} to {row['high']:+.3f}")


def test_the_positive_control_is_exact_softmax_whoever_is_better():
    found = only(runs(LOSSES | {"performer": 1.6, "polynomial_p4": 1.5}))
    assert (found.positive, found.negative) == ("softmax", "local")


def test_of_an_older_record_of_a_text_four_neighbouring_units_are_one():
    records, older = runs(), runs()
    for one in older:
        del one.measurements["unit"]
    new, old = (losses(trained_cells(tidy(of))[0])["softmax"][0] for of in (records, older))
    assert len(new) == 32 and old == pytest.approx(new.reshape(8, 4).mean(1))
    assert "over 5 seeds and 32 documents" in only(records).sentence
    assert "over 5 seeds and 8 groups of stretches" in only(older).sentence


def test_what_is_compared_are_the_seeds_that_both_have():
    first = Losses({seed: seed + np.arange(4.0) for seed in (0, 1, 2, 3)})
    second = Losses({seed: seed + np.arange(4.0) - 0.5 + seed / 10 for seed in (2, 3, 4)})
    one = compared(first, second)
    assert (one.seeds, one.units) == (2, 4) and one.value == pytest.approx(0.5 - (0.2 + 0.3) / 2)
    assert compared(first, Losses({3: second[3], 4: second[4]})) is None
    # A run that was tested on another part of the text.
    assert compared(Losses(first | {9: np.ones(7)}), Losses(second | {9: np.zeros(7)})) == one


def test_what_disturbed_one_of_a_pair_is_said_of_the_pair():
    records = runs()
    at = next(i for i, one in enumerate(records) if one.config["label"] == "performer")
    records[at] = under(records[at], "other processes: 2 cores")
    table = control_comparisons(tidy(records))
    of_performer = (table["attention"] == "performer") | (table["against"] == "performer")
    assert set(table.loc[of_performer, "disturbed"]) == {"other processes: 2 cores"}
    assert table.loc[~of_performer, "disturbed"].isna().all() and not of_performer.all()


def test_a_task_without_controls_or_seeds_is_not():
    without = {label: loss for label, loss in LOSSES.items() if label not in ("local", "identity")}
    assert only(runs(without)).sentence == "a control (local, identity) with losses by unit is missing"
    assert "an exact softmax" in only(runs({"local": 2.0, "performer": 1.0})).sentence
    assert only(runs(seeds=4)).sentence == "softmax and identity share 4 seeds, not 5"


def test_the_table_ranks_where_the_task_is_diagnostic_only():
    table = control_comparisons(tidy(runs())).set_index(["attention", "against"])
    assert table.loc[("performer", "local"), "verdict"] == "better"
    assert table.loc[("performer", "softmax"), "verdict"] == "worse"
    assert table.loc[("polysketch_random_r32", "local"), "verdict"] == "as good as"
    assert table.loc[("performer", "local"), "difference (nats)"] == pytest.approx(-0.05, abs=0.01)
    assert table.loc[("performer", "identity"), "difference (nats)"] == pytest.approx(-0.45, abs=0.01)
    assert set(control_comparisons(tidy(runs(LOSSES | {"local": 1.8})))["verdict"]) == {BLIND}


def once(table):
    """Without the rows that say a comparison of two controls, or of softmax and one, the other way round."""
    return table[~pd.Series(map(frozenset, zip(table["attention"], table["against"], strict=True))).duplicated()]


def test_controls_and_softmax_are_rows_of_each_others_columns():
    table = control_comparisons(tidy(runs())).set_index(["attention", "against"])
    opposite = {"better": "worse", "worse": "better"}
    for one in itertools.permutations(("softmax", "local", "identity"), 2):
        row, other = table.loc[one], table.loc[one[::-1]]
        assert row["difference (nats)"] == -other["difference (nats)"]
        assert (row["low"], row["high"]) == (-other["high"], -other["low"]) and row["p (Holm)"] == other["p (Holm)"]
        assert row["verdict"] == opposite[other["verdict"]]
        assert (row["difference (nats)"] < 0) == (row["verdict"] == "better")
    assert len(table) == len(once(table.reset_index())) + 3


def test_verdicts_are_corrected_for_all_comparisons_of_a_task_and_length():
    """Each counts once, in however many rows it stands."""
    records = runs(LOSSES | {"performer": 1.965}, noise=0.03)
    data, _ = trained_cells(tidy(records))
    by_series, table = losses(data), once(control_comparisons(tidy(records)))
    found = [compared(by_series[row["attention"]], by_series[row["against"]]) for row in table.to_dict("records")]
    ps, words = zip(*verdicts(found), strict=True)
    assert table["p (Holm)"].tolist() == pytest.approx(ps) == corrected([one.p for one in found])
    assert table["verdict"].tolist() == [*words] != [verdict(one) for one in found]


def test_what_diverged_with_a_seed_is_neither_better_nor_as_good():
    """The seeds that are left are chosen: those with which it went well."""
    went_well = runs(seeds=6)
    lost = [(label, 5) for label in ("performer", "polysketch_random_r32")]
    ends = [dataclasses.replace(one, status="nonfinite", measurements={})
            if (one.config["label"], one.config["seed"]) in lost else one for one in went_well]  # fmt: skip
    tables = [once(control_comparisons(tidy(records))) for records in (went_well, ends)]
    words = [one.set_index(["attention", "against"])["verdict"].to_dict() for one in tables]
    changed = {pair: words[0][pair] for pair in words[0] if words[0][pair] != words[1][pair]}
    assert changed == {
        ("performer", "local"): "better",
        ("performer", "identity"): "better",
        ("polysketch_random_r32", "local"): "as good as",
        ("polysketch_random_r32", "identity"): "better",
    }
    assert {words[1][pair] for pair in changed} == {"undecided"}
    assert words[1]["performer", "softmax"] == "worse"


def test_what_is_undecided_says_how_many_seeds_would_decide():
    records = runs(LOSSES | {"performer": 1.97}, noise=0.03)
    table = once(control_comparisons(tidy(records))).set_index(["attention", "against"])
    row = table.loc[("performer", "local")]
    assert row["verdict"] == "undecided" and row["seeds needed"] > 5
    data, _ = trained_cells(tidy(records))
    one = compared(*(losses(data)[name] for name in ("performer", "local")))
    assert row["seeds needed"] == one.seeds_needed(len(table)), "all comparisons of the task count"
    # Each run took a second, and both are trained.
    assert row["hours needed"] == pytest.approx(2 * row["seeds needed"] / 3600)


def test_comparisons_allow_for_the_rates_and_controls_that_the_same_seeds_chose():
    """Those that are nearly as good as the best: of performer another rate, beside the window no attention."""
    losses_then = LOSSES | {"identity": 2.0005}
    near = [run("performer", seed, 1.951 + (-1) ** seed * 0.01, learning_rate=0.05) for seed in range(5)]
    far = [run("performer", seed, 1.99, learning_rate=0.05) for seed in range(5)]
    data, _ = trained_cells(tidy(runs(losses_then) + near))
    chosen = {name: own.chosen_from for name, own in losses(data).items()}
    assert chosen == dict.fromkeys(LOSSES, 1) | {"performer": 2}
    best = only(runs(losses_then)).negative
    performer, control = (dict(losses(data)[name]) for name in ("performer", best))
    table = control_comparisons(tidy(runs(losses_then) + near)).set_index(["attention", "against"])
    expected = compared(Losses(performer, 2), Losses(control, 2))
    assert tuple(table.loc[("performer", best), ["low", "high"]]) == pytest.approx(expected.interval())
    # What is clearly worse was no choice.
    table = control_comparisons(tidy(runs() + far)).set_index(["attention", "against"])
    before = control_comparisons(tidy(runs())).set_index(["attention", "against"])
    assert table.loc[("performer", "local"), "high"] == before.loc[("performer", "local"), "high"]


def test_softmax_that_diverged_with_a_seed_makes_no_task_diagnostic():
    records = runs(seeds=6)
    lost = [dataclasses.replace(one, status="nonfinite", measurements={})
            if (one.config["label"], one.config["seed"]) == ("softmax", 5) else one for one in records]  # fmt: skip
    assert [only(each).is_diagnostic for each in (records, lost)] == [True, False]
