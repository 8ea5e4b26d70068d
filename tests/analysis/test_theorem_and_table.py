"""The figure of Theorem 1.1, its exponents, and Tables 2 and 3 of Skeinformer show the records' numbers."""

import dataclasses

import numpy as np
import pytest
from synthetic_records import flops, largest_batch, latency, sketch_error

from analysis.frame import tidy
from analysis.plots import sketch_error as theorem
from analysis.selection import MissingRecords
from analysis.tables import costs, skeinformer_table3

SIZES = (8, 32, 128)


def line(figure, panel, colour, marker):
    (axes,) = (axes for axes in figure.axes if axes.get_title().startswith(panel))
    (found,) = (one for one in axes.lines if (one.get_color(), one.get_marker()) == (colour, marker))
    return axes, found


def marked(axes, gid):
    return [artist for artist in (*axes.lines, *axes.texts, *axes.collections) if artist.get_gid() == gid]


@pytest.fixture
def records(rng):
    return [
        sketch_error(sketch, degree, r, rng, weights, exponent=-0.5 if sketch == "gaussian" else -1)
        for sketch in ("gaussian", "srht")
        for degree in (4, 8)
        for r in SIZES
        for weights in (None, "pretrained")
    ]


def test_lines_bars_and_theory_are_those_of_the_records(records):
    figure = theorem.figure(tidy(records))
    assert [axes.get_title().split(",")[0] for axes in figure.axes] == ["gaussian"] * 2 + ["pretrained"] * 2
    handles = {handle.get_label(): handle for handle in figure.legends[0].legend_handles}
    look = handles["gaussian, p = 4"]
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
        slopes = [
            np.polyfit(np.log(one.get_xdata()), np.log(one.get_ydata()), 1)[0] for one in marked(axes, "reference")
        ]
        assert slopes == pytest.approx([-0.5, -1])
        assert len(marked(axes, "exponent")) == 4


def test_the_caption_says_what_was_seen_of_signs(records, rng):
    (text,) = (text.get_text().replace("\n", " ") for text in theorem.figure(tidy(records)).texts if text.get_gid())
    assert "over 4 draws" in text and "features: 1e-09." in text and "40 to 40% of the weights are negative" in text
    assert "Learned" not in text
    learned = tidy([sketch_error("learned", 4, r, rng) for r in SIZES])
    figure = theorem.figure(learned)
    (text,) = (text.get_text().replace("\n", " ") for text in figure.texts if text.get_gid())
    assert "as initialised" in text and "are negative" not in text
    assert "expected" not in str([handle.get_label() for handle in figure.legends[0].legend_handles])


def test_exponents_are_those_of_the_power_law(records):
    table = theorem.exponents(tidy(records)).set_index(["inputs", "sketch", "quantity"])
    assert len(table) == 2 * 4 * 2
    for (_, sketch, _), row in table.iterrows():
        true = -0.5 if sketch.startswith("gaussian") else -1
        assert row["low"] - 0.03 < true < row["high"] + 0.03 and row["low"] < row["exponent of r"] < row["high"]
        assert row["r"] == "8 to 128" and row["draws"] == 4


def test_variants_of_a_sketch_are_lines_of_their_own(rng):
    def per_head(record, flag):
        attention = {**record.config["attention"], "per_head": flag}
        return dataclasses.replace(record, config={**record.config, "attention": attention}, cell_id=str(flag) * 16)

    source = [sketch_error("gaussian", 4, r, rng) for r in SIZES]
    frame = tidy([per_head(record, flag) for record in source for flag in (False, True)])
    assert set(theorem.exponents(frame)["sketch"]) == {
        "gaussian, p = 4, per_head=False",
        "gaussian, p = 4, per_head=True",
    }


