"""Curves and tables of what was learned."""

import numpy as np
import pytest
from synthetic_records import config, latency, record, train

from analysis.frame import tidy
from analysis.plots import learning
from analysis.selection import MissingRecords
from analysis.tables.trained import trained


def lines(figure):
    """The thick ones of the first panel."""
    return [line for line in figure.axes[0].get_lines() if line.get_linewidth() > 1]


def test_the_thick_line_is_the_median_of_the_seeds_and_each_has_a_thin_one(rng):
    records = [train("softmax", 16, seed, rng, final=final) for seed, final in enumerate((1e-2, 1e-4, 1e-6))]
    figure = learning.figure(tidy(records))
    (line,) = lines(figure)
    assert line.get_ydata()[-1] == pytest.approx(1e-4) and line.get_xdata().tolist() == list(range(100, 900, 100))
    thin = sorted(line.get_ydata()[-1] for line in figure.axes[0].get_lines() if line is not lines(figure)[0])
    assert thin == pytest.approx([1e-6, 1e-4, 1e-2])
    assert "3 seeds" in figure.texts[-1].get_text().replace("\n", " ")


def test_every_task_and_length_has_panels_of_its_own(rng):
    figure = learning.figure(tidy([train("softmax", n, 0, rng) for n in (16, 64, 1024)]))
    titles = [axis.get_title() for axis in figure.axes]
    assert [title for title in titles if title][::2] == ["reversal, n = 16", "reversal, n = 64", "reversal, n = 1,024"]


def test_the_table_has_the_median_seed_and_the_range(rng):
    records = [train("softmax", 16, seed, rng, final=final) for seed, final in enumerate((1e-2, 1e-4, 1e-6))]
    records += [train("performer", 16, 0, rng, final=1e-1)]
    table = trained(tidy(records))
    assert table["attention"].tolist() == ["performer", "softmax"] and table["seeds"].tolist() == [1, 3]
    row = table.iloc[1]
    spread = (row["loss (nats)"], row["lowest loss (nats)"], row["highest loss (nats)"])
    assert spread == pytest.approx((1e-4, 1e-6, 1e-2))
    assert row["right (%)"] == pytest.approx(100 * np.exp(-1e-4) ** 4)


def test_without_what_was_learned_it_is_said(rng):
    others = tidy([latency("softmax", 512, rng), record(config("softmax", {"name": "train"}, 16), status="oom")])
    for make in (learning.figure, trained):
        with pytest.raises(MissingRecords, match="ok record of bench=train"):
            make(others)
