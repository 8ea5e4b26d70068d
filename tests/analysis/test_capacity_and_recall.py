"""Capacity beside its bounds, and beside trained recall: closed forms, and planted truths in synthetic records."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from drawn import caption, panels, words
from scipy import stats
from synthetic_records import ATTENTIONS, capacity, train

from analysis.frame import tidy
from analysis.plots import capacity as drawn
from analysis.plots import capacity_and_recall as against
from analysis.plots import style
from analysis.selection import MissingRecords
from analysis.tables import capacity as tables

LABELS = ("softmax", "polynomial_p4", "polysketch_learned_local_r64", "performer", "linformer", "v_mean")


def test_bits_needed_are_those_of_counting_orders():
    assert tables.bits_needed(10, 1.0) == pytest.approx(math.log2(math.factorial(10)) - 1)
    assert tables.bits_needed(10, 0.9) == pytest.approx(math.log2(math.factorial(8)) - 1)
    assert tables.bits_needed(1, 1.0) == 0 and tables.bits_needed(10, 0.5) == 0


def test_the_most_pairs_are_the_inverse_of_the_bits():
    for size in (1, 7, 100, 16640):
        most = tables.most_pairs(size, 0.9)
        assert tables.bits_needed(most, 0.9) <= 8 * size < tables.bits_needed(most + 1, 0.9)
    with pytest.raises(ValueError, match=r"share=0\.5: must be above 0\.5"):
        tables.most_pairs(10, 0.5)


def test_the_table_has_the_numbers_of_the_records(rng):
    records = [capacity("performer", h, 12, rng, draws=3, state_bytes=[512.0] * 3) for h in (32, 64)]
    records += [capacity("softmax", 32, 9e9, rng), capacity("identity", 32, 0, rng)]
    records += [capacity("flash", 32, 1, rng, "oom")]
    table = tables.table(tidy(records)).set_index(["attention", "head dim"])
    for record, h in zip(records[:2], (32, 64), strict=True):
        row = table.loc[("performer", h)]
        pairs = np.mean(record.measurements["capacity"])
        assert row["pairs"] == pytest.approx(pairs) and row["low"] < pairs < row["high"] and row["draws"] == 3
        assert row["state (KiB)"] == 0.5 and row["pairs per KiB"] == pytest.approx(2 * pairs)
        assert row["any state, at most"] == tables.most_pairs(512, 0.9) > pairs
    assert table.loc[("softmax", 32), ["pairs", "more than tried (%)"]].tolist() == [2048, 100]
    assert table.loc[("identity", 32), "pairs"] == 0 and len(table) == 4


def test_the_figure_has_a_panel_for_keys_and_head_dim_points_bounds_and_a_word_of_those_without_a_pair(rng):
    known = {"performer": 12, "softmax": 9e9, "identity": 0}
    every = itertools.product(known.items(), (32, 64), ("gaussian", "orthonormal"))
    records = [capacity(label, h, pairs, rng, keys=keys) for (label, pairs), h, keys in every]
    figure = drawn.figure(tidy(records))
    assert set(panels(figure)) == {f"{keys} keys, h = {h}" for keys in ("gaussian", "orthonormal") for h in (32, 64)}
    panel = panels(figure)["gaussian keys, h = 32"]
    assert sorted(text.get_text() for text in panel.texts) == ["1", "2 ↑"]  # identity, a control, is the last
    lines = {line.get_gid(): line for line in panel.lines if line.get_gid()}
    size, pairs = lines["bound"].get_data()
    assert size[-1] == pytest.approx(tables.bits_needed(pairs[-1], 0.9) / 8 / 1024)
    size, pairs = lines["cache"].get_data()
    np.testing.assert_allclose(size, pairs * 2 * 32 * 4 / 1024)
    at = {container[0].get_color(): container[0].get_data() for container in panel.containers}
    (size,), (pairs,) = at[style.MECHANISMS["performer"][0]]
    assert (size, pairs) == (32 * 32 * 4 / 1024, np.mean(records[0].measurements["capacity"]))
    text = caption(figure)
    assert "90% are right" in text and "m = 80% of the pairs" in text and "over 5 draws" in text
    assert "No pair at all: identity." in text and "trained recall" not in text


# --- Does it foretell trained recall? ---------------------------------------------------------------------------------


def test_spearman_its_interval_and_its_p():
    x = np.arange(1.0, 9)
    assert tables.correlation(x, np.exp(x))[::2] == pytest.approx((1, 1))
    value, low, high, p = tables.correlation(x, np.array([2.0, 1, 4, 3, 6, 5, 8, 7]))
    assert value == pytest.approx(1 - 6 * 8 / (8 * 63))  # sum of squares of ranks: 8
    # Bonett and Wright 2000: Fisher's z with a standard error of sqrt((1 + value^2 / 2) / (n - 3)).
    ends = np.arctanh([value, low, high])
    assert np.diff(ends[[1, 0, 2]]) == pytest.approx([1.959964 * np.sqrt((1 + value**2 / 2) / 5)] * 2, rel=1e-6)
    assert 0 < p < 0.01
    up, down = tables.correlation(x, x**3), tables.correlation(x, -(x**3))
    assert (down.value, down.high, down.low, down.p) == pytest.approx((-up.value, -up.low, -up.high, up.p))
    # As of one exchange of neighbours, which is 1 - 12 / (n^3 - n).
    assert up.low == pytest.approx(tables.correlation(x, np.array([2.0, 1, 3, 4, 5, 6, 7, 8])).low) and up.low > 0.6
    assert np.isnan(tables.correlation(x, np.ones(8))).all()
    assert np.isnan(tables.correlation(x[:5], x[:5])).all()


def test_the_p_is_the_share_of_all_orders_that_correlate_as_much(rng):
    """With ties, one by one."""
    x, y = np.array([0.0, 0, 1, 2, 3, 4, 9]), np.array([1.0, 0, 3, 2, 5, 4, 4])
    found = tables.correlation(x, y)
    assert found.value == pytest.approx(stats.spearmanr(x, y).statistic)
    orders = stats.zscore(list(itertools.permutations(stats.rankdata(y))), axis=1)
    all_of_them = orders @ stats.zscore(stats.rankdata(x)) / len(x)
    above, below = (all_of_them >= found.value - 1e-9).mean(), (all_of_them <= found.value + 1e-9).mean()
    assert found.p == pytest.approx(2 * min(above, below))


def normals(generator, count, rho):
    """Two of each, whose Spearman correlation is 6 / pi asin(rho / 2), where one is only known by its order."""
    x, noise = generator.normal(size=(2, count))
    return x, np.exp(rho * x + np.sqrt(1 - rho**2) * noise)


def said(generator, count, rho, tries):
    found = [tables.correlation(*normals(generator, count, rho)) for _ in range(tries)]
    return [tables.answer(one, one.p) for one in found]


@pytest.fixture
def few_permutations(monkeypatch):
    """A p-value is still known to a thousandth."""
    monkeypatch.setattr(tables, "PERMUTATIONS", 999)


@pytest.mark.parametrize("count", [6, 10])
def test_what_is_independent_is_foretold_in_at_most_30_of_400(count, few_permutations):
    """At a level of 0.1 instead of 0.05, 19 of 20 generators would count more."""
    assert said(np.random.default_rng(count), count, 0.0, 400).count(tables.PREDICTS) <= 30


def test_a_monotone_relation_is_found_and_none_is_said_where_there_is_little(few_permutations):
    generator = np.random.default_rng(1)
    assert set(said(generator, 6, 1.0, 20)) == {tables.PREDICTS}
    assert said(generator, 12, 0.9, 100).count(tables.PREDICTS) >= 80
    assert said(generator, 40, 0.0, 50).count(tables.DOES_NOT) >= 47
    # Surely some, and surely less than half of the variance.
    assert set(said(generator, 400, 0.3, 10)) == {tables.DOES_NOT}
    assert set(said(generator, 6, -1.0, 10)) == {tables.DOES_NOT}
    assert tables.answer(tables.Correlation(*[np.nan] * 4), np.nan) == "undecided"


def test_intervals_of_correlations_cover(monkeypatch):
    monkeypatch.setattr(tables, "PERMUTATIONS", 1)  # of which the p is computed, no interval
    generator = np.random.default_rng(2)
    for rho in (0.0, 0.5, 0.9):
        true = 6 / np.pi * np.arcsin(rho / 2)
        found = [tables.correlation(*normals(generator, 12, rho)) for _ in range(400)]
        assert sum(one.low <= true <= one.high for one in found) >= 0.92 * 400


def test_answers_are_corrected_for_the_tasks_lengths_and_keys():
    """Of one panel it is significant, and of twenty such it is not."""
    pairs, recall = np.arange(6.0), np.array([0.0, 1, 2, 3, 5, 4])
    panel = pd.DataFrame({"task": "recall", "n": 64, "pairs": pairs, "recall": recall})
    for keys, word in ((1, tables.PREDICTS), (20, "undecided")):
        found = pd.concat([panel.assign(keys=key) for key in range(keys)])
        assert {answer for _, answer in tables.answers(found).values()} == {word}
    few = pd.concat([panel.assign(keys=0), *(panel.head(3).assign(keys=key) for key in range(1, 20))])
    assert next(iter(tables.answers(few).values()))[1] == tables.PREDICTS, "what cannot be tested is no comparison"


def recalled(rng, order, **changes):
    """Records of training whose loss has this order, the first being the best, and of capacity in that of LABELS."""
    records = [capacity(label, 64, 1000 / 4**place, rng) for place, label in enumerate(LABELS)]
    for place, label in enumerate(order):
        for seed in (0, 1, 2):
            final = 0.01 * 3**place * (1 + seed / 10)
            records.append(train(label, 64, seed, rng, final=final, task="associative_recall", **changes))
    return records


@pytest.mark.parametrize("order, expected, word", [(LABELS, 1, "predicts"), (LABELS[::-1], -1, "does not")])
def test_a_planted_order_is_found(rng, order, expected, word):
    frame = tidy(recalled(rng, order))
    (row,) = tables.capacity_and_recall(frame).to_dict("records")
    assert row["Spearman"] == pytest.approx(expected) and row["low"] <= row["Spearman"] <= row["high"]
    assert row["mechanisms"] == 6 and row["n"] == 64 and row["of"] == ", ".join(sorted(LABELS))
    own = tables.matched(frame).query("not control")
    assert 0 < len(own) < 6
    expected_of_own = tables.correlation(own["pairs"].to_numpy(), own["recall"].to_numpy()).value
    assert row["without controls"] == pytest.approx(expected_of_own, nan_ok=True)
    assert row["answer"] == word and row["p"] == pytest.approx(2 / 720), "both ends of all orders of six"


def test_figures_say_what_was_found(rng):
    frame = tidy(recalled(rng, LABELS))
    said = "trained recall, by task, length and keys: predicts 1 (Spearman 1.00 to 1.00 over 6"
    assert said in caption(drawn.figure(frame))
    figure = against.figure(frame)
    ((title, panel),) = panels(figure).items()
    assert title == "n = 64, gaussian keys" and "over 6 mechanisms" in caption(figure)
    assert any(text.startswith("ρ = 1.00 [") and text.endswith(": predicts") for text in words(panel))
    found = tables.matched(frame).set_index("series")
    at = {container[0].get_color(): container[0].get_data() for container in panel.containers}
    for label in ("softmax", "performer", "v_mean"):
        (x,), (y,) = at[style.MECHANISMS[label][0]]
        assert (x, y) == pytest.approx((max(0.5, found.loc[label, "pairs"]), 100 * found.loc[label, "recall"]))
        assert found.loc[label, "recall_low"] < found.loc[label, "recall"] < found.loc[label, "recall_high"]


def test_only_the_same_mechanism_with_the_same_hyperparameters_is_matched_and_the_nearest_head_dim(rng):
    records = recalled(rng, LABELS[:4])
    other = {"name": "performer", "num_features": 64}
    records += [train("performer", 128, 0, rng, task="associative_recall", attention=other)]
    records += [capacity("softmax", 16, 7, rng), capacity("softmax", 256, 8, rng)]
    # What a newer version can set is no other mechanism.
    records[3] = capacity("performer", 64, 16, rng, attention={**ATTENTIONS["performer"][0], "new": 1})
    found = tables.matched(tidy(records))
    assert set(found["n"]) == {64} and len(found) == 4
    softmax = found.set_index("series").loc["softmax"]
    # Of the model's head_dim.
    assert softmax["head_dim"] == 64 and softmax["pairs"] == np.mean(records[0].measurements["capacity"])
    far = [record for record in records if record is not records[0]]
    softmax = tables.matched(tidy(far)).set_index("series").loc["softmax"]
    assert softmax["head_dim"] in (16, 256)
    with pytest.raises(MissingRecords, match="of one mechanism"):
        tables.matched(tidy([capacity("softmax", 64, 7, rng), *records[-3:-2]]))
