"""Figures fit into the columns of papers, with text that can be read there, in files that venues take."""

import re

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from drawn import changed, legend
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from synthetic_records import latency, spectral

from analysis import __main__ as cli
from analysis import registry
from analysis.__main__ import main
from analysis.frame import tidy
from analysis.plots import compare, crossover, files, layout, marks, scaling, skeinformer, style
from analysis.plots.layout import page, shown
from analysis.registry import FIGURES, PARTS, parts
from analysis.selection import MissingRecords, choose
from bench.published.papers import NAMES


@pytest.fixture(scope="module")
def disturbed_and_of_many_codes(frame):
    own = {"code": frame["cell_id"], "commit": frame["cell_id"]}
    return frame.assign(disturbed=True, disturbance="$other$ processes: 1.3 cores", **own)


OVER_BOTH = ("skeinformer_figure1", "copying_induction", "crossover", "compare")


@pytest.mark.parametrize(
    ("column", "inches", "name"),
    [*(("single", 3.25, name) for name in FIGURES), *(("double", 6.75, name) for name in OVER_BOTH)],
)
def test_every_figure_fits_into_a_column_can_be_read_there_and_has_its_numbers(
    column, inches, name, disturbed_and_of_many_codes
):
    with page(column, captions=False):
        figure = FIGURES[name](disturbed_and_of_many_codes)
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    assert figure.get_figwidth() == inches and box.x0 > 0 < box.y0
    assert box.x1 < inches and box.y1 < figure.get_figheight()
    assert figure.fits or name in PARTS
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    # The narrowest of the usual columns has 3.03 inches.
    assert min(text.get_fontsize() for text in texts) * 3.03 / 3.25 >= 6
    assert "Measured under disturbance ($other$ processes): " in figure.caption
    assert "Points that different code may have measured: " in figure.caption
    assert figure.caption not in [text.get_text() for text in texts]
    numbers = files.numbers(figure)
    assert numbers["y"].notna().sum() > 0 and list(numbers) == list(files.COLUMNS)
    points = numbers.dropna(subset=["y", "y_low"])
    assert ((points["y_low"] <= points["y"] * (1 + 1e-12)) & (points["y"] <= points["y_high"] * (1 + 1e-12))).all()
    for shown_legend in (*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())):
        assert_told_apart(shown_legend.legend_handles)


def test_what_is_higher_than_a_page_is_drawn_in_parts(frame, capsys, tmp_path, monkeypatch):
    """Every point of the whole is in one of them."""
    few = ["softmax", "performer"]
    everything = frame[frame["inputs"].isin(["reversal", "induction_heads"])]
    monkeypatch.setattr(cli, "load", lambda *_: everything)
    frame = choose(everything, few)
    command = ["figures", "--results", str(tmp_path), "--out", str(tmp_path / "out"), "--figure", "quality_cost"]
    command += ["--formats", "csv", "--width", "single", "--captions", "txt", "--mechanisms", *few]
    with page("single", captions=False):
        height = FIGURES["quality_cost"](frame).get_figheight()
    written = {}
    for highest in (height, height - 0.1):
        monkeypatch.setattr(layout, "HIGHEST", highest)
        assert main(command) == 0
        assert "higher than a page" not in capsys.readouterr().out
        new = {path.stem: pd.read_csv(path) for path in tmp_path.glob("out/*.csv") if path.stem not in written}
        written |= new
    whole, parts = written.pop("quality_cost"), pd.concat(written.values())
    assert written.keys() == {f"quality_cost_{task}" for task in frame.loc[frame["bench"] == "train", "inputs"]}
    assert len(parts) == len(whole) and sorted(parts["y"].dropna()) == sorted(whole["y"].dropna())
    monkeypatch.setattr(layout, "HIGHEST", 1)
    assert main(command) == 0
    assert capsys.readouterr().out.count("higher than a page; choose by --mechanisms or --sweep") == len(written)


