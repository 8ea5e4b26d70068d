"""Differences by the position of a token: planted ones are found, in ranges that cover all positions."""

import dataclasses

import numpy as np
import pytest
from scipy import stats
from synthetic_quality import LOSSES, runs

from analysis.frame import tidy
from analysis.selection import MissingRecords
from analysis.tables.positions import ranges, table

LENGTH = 256
GAINS = {"1 to 64": 0.2, "65 to 128": 0.0, "129 to 256": -0.1}


def by_position(record, losses):
    test = {**record.measurements["test"], "loss_by_position": losses}
    return dataclasses.replace(record, measurements={**record.measurements, "test": test})


def planted(**changes):
    """Softmax differs from the best control (`local`) by `GAINS`, all others by 0.5; a seed's noise is its own."""
    records = []
    for one in runs(seq_len=LENGTH, **changes):
        rng = np.random.default_rng([one.config["seed"], *one.config["label"].encode()])
        losses = np.random.default_rng(0).uniform(1, 3, LENGTH) + rng.normal(0, 0.01)
        if one.config["label"] == "softmax":
            losses += np.repeat([*GAINS.values()], [64, 64, 128])
        elif one.config["label"] != "local":
            losses += 0.5
        records.append(by_position(one, losses.tolist()))
    return records


def test_planted_differences_are_found_in_their_ranges():
    found = table(tidy(planted()))
    assert set(found["attention"]) == set(LOSSES) - {"local"} and set(found["against"]) == {"local"}
    softmax = found[found["attention"] == "softmax"].set_index("positions")
    assert list(softmax.index) == [*GAINS]
    assert softmax["difference (nats)"].to_numpy() == pytest.approx([*GAINS.values()], abs=0.02)
    others = found.loc[found["attention"] != "softmax", "difference (nats)"]
    assert others.to_numpy() == pytest.approx(0.5, abs=0.02)
    # Within a run the noise of its seed is the same at all positions, so what is gained further back is exact.
    assert softmax["more (nats)"].to_numpy()[1:] == pytest.approx([-0.2, -0.1], abs=1e-9)
    assert softmax["more (nats)"].isna().tolist() == [True, False, False]


def test_intervals_are_those_of_a_paired_t_test_over_seeds():
    records = planted()
    row = table(tidy(records)).set_index(["attention", "positions"]).loc[("performer", "65 to 128")]
    of = {label: [] for label in ("performer", "local")}
    for one in records:
        if one.config["label"] in of:
            of[one.config["label"]].append(np.mean(one.measurements["test"]["loss_by_position"][64:128]))
    low, high = stats.ttest_rel(of["performer"], of["local"]).confidence_interval(0.95)
    # The suite's quantile of Student's t has four digits.
    assert (row["low"], row["high"]) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 100, 512, 1000])
def test_ranges_cover_every_position_once(length):
    found = ranges(length)
    assert [at for start, end in found for at in range(start, end)] == list(range(length))


def test_without_a_control_or_with_one_seed_there_is_no_table():
    with pytest.raises(MissingRecords, match="a control"):
        table(tidy(runs({"softmax": 1.9, "performer": 1.8})))
    with pytest.raises(MissingRecords, match="two seeds"):
        table(tidy(runs(seeds=1)))
