"""Capacity beside its bounds, and beside trained recall: closed forms, and planted truths in synthetic records."""

import itertools
import math

import numpy as np
import pytest
from drawn import caption, panels
from synthetic_records import ATTENTIONS, capacity, train

from analysis.frame import tidy
from analysis.plots import capacity as drawn
from analysis.selection import MissingRecords
from analysis.tables import capacity as tables

LABELS = ("softmax", "polynomial_p4", "polysketch_learned_local_r64", "performer", "linformer", "v_mean")


def test_bits_needed_are_those_of_counting_orders():
    assert tables.bits_needed(10, 1.0) == pytest.approx(math.log2(math.factorial(10)) - 1)
    assert tables.bits_needed(10, 0.9) == pytest.approx(math.log2(math.factorial(8)) - 1)
    assert tables.bits_needed(1, 1.0) == 0 and tables.bits_needed(10, 0.5) == 0


@pytest.mark.parametrize("pairs", [3, 4, 5])
def test_no_answer_agrees_with_more_orders_than_the_bound_counts(pairs):
    """Of all answers, whatever they are, and all orders of the values, one by one."""
    orders = list(itertools.permutations(range(pairs)))
    for places in range(1, pairs + 1):
        agreeing = max(
            sum(sum(a == b for a, b in zip(answer, order, strict=True)) >= places for order in orders)
            for answer in itertools.product(range(pairs), repeat=pairs)
        )
        assert agreeing <= len(orders) / math.factorial(places)


def test_the_most_pairs_are_the_inverse_of_the_bits():
    for size in (1, 7, 100, 16640):
        most = tables.most_pairs(size, 0.9)
        assert tables.bits_needed(most, 0.9) <= 8 * size < tables.bits_needed(most + 1, 0.9)
    with pytest.raises(ValueError, match=r"share=0\.5: must be above 0\.5"):
        tables.most_pairs(10, 0.5)


def test_the_table_has_the_numbers_of_the_records(rng):
    records = [capacity("performer", h, 12, rng, draws=3, state_bytes=[512.0] * 3) for h in (32, 64)]
    records += [
        capacity("softmax", 32, 9e9, rng),
        capacity("identity", 32, 0, rng),
        capacity("flash", 32, 1, rng, "oom"),
    ]
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
    records = [
        capacity(label, h, pairs, rng, keys=keys)
        for label, pairs in (("performer", 12), ("softmax", 9e9), ("identity", 0))
        for h, keys in itertools.product((32, 64), ("gaussian", "orthonormal"))
    ]
    figure = drawn.figure(tidy(records))
    assert set(panels(figure)) == {f"{keys} keys, h = {h}" for keys in ("gaussian", "orthonormal") for h in (32, 64)}
    panel = panels(figure)["gaussian keys, h = 32"]
    assert sorted(text.get_text() for text in panel.texts) == ["1", "2 ↑"]  # identity, a control, is the last
    lines = {line.get_gid(): line for line in panel.lines if line.get_gid()}
    size, pairs = lines["bound"].get_data()
    assert size[-1] == pytest.approx(tables.bits_needed(pairs[-1], 0.9) / 8)
    size, pairs = lines["cache"].get_data()
    np.testing.assert_allclose(size, pairs * 2 * 32 * 4)
    text = caption(figure)
    assert "90% are right" in text and "m = 80% of the pairs" in text and "over 5 draws" in text
    assert "No pair at all: identity." in text


# --- Does it foretell trained recall? ---------------------------------------------------------------------------------


def test_spearman_and_its_interval():
    x = np.arange(1.0, 9)
    assert tables.correlation(x, np.exp(x)) == pytest.approx((1, 1, 1))
    assert tables.correlation(x, -(x**3)) == pytest.approx((-1, -1, -1))
    value, low, high = tables.correlation(x, np.array([2.0, 1, 4, 3, 6, 5, 8, 7]))
    assert value == pytest.approx(1 - 6 * 8 / (8 * 63)) and low < value < high <= 1  # sum of squares of ranks: 8
    assert np.isnan(tables.correlation(x, np.ones(8))).all()
    assert np.isnan(tables.correlation(x[:3], x[:3])).all()


def test_the_interval_covers_no_correlation_in_nearly_all_of_many_tries():
    generator = np.random.default_rng(0)
    inside = 0
    for number in range(40):
        _, low, high = tables.correlation(*generator.normal(size=(2, 12)), seed=number)
        inside += low <= 0 <= high
    assert inside >= 33  # 95 % of 40 are 38; a percentile interval of 12 is too narrow by some


def recalled(rng, order, **changes):
    """Records of training whose loss has this order, the first being the best, and of capacity in that of LABELS."""
    records = [capacity(label, 64, 1000 / 4**place, rng) for place, label in enumerate(LABELS)]
    for place, label in enumerate(order):
        for seed in (0, 1, 2):
            final = 0.01 * 3**place
            records.append(train(label, 64, seed, rng, final=final, task="associative_recall", **changes))
    return records


@pytest.mark.parametrize("order, expected", [(LABELS, 1), (LABELS[::-1], -1)])
def test_a_planted_order_is_found(rng, order, expected):
    (row,) = tables.capacity_and_recall(tidy(recalled(rng, order))).to_dict("records")
    assert [row[name] for name in ("Spearman", "low", "high")] == pytest.approx([expected] * 3)
    assert row["mechanisms"] == 6 and row["n"] == 64 and row["of"] == ", ".join(sorted(LABELS))


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