def test_learning_is_a_figure_for_each_task(frame, tmp_path, monkeypatch):
    """All of them in one have panels by the dozen, and a legend that nobody reads."""
    frame = choose(frame[frame["inputs"].isin(["reversal", "induction_heads", "selective_copying"])], ["performer"])
    monkeypatch.setattr(cli, "load", lambda *_: frame)
    command = ["figures", "--results", str(tmp_path), "--out", str(tmp_path / "out"), "--figure", "learning"]
    assert main([*command, "--formats", "csv"]) == 0
    written = {path.stem: pd.read_csv(path) for path in tmp_path.glob("out/*.csv")}
    tasks = set(frame.loc[frame["bench"] == "train", "inputs"])
    assert written.keys() == {f"learning_{task}" for task in tasks} and len(tasks) > 2
    whole = files.numbers(FIGURES["learning"](frame))
    np.testing.assert_allclose(np.sort(pd.concat(written.values())["y"]), np.sort(whole["y"]), rtol=1e-6)
    one = frame[(frame["bench"] != "train") | (frame["inputs"] == "reversal")]
    assert list(registry.pages("learning", one)) == ["learning"]


def test_parts_are_named_by_what_they_are_of(monkeypatch):
    monkeypatch.setitem(FIGURES, "crossover", lambda rows: sorted(rows.index))
    frame = pd.DataFrame({"pass": "forward", "causal": [True, False, False]})
    both = {"crossover_forward_causal": [0], "crossover_forward_not_causal": [1, 2]}
    assert dict(parts("crossover", frame, 2)) == both
    assert dict(parts("crossover", frame, 1)) == {"crossover_forward": [0, 1, 2]}


def test_a_pdf_has_truetype_fonts_its_width_and_no_smaller_text(frame, tmp_path, monkeypatch):
    monkeypatch.setitem(mpl.rcParams, "pdf.compression", 0)
    with page("single", captions=False):
        figure, again = (skeinformer.figure1(frame[frame["seq_len"] == 1024]) for _ in range(2))
    (pdf, caption) = files.save(figure, tmp_path, "one", ["pdf"])
    content = pdf.read_bytes()
    assert b"/FontFile2" in content and b"/Type3" not in content
    assert b"/MediaBox [ 0 0 234 " in content
    sizes = [float(size) for size in re.findall(rb"/F\d+ ([\d.]+) Tf", content)]
    assert len(sizes) > 20 and min(sizes) >= 6
    assert caption.name == "one.txt" and "Bars: 95% interval (Student's t) over 4 sequences." in caption.read_text()
    assert files.save(again, tmp_path / "again", "one", ["pdf"])[0].read_bytes() == content


def test_what_no_column_is_has_no_page():
    for width in ("triple", "1", "nan", "-3"):
        with pytest.raises(ValueError, match="single, double or inches from 2 to 20"), page(width):
            pass
    with pytest.raises(ValueError, match="code or papers"), page(names="mine"):
        pass


def test_panels_that_do_not_fit_go_on_below_with_the_same_axis(frame):
    with page("single"):
        figure = FIGURES["copying_induction"](frame)
    rows = [axes for axes in figure.axes if axes.get_shared_y_axes().joined(axes, figure.axes[0])]
    assert len({round(axes.get_subplotspec().rowspan.start) for axes in rows}) > 1
    first = [axes for axes in rows if axes.get_subplotspec().is_first_col()]
    assert len({axes.get_ylabel() for axes in first}) == 1 and first[0].get_ylabel()


def test_numbers_are_those_of_the_records(frame, tmp_path):
    figure = scaling.latency(frame)
    (path,) = files.save(figure, tmp_path, "numbers", ["csv"])
    drawn = pd.read_csv(path)
    assert set(drawn["x_axis"]) == {"context length n (tokens)"}
    assert set(drawn["y_axis"]) == {"latency per token (µs/token)"}
    one = drawn[(drawn["panel"] == "forward") & (drawn["series"] == "softmax")].sort_values("x")
    rows = frame[(frame["metric"] == "latency_per_token") & (frame["attention"] == "softmax")]
    rows = rows[rows["pass"] == "forward"]
    measured = one[one["status"].isna()]
    for column, of in (("x", "seq_len"), ("y", "value"), ("y_low", "low"), ("y_high", "high")):
        np.testing.assert_allclose(measured[column], rows.sort_values("seq_len")[of].astype(float), rtol=5e-7)
    assert one.loc[one["status"] == "OOM", "x"].tolist() == [16384, 32768]