def test_degree_2_other_lengths_and_failures(records, rng):
    exact = sketch_error("gaussian", 2, 32, rng)
    exact = dataclasses.replace(exact, measurements={**exact.measurements, "features": None})
    shorter = sketch_error("gaussian", 4, 8, rng)
    shorter = dataclasses.replace(shorter, config={**shorter.config, "seq_len": 64}, cell_id="5" * 64)
    failed = sketch_error("gaussian", 4, 512, rng, status="oom")
    figure = theorem.figure(tidy([*records, exact, shorter, failed]))
    labels = [handle.get_label() for handle in figure.legends[0].legend_handles]
    assert "gaussian, p = 4" in labels and "gaussian, p = 2" not in labels
    assert [text.get_text() for text in marked(figure.axes[0], "gap") if hasattr(text, "get_text")] == ["OOM"]
    assert "lengths other than 512" in figure.texts[-1].get_text().replace("\n", " ")


def test_a_failure_that_a_newer_measurement_replaced_is_no_gap(records, rng):
    failed = sketch_error("gaussian", 4, 8, rng, status="interrupted")
    failed = dataclasses.replace(failed, cell_id="5" * 64, ended="2025-01-01T00:00:00+00:00")
    assert not marked(theorem.figure(tidy([failed, *records])).axes[0], "gap")


def test_nothing_to_draw_is_said(rng):
    with pytest.raises(MissingRecords, match="bench=sketch_error"):
        theorem.figure(tidy([latency("flash", 512, rng)]))
    with pytest.raises(MissingRecords, match="two sketch sizes"):
        theorem.exponents(tidy([sketch_error("gaussian", 4, 8, rng)]))


def test_table_3_has_the_papers_terms_beside_ours(rng):
    sizes = {"num_features": 256}
    measured = [
        flops("skeinformer", 2048, 5 * 2048 * 256 * 32, 256, attention={"name": "skeinformer", **sizes}),
        flops("softmax", 1024, 2 * 1024**2 * 32, attention={"name": "softmax"}),
        flops("performer", 1024, 1000, 64, attention={"name": "performer", "num_features": 64}),
        flops("informer", 1024, 1000, 256, attention={"name": "informer", **sizes}, head_dim=64),
        flops("v_mean", 1024, 1000, attention={"name": "v_mean"}),
    ]
    table = skeinformer_table3.table3(tidy(measured))
    assert table["method"].tolist() == ["Standard", "Skeinformer"], "of the paper's size, in the paper's order"
    assert table["paper (M)"].tolist() == [2 * 1024**2 * 32 / 1e6, 4 * 2048 * 256 * 32 / 1e6]
    assert table["ours / paper"].tolist() == [1, 1.25]
    assert table["counted (M)"].tolist() == pytest.approx(
        [2 * 1024**2 * 32 / 1e6 + 1e-6, 5 * 2048 * 256 * 32 / 1e6 + 1e-6]
    )
    assert (table["what ours counts"].str.len() > 0).all()
    with pytest.raises(MissingRecords, match="head_dim=32, d=256"):
        skeinformer_table3.table3(tidy(measured[2:]))


def test_table_2_has_our_batches_at_one_limit_beside_the_papers():
    softmax, flash = (largest_batch(label, 1024) for label in ("softmax", "flash"))
    other = largest_batch("v_mean", 1024)
    other = dataclasses.replace(
        other, measurements={**other.measurements, "limit_bytes": 1}, ended="2025-01-01T00:00:00"
    )
    failed = largest_batch("softmax", 2048, "oom")
    unbound = largest_batch("flash", 2048)
    unbound = dataclasses.replace(unbound, measurements={**unbound.measurements, "limit_bytes": None})
    deeper = largest_batch("performer", 1024, layers=12)
    table = costs.largest_batches(tidy([softmax, flash, other, failed, unbound, deeper])).set_index("attention")
    limit = softmax.measurements["limit_bytes"] / 2**30
    assert list(table)[:3] == [f"n = 1024, {limit:.3g} GiB", "n = 2048", "Skeinformer, Text"]
    assert table.loc["softmax"].tolist()[:3] == ["3", "oom", 8] and table.loc["softmax", "Skeinformer, Image"] == 32
    assert table.loc["flash"].tolist()[:2] == ["3", "3"] and table.loc["flash"].isna().sum() == 5
    assert {"v_mean", "performer"}.isdisjoint(table.index)
    with pytest.raises(MissingRecords, match="bench=largest_batch"):
        costs.largest_batches(tidy([failed]))
