"""The figure of Theorem 1.1 and its exponents show the records' numbers."""

from itertools import product

import numpy as np
import pytest
from drawn import caption, changed, gaps, legend, marked
from synthetic_records import sketch_error

from analysis.frame import tidy
from analysis.plots import sketch_error as theorem
from analysis.selection import MissingRecords

SIZES = (8, 32, 128)


def line(figure, panel, colour, marker):
    (axes,) = (axes for axes in figure.axes if axes.get_title().startswith(panel))
    (found,) = (one for one in axes.lines if (one.get_color(), one.get_marker()) == (colour, marker))
    return axes, found


@pytest.fixture
def records(rng):
    every = product({"gaussian": -0.5, "srht": -1}.items(), (4, 8), SIZES, (None, "pretrained"))
    return [sketch_error(name, degree, r, rng, weights, exponent=power) for (name, power), degree, r, weights in every]


def test_lines_bars_and_theory_are_those_of_the_records(records):
    figure = theorem.figure(tidy(records))
    assert [axes.get_title().split(",")[0] for axes in figure.axes] == ["gaussian"] * 2 + ["pretrained"] * 2
    look = legend(figure)["gaussian, p = 4"]
    axes, curve = line(figure, "pretrained, ⟨", look.get_color(), look.get_marker())
    chosen = [r for r in records if "sketch=gaussian degree=4" in r.config["label"] and "weights" in r.config["inputs"]]
    # Two sequences of four draws each: a draw of each of them is a unit.
    squares = [np.square(r.measurements["kernel_error"]).reshape(2, 4, 12).mean((0, 2)) for r in chosen]
    np.testing.assert_allclose(curve.get_xdata(), SIZES)
    np.testing.assert_allclose(curve.get_ydata(), [np.sqrt(one.mean()) for one in squares])
    (expected,) = marked(axes, "expected")
    np.testing.assert_allclose(expected.get_ydata(), [4 * r**-0.5 for r in SIZES])
    (bars,) = (each[2][0] for each in axes.containers if each[0] is curve)
    half = 3.1824 * squares[0].std(ddof=1) / 4**0.5 / (2 * np.sqrt(squares[0].mean()))
    assert bars.get_segments()[0][:, 1].max() == pytest.approx(np.sqrt(squares[0].mean()) + half)
    for axes in figure.axes:
        assert axes.get_xscale() == axes.get_yscale() == "log" and axes.get_xlabel() == "sketch size r"
        slopes = [np.polyfit(*np.log(one.get_data()), 1)[0] for one in marked(axes, "reference")]
        assert slopes == pytest.approx([-0.5, -1])
        assert len(marked(axes, "exponent")) == 4


def test_the_caption_says_what_was_seen_of_signs(records, rng):
    text = caption(theorem.figure(tidy(records)))
    assert "over 4 draws" in text and "features: 1e-09." in text and "40 to 40% of the weights are negative" in text
    assert "Learned" not in text
    learned = tidy([sketch_error("learned", 4, r, rng) for r in SIZES])
    figure = theorem.figure(learned)
    assert "as initialised" in caption(figure) and "are negative" not in caption(figure)
    assert "expected" not in str(list(legend(figure)))


def test_exponents_are_those_of_the_power_law(records):
    table = theorem.exponents(tidy(records)).set_index(["inputs", "sketch", "quantity"])
    assert len(table) == 2 * 4 * 2
    for (_, sketch, _), row in table.iterrows():
        true = -0.5 if sketch.startswith("gaussian") else -1
        assert row["low"] - 0.03 < true < row["high"] + 0.03 and row["low"] < row["exponent of r"] < row["high"]
        assert row["r"] == "8 to 128" and row["draws"] == 4


def test_variants_of_a_sketch_are_lines_of_their_own(rng):
    def per_head(record, flag):
        return changed(record, {"attention": {**record.config["attention"], "per_head": flag}}, cell_id=str(flag) * 16)

    source = [sketch_error("gaussian", 4, r, rng) for r in SIZES]
    frame = tidy([per_head(record, flag) for record in source for flag in (False, True)])
    names = {f"gaussian, p = 4, per_head={flag}" for flag in (False, True)}
    assert set(theorem.exponents(frame)["sketch"]) == names


def test_degree_2_other_lengths_and_failures(records, rng, caplog):
    exact = changed(sketch_error("gaussian", 2, 32, rng), measurements={"features": None})
    shorter = changed(sketch_error("gaussian", 4, 8, rng), {"seq_len": 64}, cell_id="5" * 64)
    failed = sketch_error("gaussian", 4, 512, rng, status="oom")
    replaced = sketch_error("gaussian", 4, 8, rng, status="interrupted")
    replaced = changed(replaced, cell_id="6" * 64, ended="2025-01-01T00:00:00+00:00")
    with caplog.at_level("INFO", logger="analysis"):
        figure = theorem.figure(tidy([replaced, *records, exact, shorter, failed]))
    assert "gaussian, p = 4" in legend(figure) and "gaussian, p = 2" not in legend(figure)
    assert [word for word, *_ in gaps(figure.axes[0])] == ["OOM"]
    assert "lengths other than 512" in caplog.text


def test_one_size_has_no_exponent(rng):
    with pytest.raises(MissingRecords, match="two sketch sizes"):
        theorem.exponents(tidy([sketch_error("gaussian", 4, 8, rng)]))