def test_a_series_far_above_the_others_leaves_the_axis_to_them(rng):
    def cells(factor):
        labels = ("skeinformer", "informer", "linformer")
        data = tidy(spectral(label, 1024, d, rng) for label in labels for d in (16, 64))
        far = data["attention"] == "linformer"
        data.loc[far, ["value", "low", "high"]] *= factor
        return data

    near, above = (skeinformer.figure1(cells(factor)) for factor in (1, 1e4))
    drawn = files.numbers(above)
    others = drawn[drawn["series"] != "linformer"]
    upper, lower = above.axes
    low, high = lower.get_ylim()
    assert others["y_low"].min() / 1.5 < low < others["y_low"].min()
    assert others["y_high"].max() < high < 1.5 * others["y_high"].max()
    low, high = upper.get_ylim()
    assert low < drawn.loc[drawn["series"] == "linformer", "y"].min() and "Above the break" in above.caption
    assert upper.get_title() == "gaussian, n = 1024" and set(drawn["panel"]) == {"gaussian, n = 1024"}
    assert len(near.axes) == 1 and "break" not in near.caption
    assert drawn.loc[drawn["series"] == "linformer", "y"].min() > 10 * others["y"].max(), "its numbers are not lost"


def test_what_lies_above_a_break_is_above_all_else_of_its_row(rng):
    """A series far above the others of one row is drawn among those of another row that reach as high there."""
    kinds, sizes = ("initialised", "pretrained"), (16, 64)
    labels = {kind: ("skeinformer", "informer", "linformer") for kind in kinds}
    labels["pretrained"] += ("performer",)
    data = tidy(spectral(label, 1024, d, rng, kind) for kind in kinds for label in labels[kind] for d in sizes)
    high = data["attention"].isin(("linformer", "performer"))
    of_pretrained = data["weights"] == "pretrained"
    data.loc[high, ["value", "low", "high"]] *= 1e4
    data.loc[of_pretrained & ~high, ["value", "low", "high"]] *= 2e3
    upper, initialised, pretrained = skeinformer.figure1(data).axes
    assert (upper.get_label(), initialised.get_label()) == ("initialised, n = 1024",) * 2
    assert pretrained.get_label() == "pretrained, n = 1024" and pretrained.get_title() == pretrained.get_label()
    low, above = pretrained.get_ylim()
    drawn = data[of_pretrained & (data["metric"] == "absolute")]
    assert low < drawn["low"].min() and drawn["high"].max() < above


def test_errors_have_one_logarithmic_scale_in_all_panels(rng):
    """Equal heights are equal ratios, of initialised and of pretrained weights."""
    cells = [spectral(label, n, d, rng, weights) for label in ("skeinformer", "informer") for d in (16, 64)
             for n in (1024, 4096) for weights in ("initialised", "pretrained")]  # fmt: skip
    figure = skeinformer.figure1(tidy(cells))
    assert len(figure.axes) == 4
    ratios = [high / low for low, high in (axes.get_ylim() for axes in figure.axes)]
    np.testing.assert_allclose(ratios, ratios[0])
    assert {axes.get_yscale() for axes in figure.axes} == {"log"}
    for axes in figure.axes:
        values = files.numbers(figure).query("panel == @axes.get_title()")
        low, high = axes.get_ylim()
        assert low < values["y_low"].min() and values["y_high"].max() < high


def test_chosen_mechanisms_stand_in_the_order_asked_for(frame):
    chosen = choose(frame, ["softmax", "polysketch*", "flash"])
    expected = ["softmax", "polysketch_learned_local_r64", "polysketch_random_r32", "flash"]
    assert list(legend(scaling.latency(chosen))) == expected
    assert list(legend(skeinformer.figure1(choose(frame, ["v_mean", "informer"])))) == ["v_mean", "informer"]
    there = "bag_of_tokens, convolution, flash, identity, informer"
    with pytest.raises(MissingRecords, match=f"mechanisms=sotfmax: .* there are {there}"):
        choose(frame, ["flash", "sotfmax"])


def test_choosing_changes_no_number(frame):
    """What speeds are over stays, though it is not drawn."""
    whole, chosen = (files.numbers(crossover.figure(data)) for data in (frame, choose(frame, ["performer"])))
    assert set(chosen["series"]) - {"all"} == {"performer float32"}
    of_whole = whole[whole["series"] == "performer float32"]
    pd.testing.assert_frame_equal(
        chosen[chosen["line"].isna() & chosen["status"].isna()].reset_index(drop=True),
        of_whole[of_whole["line"].isna()].reset_index(drop=True),
    )
    drawn = files.numbers(compare.figure(choose(frame, ["performer"])))
    assert set(drawn["series"]) == {"performer"}


