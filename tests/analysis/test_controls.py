"""Figures of quality say whether a task is diagnostic, draw its controls, and split losses that sum to the whole."""

import numpy as np
import pytest
from drawn import bars_of_rows, caption, changed, legend, marked, panels, words
from scipy import stats
from synthetic_everything import trained
from synthetic_quality import LOSSES, SHARES, run, runs
from synthetic_records import record, train

from analysis.controls import BLIND, DIAGNOSTIC, notes, said
from analysis.frame import tidy
from analysis.paired import MARGIN, difference
from analysis.plots import by_distance, controls, extrapolation, learning
from analysis.registry import FIGURES, TABLES
from analysis.selection import MissingRecords, choose
from analysis.training import trained_cells

QUALITY = ("learning", "copying_induction", "recall", "perplexity", "perplexity_by_position", "quality_cost")
RANKED = ("trained", "polysketchformer_tables2_3", "polysketchformer_table5", "thesis_losses")


@pytest.fixture(scope="module")
def without_controls():
    return tidy(trained(np.random.default_rng(0)))


@pytest.mark.parametrize("name", QUALITY)
def test_what_no_control_was_trained_for_is_not_diagnostic_in_one_short_sentence(name, without_controls):
    text = caption(FIGURES[name](without_controls))
    assert text.startswith("Not diagnostic here: all that is shown (a control (local, identity) with losses by unit")
    assert text.count("with losses by unit") == 1


@pytest.mark.parametrize("name", RANKED)
def test_tables_say_it_before_anything_that_reads_as_a_ranking(name, without_controls):
    table = TABLES[name](without_controls)
    own = table[table["seeds"].notna()]
    assert set(own["task is"]) == {BLIND}
    names = list(table)
    assert names.index("task is") < names.index("attention") or names.index("task is") < names.index("seeds")
    if name == "trained":
        assert set(TABLES[name](tidy(runs()))["task is"]) == {DIAGNOSTIC}


def test_reasons_that_differ_are_named_each_with_its_panels():
    few = runs({label: loss for label, loss in LOSSES.items() if label not in ("local", "identity")}, text="pydoc")
    longer = [changed(one, {"seq_len": 128}, cell_id=one.cell_id[::-1]) for one in few]
    first, second = notes(trained_cells(tidy([*runs(), *few, *longer]))[0])
    why = "(a control (local, identity) with losses by unit is missing)"
    assert first == f"Not diagnostic here: language modelling, pydoc, n = 64 and 128 {why}."
    assert second.startswith("Diagnostic: language modelling, kjv, n = 64 (softmax against local: ")


def test_controls_alone_are_grey_and_the_last_of_the_legend():
    figure = learning.figure(tidy(runs()))
    assert "Diagnostic: language modelling, kjv, n = 64" in caption(figure)
    assert list(legend(figure)) == ["performer", "polysketch_random_r32", "softmax", "identity", "local"]
    for name, handle in legend(figure).items():
        colour = handle.get_color()
        assert (colour[1:3] == colour[3:5] == colour[5:7] != "00") == (name in ("identity", "local"))


def test_differences_to_the_controls_have_their_intervals_and_verdicts():
    frame = tidy(runs())
    figure = controls.figure(frame)
    left, right = figure.axes
    assert (left.get_title(), right.get_title()) == ("language modelling, kjv, n = 64", "diagnostic")
    assert "corrected for all comparisons of a task" in caption(figure)
    table = TABLES["paired"](frame)
    for panel, anchor in ((left, "local"), (right, "softmax")):
        assert panel.get_xlabel() == f"loss minus that of {anchor} (nats)"
        rows = table[table["against"] == anchor].set_index("attention")
        drawn = bars_of_rows(panel)
        names = [text.get_text() for text in left.get_yticklabels()]
        assert {names[at] for at in drawn} == set(rows.index)
        for at, (value, low, high) in drawn.items():
            expected = rows.loc[names[at], ["difference (nats)", "low", "high"]].astype(float)
            np.testing.assert_allclose([value, low, high], expected)
        assert sorted(words(panel)) == sorted([*rows["verdict"], "the baseline"])
        (band,) = [patch for patch in panel.patches if patch.get_gid() == "margin"]
        assert (band.get_x(), band.get_x() + band.get_width()) == (-MARGIN, MARGIN)
    blind = controls.figure(tidy(runs(LOSSES | {"local": 1.8})))
    assert blind.axes[1].get_title() == BLIND and BLIND in words(blind.axes[0])


def test_what_has_too_few_seeds_in_common_with_the_control_is_a_row_all_the_same():
    few = [run(name, seed, LOSSES[name]) for name in ("performer", "softmax") for seed in (8, 9)]
    figure = controls.figure(tidy([*runs({"softmax": 1.9, "local": 2.0, "identity": 2.4}), *few]))
    left, right = figure.axes
    names = [text.get_text() for text in left.get_yticklabels()]
    assert names[-1] == "performer" and len(bars_of_rows(right)) == len(bars_of_rows(left)) + 1


def test_a_caption_says_that_verdicts_are_of_the_chosen_comparisons():
    some = caption(controls.figure(choose(tidy(runs()), ["performer"])))
    assert "corrected for the comparisons of a task and length that are shown" in some


