"""The roofline figure and its table show the shares of the records, under the roof of their ceilings."""

import numpy as np
import pytest
from drawn import caption, changed, legend, marked, panels
from synthetic_records import latency, roofline

from analysis.frame import tidy
from analysis.plots import roofline as plot
from analysis.selection import MissingRecords
from analysis.table import by_cell

GEMM, COPY = 100.0, 20.0  # GFLOP/s and GB/s of the synthetic device, in its first round


def exact(label, seq_len, rng, share, intensity, causal=False, status="ok", impl="auto"):
    """A record of known share and intensity; its ceilings are as long as the synthetic ones, without noise."""
    made = roofline(label, seq_len, rng, status, batch_size=1, causal=causal, impl=impl)
    if status != "ok":
        return made
    flops = made.measurements["bytes"] * intensity
    least = max(flops / GEMM, made.measurements["bytes"] / COPY)
    works = {"gemm": (10**9, 1e7), "copy": (10**8, 5e6), "exponentials": (10**6, 1e6)}
    ceilings = {name: {"work": work, "samples": [ns] * 8} for name, (work, ns) in works.items()}
    measured = {"flops": flops, "samples": [least * 100 / share] * 8, "ceilings": ceilings}
    return changed(made, measurements=measured)


def points(figure, axes, label):
    colour = legend(figure)[label].get_color()
    found = [container.lines[0] for container in axes.containers if container.lines[0].get_color() == colour]
    return sorted((*line.get_xydata()[0], line.get_markersize()) for line in found)


@pytest.fixture
def records(rng):
    shares = [("flash", 1024, 64, 256), ("flash", 4096, 80, 1024), ("linformer", 1024, 30, 80), ("v_mean", 1024, 50, 1)]
    made = [exact(*one[:2], rng, *one[2:]) for one in shares]
    return [*made, exact("flash", 4096, rng, 40, 512, causal=True), exact("softmax", 4096, rng, 1, 1, status="oom")]


def test_points_are_shares_under_the_roof_and_the_caption_says_what_is_missing(records):
    figure = plot.figure(tidy(records))
    axes = panels(figure)
    assert list(axes) == ["not causal", "causal"]
    panel = axes["not causal"]
    assert panel.get_xscale() == panel.get_yscale() == "log"
    (roof,), (low,) = marked(panel, "roof"), marked(panel, "low")
    x, y = roof.get_data()
    np.testing.assert_allclose(y, np.minimum(GEMM, COPY * x))
    assert GEMM / COPY in x
    np.testing.assert_allclose(low.get_ydata(), y / 4)
    short, long = points(figure, panel, "flash")
    np.testing.assert_allclose(short[:2], [256, 64])
    np.testing.assert_allclose(long[:2], [1024, 80])
    assert short[2] < long[2]
    (linformer,), (mean,) = (points(figure, panel, label) for label in ("linformer", "v_mean"))
    np.testing.assert_allclose(linformer[:2], [80, 30])
    np.testing.assert_allclose(mean[:2], [1, 0.5 * COPY])
    ((*at, size),) = points(figure, axes["causal"], "flash")
    np.testing.assert_allclose(at, [512, 40])
    assert size == long[2], "a length has one size in all panels"
    text = caption(figure)
    assert "Not measured: softmax at n = 4096 (OOM)." in text
    assert "longer contexts (n = 1k, 4k)" in text and "Synthetic CPU 9000" in text
    # 10^9 exponentials and 10^11 FLOPs per second, heads of 64.
    assert "as long as 100 FLOPs of a product; softmax over all keys needs one for every 256." in text
    assert "cache" not in text


def test_a_share_above_the_roof_of_memory_is_left_out_and_explained(rng):
    cached, within = exact("v_mean", 1024, rng, 573, 1), exact("flash", 1024, rng, 64, 256)
    drawn = plot.figure(tidy([cached, within]))
    text = caption(drawn)
    assert "Left out, beyond main memory's ceiling: it stays in caches: v_mean at n = 1024." in text
    assert "Larger markers" not in text and list(legend(drawn)) == ["flash"]
    table = plot.table(tidy([cached, within])).set_index("attention")
    assert np.isnan(table.loc["v_mean", ["share of the ceiling (%)", "from", "to"]].to_numpy(float)).all()
    assert table.loc["v_mean", "ceiling"] == "beyond memory" and table.loc["v_mean", "GFLOP/s or GB/s"] == COPY
    shares = by_cell(tidy([cached, within])).set_index("attention")["share forward (%)"]
    assert shares.to_dict() == {"v_mean": "beyond memory", "flash": "64 [64, 64] compute"}
    assert "573" not in text + table.to_csv()
    with pytest.raises(MissingRecords, match="beyond the ceilings"):
        plot.figure(tidy([cached]))
    gpu = {k: v for k, v in within.measurements["ceilings"].items() if k != "exponentials"}
    other = changed(within, measurements={"ceilings": gpu})
    assert "exponential" not in caption(plot.figure(tidy([other])))


def test_the_table_has_a_row_for_each_mechanism_mask_and_length(records):
    table = plot.table(tidy(records))
    assert table["attention"].tolist() == ["flash", "v_mean", "linformer", "flash", "flash"]
    assert table["causal"].tolist() == [False] * 4 + [True] and table["n"].tolist() == [1024] * 3 + [4096] * 2
    shares = [64, 50, 30, 80, 40]
    for column in ("share of the ceiling (%)", "from", "to"):
        assert table[column].tolist() == pytest.approx(shares)
    assert table["ceiling"].tolist() == ["compute", "memory", "compute", "compute", "compute"]
    assert table["GFLOP/s or GB/s"].tolist() == pytest.approx([GEMM, COPY, GEMM, GEMM, GEMM])
    moved = 4 * 4 * 64 * 12 * 1024
    assert table["MB"][0] == moved / 1e6 and table["GFLOP"][0] == pytest.approx(256 * moved / 1e9)
    assert table["ms"][0] == pytest.approx(256 * moved / GEMM / 0.64 / 1e6)
    assert table["FLOP/byte"].tolist() == pytest.approx([256, 1, 80, 1024, 512])


def test_references_stand_beside_their_fast_paths_and_are_drawn_where_there_is_nothing_else(records, rng):
    textbook = [exact("linformer", 1024, rng, 7, 80, impl="reference"), exact("informer", 1024, rng, 20, 80)]
    table = plot.table(tidy([*records, *textbook])).set_index(["attention", "causal", "n"])
    assert len(table) == len(plot.table(tidy(records))) + 1
    column = "of the reference (%)"
    assert table.loc[("linformer", False, 1024), column] == pytest.approx(7)
    assert table[column].notna().sum() == 1
    why = table["why below 25 %"]
    assert why.notna().sum() == 1 and "sampled" in why[("informer", False, 1024)]
    drawn = plot.figure(tidy([*records, *textbook]))
    assert set(legend(drawn)) == {"flash", "linformer", "v_mean", "informer"}
    assert list(legend(plot.figure(tidy(textbook[:1])))) == ["linformer"]


def test_nothing_to_draw_is_said(rng):
    for make in (plot.figure, plot.table):
        with pytest.raises(MissingRecords, match="bench=roofline"):
            make(tidy([latency("flash", 512, rng), roofline("flash", 512, rng, "oom")]))