def test_papers_names_are_what_a_reader_of_the_paper_looks_for(frame):
    with page(names="papers"):
        labels = list(legend(scaling.latency(frame)))
        assert shown("polysketch_random_r32 dtype=bfloat16") == "Polysketch (random, r = 32) dtype=bfloat16"
    assert labels[:2] == ["FlashAttention", "linformer"] and "Polysketch (learned + local, r = 64)" in labels
    assert shown("flash") == "flash"
    assert len(set(NAMES.values())) == len(NAMES), "no two variants have one name"


# Machado, Oliveira and Fernandes 2009, table of matrices for severity 1.0; they act on linear RGB.
EYES = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# IEC 61966-2-1, to CIE XYZ.
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour, eye):
    """CIE L*a*b* of what an eye makes of a colour."""
    srgb = np.array(to_rgb(colour))
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    t = XYZ @ np.clip(np.array(EYES[eye]) @ linear, 0, 1) / XYZ.sum(1)
    x, y, z = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def apart(one, other):
    return min(np.linalg.norm(lab(one, eye) - lab(other, eye)) for eye in EYES)


def assert_told_apart(handles):
    """No two of a legend look alike to any eye."""
    looks = [(one.get_marker(), one.get_linestyle(), one.get_color(), one.get_markerfacecolor()) for one in handles]
    for i, (*shape, colour, fill) in enumerate(looks):
        for *other_shape, other, other_fill in looks[:i]:
            assert shape != other_shape or max(apart(colour, other), apart(fill, other_fill)) >= 10


def test_mechanisms_differ_for_every_eye_in_colour_and_in_marker():
    assert apart("#ff0000", "#00ff00") < np.linalg.norm(lab("#ff0000", "all cones") - lab("#00ff00", "all cones"))
    assert lab("#ffffff", "all cones") == pytest.approx([100, 0, 0], abs=0.1)
    own = [*style.MECHANISMS.values()]
    for i, (colour, marker) in enumerate(own):
        for other, its_marker in own[:i]:
            assert apart(colour, other) >= 10 and marker != its_marker, (colour, other)
    for i, (colour, marker) in enumerate(style.OTHERS):
        for other, its_marker in [*own, *style.OTHERS[:i]]:
            assert marker != its_marker or apart(colour, other) >= 10, (colour, marker)


def test_controls_can_be_read_on_white():
    """A contrast of 3, as WCAG 2.1 asks of graphics."""
    for name in ("local", "identity", "v_mean"):
        lightness = lab(style.MECHANISMS[name][0], "all cones")[0]
        assert 1.05 / (((lightness + 16) / 116) ** 3 + 0.05) >= 3


def test_no_two_mechanisms_of_a_figure_look_alike(rng):
    names = [f"mine_{i}" for i in range(len(style.OTHERS))]
    source = latency("flash", 512, rng)
    frame = tidy(changed(source, {"label": name, "attention": {"name": name}}) for name in names)
    frame = frame.assign(series=frame["attention"])
    found = style.of_series(frame)
    assert len({(look["color"], look["marker"]) for look in found.values()}) == len(names)
    # The one that stands alone looks as it does beside a few others.
    alone = style.of_series(frame[frame["attention"] == "mine_0"])
    few = style.of_series(frame[frame["attention"] != "mine_9"])
    assert alone["mine_0"]["marker"] == few["mine_0"]["marker"]


def test_long_curves_of_seeds_are_no_numbers_of_a_figure_and_their_median_is():
    figure, axes = layout.panels(1, 1)
    for points in (files.FEW, files.FEW + 1):
        curves = pd.DataFrame({seed: np.arange(points) + 100.0 * seed for seed in range(3)})
        marks.curves(axes[0, 0], curves, {"label": f"{points} points", "color": "black"})
    counts = files.numbers(figure).groupby(["series", "line"]).size().to_dict()
    few, many = f"{files.FEW} points", f"{files.FEW + 1} points"
    assert counts == {(few, "seed"): 3 * files.FEW, (few, "median"): files.FEW, (many, "median"): files.FEW + 1}


@layout.styled()
def grid_of(titles):
    figure, axes = layout.grid(len(titles), 2)
    for panel, words in zip(axes, titles, strict=True):
        layout.title(panel, words)
        panel.set_ylabel("right answers (%)")
    return layout.finish(figure, {})


def test_long_titles_of_panels_stay_inside():
    words = "num_pairs=4, vocabulary=128, n = 64, orthonormal keys"
    for count in range(30, len(words) + 1, 4):
        figure = grid_of(2 * [words[:count]])
        figure.draw_without_rendering()
        assert figure.axes[1].title.get_window_extent().x1 <= figure.bbox.width, words[:count]