def test_a_task_without_a_control_is_compared_with_softmax_alone():
    figure = controls.figure(tidy(runs({"softmax": 1.9, "performer": 1.9})))
    assert words(figure.axes[0]) == ["no control has losses by unit"]
    assert words(figure.axes[1]) == ["not diagnostic here", "the baseline"]


def test_parts_times_shares_sum_to_the_loss():
    kinds = {"recalled_below_64": -0.3, "recalled_64_127": -0.5}
    losses = {"softmax": 1.9, "local": 2.0, "performer": 2.1}
    records = [
        run(label, seed, loss, kinds={kind: place * extra for kind, extra in kinds.items()})
        for place, (label, loss) in enumerate(losses.items())
        for seed in range(3)
    ]
    frame = tidy(records)
    data, _ = trained_cells(frame)
    found = by_distance.by_kind(data)
    assert list(found.loc[found["series"] == "softmax", "token"]) == [*kinds, "other"], "none of what never comes"
    assert set(found["against"]) == {"local"} and set(found["series"]) == {"softmax", "performer"}
    mean = frame[frame["metric"] == "loss"].groupby("attention")["value"].mean()
    for name, rows in found.groupby("series"):
        assert (rows["value"] * rows["share"]).sum() == pytest.approx(mean[name] - mean["local"], abs=1e-9)
    softmax = found[found["series"] == "softmax"].set_index("token")
    expected = mean["softmax"] - mean["local"] + 0.3
    assert softmax.loc["recalled_below_64", "value"] == pytest.approx(expected, abs=1e-9)
    figure = by_distance.figure(frame)
    assert "paired by seed: means over 3 seeds" in caption(figure)
    (panel,) = figure.axes
    assert [text.get_text() for text in panel.get_xticklabels()] == ["below 64\n20 %", "64-127\n10 %", "other\n70 %"]
    assert set(SHARES) - set(softmax.index) == {"recalled_128_255"}


def test_losses_by_distance_are_paired_by_seed():
    """As the paired t test of scipy, of the seeds that both have."""
    kinds = {"recalled_below_64": -0.3, "recalled_64_127": -0.5}
    records = [run(label, seed, loss, noise=0.02, kinds=kinds) for label, loss in (("softmax", 1.9), ("local", 2.0))
               for seed in range(5 + (label == "local"))]  # fmt: skip
    frame = tidy(records)
    found = by_distance.by_kind(trained_cells(frame)[0]).set_index("token")
    rows = frame[frame["metric"] == "loss_recalled_below_64"]
    both = rows.pivot(index="seed", columns="attention", values="value").dropna()
    expected = stats.ttest_rel(both["softmax"], both["local"]).confidence_interval()
    row = found.loc["recalled_below_64"]
    assert (row["low"], row["high"]) == pytest.approx((expected.low, expected.high), abs=5e-4)
    assert row["seeds"] == len(both) == 5 and row["value"] == pytest.approx((both["softmax"] - both["local"]).mean())
    few = by_distance.by_kind(trained_cells(tidy([one for one in records if one.config["seed"] < 2]))[0])
    assert few["low"].isna().all() and (few["seeds"] == 2).all(), "two seeds have no interval"


def test_without_kinds_or_a_control_it_says_what_is_missing():
    for records in (runs(), [run("softmax", seed, 1.9, kinds={"recalled_below_64": 1}) for seed in range(2)]):
        with pytest.raises(MissingRecords, match="losses by kind of token"):
            by_distance.figure(tidy(records))


def test_losses_at_longer_contexts_stand_beside_that_of_the_trained_one(rng):
    records = [run("softmax", seed, 1.9, longer={128: 2.1 + seed / 10, 256: 2.5}) for seed in range(3)]
    records += [run("performer", 0, 1.9), train("local", 64, 0, rng, task="language_modelling")]
    newer = run("softmax", 0, 1.7)  # hides nothing: it was not tested there
    newer.config["training"]["test_lengths"] = None
    records.append(record(newer.config, newer.measurements, ended="2026-02-01T00:00:00+00:00"))
    figure = extrapolation.figure(tidy(records))
    ((title, panel),) = panels(figure).items()
    assert title == "language modelling, kjv, trained at n = 64" and list(legend(figure)) == ["softmax"]
    (container,) = panel.containers
    x, y = container[0].get_data()
    expected = [
        np.median([one.measurements["test"]["loss"] for one in records[:3]]),
        *(np.median([one.measurements["longer"][n]["loss"] for one in records[:3]]) for n in ("128", "256")),
    ]
    assert list(x) == [64, 128, 256] and list(y) == pytest.approx(expected)
    (line,) = marked(panel, "trained")
    assert set(line.get_xdata()) == {64}
    with pytest.raises(MissingRecords, match="test_lengths"):
        extrapolation.figure(tidy(runs()))


@pytest.mark.parametrize(
    ("value", "shown"), [(0.25, "+0.250"), (-0.0006, "-0.001"), (0.00029, "+0.0003"), (0.0, "+0.000")]
)
def test_a_small_difference_is_not_rounded_to_none(value, shown):
    one = difference(np.full((5, 4), 1.0 + value), np.ones((5, 4)))
    assert said(one, False, "units") == f"{shown} nats, 95 % interval {shown} to {shown} over 5 seeds and 4 units"
