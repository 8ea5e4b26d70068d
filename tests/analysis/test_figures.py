"""Figures show the records' numbers, mark what is missing, and say where they come from."""

import sys

import numpy as np
import pandas as pd
import pytest
from drawn import caption, changed, curve, gaps, legend, marked, panels
from odd_records import good
from synthetic_arena import arena
from synthetic_quality import quality
from synthetic_records import (
    LENGTHS,
    capacity,
    compare,
    decode,
    latency,
    memory,
    roofline,
    sketch_error,
    spectral,
    train,
    train_step,
    under,
    written,
)

import analysis
from analysis import plots
from analysis.frame import tidy
from analysis.plots import compare as comparison
from analysis.plots import marks, pareto, scaling, skeinformer, style
from analysis.plots.files import numbers
from analysis.registry import FIGURES, TABLES
from analysis.selection import MissingRecords


def test_skeinformer_figure_1(frame):
    figure = skeinformer.figure1(frame)
    axes = panels(figure)
    assert list(axes) == [f"{w}, n = {n}" for w in ("initialised", "pretrained") for n in (1024, 4096)]
    panel = axes["pretrained, n = 1024"]
    assert panel.get_yscale() == "log" and panel.get_xscale() == "log"
    x, y, heights = curve(figure, panel, "skeinformer")
    absolute = frame.query("metric == 'absolute' and seq_len == 1024 and weights == 'pretrained'")
    rows = absolute[absolute["attention"] == "skeinformer"].sort_values("features")
    assert list(x) == [16, 32, 64, 128, 256]
    raw = np.stack(rows["raw"])
    assert raw.shape == (5, 4), "a value for each sequence"
    np.testing.assert_allclose(y, raw.mean(1))
    np.testing.assert_allclose(heights, 3.1824 * raw.std(1, ddof=1) / 4**0.5)
    flat = [line for line in panel.lines if line.get_color() == legend(figure)["v_mean"].get_color()]
    mean = absolute.loc[absolute["attention"] == "v_mean", "value"].item()
    assert [set(line.get_ydata()) for line in flat] == [{mean}]
    assert gaps(axes["initialised, n = 4096"]) == [("timeout", 256.0, legend(figure)["informer"].get_color())]
    assert gaps(panel) == []


def test_skeinformer_figure_1_relative_and_with_panels_missing(rng):
    records = [spectral("skeinformer", 1024, d, rng, "pretrained") for d in (16, 32)]
    records += [spectral("skeinformer", 4096, d, rng, "initialised") for d in (16, 32)]
    records += [spectral("skeinformer", 512, 16, rng, "initialised")]
    frame = tidy(records)
    figure = skeinformer.figure1(frame, metric="relative")
    assert list(panels(figure)) == ["initialised, n = 4096", "pretrained, n = 1024"]
    _, y, _ = curve(figure, panels(figure)["pretrained, n = 1024"], "skeinformer")
    assert y[0] == pytest.approx(np.mean(records[0].measurements["relative"]))
    only_gaussian = skeinformer.figure1(tidy([spectral("skeinformer", 512, 16, rng)]))
    assert list(panels(only_gaussian)) == ["gaussian, n = 512"]


@pytest.mark.parametrize("metric", ["relative", "absolute"])
def test_what_is_exact_up_to_rounding_is_at_the_edge_of_skeinformer_figure_1_and_the_others_can_be_told_apart(
    rng, metric
):
    others = [spectral(name, 256, d, rng) for name in ("skeinformer", "linformer") for d in (64, 128)]
    exact = [spectral("skeinformer", 256, 256, rng), spectral("v_mean", 256, None, rng)]
    for one in exact:
        one.measurements.update({name: [[1e-7] * 12] * 8 for name in ("absolute", "relative")})
    figure = skeinformer.figure1(tidy([*others, *exact]), metric)
    panel = panels(figure)["gaussian, n = 256"]
    shown = numbers(figure)
    assert set(shown.loc[shown["y"] == 1e-7, "series"]) == {"v_mean", "skeinformer"}, "the numbers are kept"
    low, high = panel.get_ylim()
    scaled = shown.loc[shown["y"] != 1e-7, "y"]
    assert low < scaled.min() and scaled.max() < high < 1000 * low
    edge = {name: [line for line in panel.lines if line.get_label() == "_edge" and line.get_color() == look.get_color()]
            for name, look in legend(figure).items()}  # fmt: skip
    assert [list(line.get_xdata()) for line in edge["skeinformer"]] == [[256]] and len(edge["v_mean"]) == 1
    assert all(set(line.get_ydata()) == {0} for lines in edge.values() for line in lines) and not edge["linformer"]
    assert "At the lower edge" in figure.caption
    for alone in (exact, others):  # nothing else is there to be told apart, or nothing is exact
        assert "At the lower edge" not in skeinformer.figure1(tidy(alone), metric).caption


def test_errors_of_other_functions_stay_out_of_skeinformer_figure_1(rng):
    sketch = spectral("polysketch_random_r32", 1024, 32, rng, reference="polynomial", causal=False)
    figure = skeinformer.figure1(tidy([sketch, spectral("skeinformer", 1024, 16, rng)]))
    assert set(legend(figure)) == {"skeinformer"}
    with pytest.raises(MissingRecords, match="softmax"):
        skeinformer.figure1(tidy([sketch, spectral("flash", 1024, None, rng)]))


def test_polysketchformer_figure_1(frame):
    figure = scaling.latency(frame)
    axes = panels(figure)
    assert list(axes) == ["forward", "forward + backward"]
    assert axes["forward"].get_ylabel() == "latency per token (µs/token)"
    figure.canvas.draw()
    ticks = [text.get_text() for text in axes["forward"].get_xticklabels()]
    assert ticks == ["512", "1k", "2k", "4k", "8k", "16k", "32k"]
    x, y, _ = curve(figure, axes["forward"], "softmax")
    assert list(x) == [512, 1024, 2048, 4096, 8192]
    rows = frame[(frame["metric"] == "latency") & (frame["attention"] == "softmax") & (frame["pass"] == "forward")]
    medians = [np.median(raw) for raw in rows.sort_values("seq_len")["raw"]]
    np.testing.assert_allclose(y, np.array(medians) / 32768 / 1000)
    assert len(curve(figure, axes["forward"], "flash")[0]) == len(LENGTHS)
    colours = {name: handle.get_color() for name, handle in legend(figure).items()}
    for panel in axes.values():
        assert ("OOM", pytest.approx((16384 * 32768) ** 0.5), colours["softmax"]) in gaps(panel)
        assert ("unsupported", 4096.0, colours["linformer"]) in gaps(panel)
    # Above the panel, at the lengths that did not run.
    marks = [line for line in axes["forward"].lines if line.get_gid() == "gap"]
    assert sorted(list(line.get_xdata()) for line in marks) == [list(LENGTHS), [16384, 32768]]


def test_captions_name_the_conditions_and_the_functions(frame, rng):
    text = caption(scaling.latency(frame))
    for words in ("Synthetic CPU 9000", "8 cores", "torch 2.13.0", "float32", "12 heads x 64", "32768", "causal"):
        assert words in text
    assert "polynomial and polysketch compute other functions than softmax" in text
    assert "linformer and performer approximate softmax" in text
    assert "Left out" not in text, "that belongs in the log"
    assert " 1 head x 64," in caption(scaling.latency(frame.assign(num_heads=1)))
    exact = tidy([latency(label, 512, rng) for label in ("xformers_memory_efficient", "performer")])
    text = caption(scaling.latency(exact))
    assert "performer approximates softmax attention." in text and "xformers_memory_efficient" not in text
    text = caption(scaling.latency(tidy([latency(label, 512, rng) for label in ("softmax", "performer", "v_mean")])))
    assert "performer approximates softmax attention. v_mean is a control." in text


def test_memory_shows_mib_the_gap_and_what_has_no_place():
    records = [memory("softmax", n, "oom" if n > 8192 else "ok") for n in LENGTHS]
    figure = scaling.memory(tidy(records))
    panel = panels(figure)["forward"]
    _, y, _ = curve(figure, panel, "softmax")
    assert y[0] == pytest.approx(records[0].measurements["passes"]["forward"]["peak_bytes"] / 2**20)
    assert [word for word, *_ in gaps(panel)] == ["OOM"]
    passes = {"forward": {"peak_bytes": 0, "baseline_bytes": 1}}
    zero = changed(memory("v_mean", 512), measurements={"passes": passes})
    assert "Values of 0 (1)" in caption(scaling.memory(tidy([zero, memory("v_mean", 1024)])))


def test_decode_shows_time_and_state_on_axes_of_their_own(frame, rng):
    figure = scaling.decode(frame)
    axes = panels(figure)
    assert list(axes) == ["time", "state"]
    assert [panel.get_ylabel() for panel in axes.values()] == ["time per token (µs)", "state (MiB)"]
    rows = frame[(frame["metric"] == "decode_latency") & (frame["attention"] == "flash")].sort_values("seq_len")
    x, y, heights = curve(figure, axes["time"], "flash")
    assert list(x) == list(LENGTHS)
    np.testing.assert_allclose(y, [np.median(raw) / 1e3 for raw in rows["raw"]])
    np.testing.assert_allclose(2 * heights, (rows["high"] - rows["low"]) / 1e3)
    _, cached, _ = curve(figure, axes["state"], "flash")
    np.testing.assert_allclose(cached, [12 * 65 * 4 * 2 * n / 2**20 for n in LENGTHS])
    _, summed, _ = curve(figure, axes["state"], "performer")
    np.testing.assert_allclose(summed, 12 * 65 * 4 * 1024 / 2**20)
    assert axes["time"].get_ylim() != axes["state"].get_ylim()
    for panel in axes.values():
        assert [word for word, *_ in gaps(panel)] == ["unsupported", "OOM"]
    assert "batch size 1" in caption(figure)
    with pytest.raises(MissingRecords, match="bench=decode"):
        scaling.decode(tidy([decode("softmax", 512, rng, "oom")]))


def test_pareto_front_is_what_no_other_beats():
    points = pd.DataFrame({"error": [1.0, 2.0, 3.0, 2.0, 4.0], "value": [9.0, 5.0, 6.0, 7.0, 1.0]})
    front = marks.front(points, "error")
    assert list(zip(front["error"], front["value"], strict=True)) == [(1, 9), (2, 5), (4, 1)]
    # What is exact and takes 5 beats whatever takes as long.
    front = marks.front(points, "error", exact=5)
    assert list(zip(front["error"], front["value"], strict=True)) == [(4, 1)]


def test_an_approximation_slower_than_an_exact_mechanism_is_on_no_front(rng):
    def records(exact):
        cells = [spectral(label, 1024, 64, rng) for label in ("skeinformer", "informer")]
        changes = {"causal": False, "batch_size": 4}
        timed = [latency(label, 1024, rng, attention=cell.config["attention"], **changes)
                 for label, cell in zip(("skeinformer", "informer"), cells, strict=True)]  # fmt: skip
        return [*cells, *timed, latency(exact, 1024, rng, **changes)]

    # µs per token: flash 3.5, softmax 9.5, informer 6, skeinformer 7.
    for exact, on_the_front in (("flash", False), ("softmax", True)):
        (axes,) = pareto.figure(tidy(records(exact))).axes
        (front,) = marked(axes, "front")
        assert bool(len(front.get_xdata())) == on_the_front


def once(record):
    """The record with the first of its samples alone."""

    def first(key, value):
        if key in ("absolute", "relative", "exact_norm"):
            return [[value[0][0]]]
        if key == "passes":
            return {name: {**one, "samples": one.get("samples", [])[:1]} for name, one in value.items()}
        return value

    cut = {key: first(key, value) for key, value in record.measurements.items()}
    return changed(record, {"num_heads": 1, "batch_size": 1, "causal": False}, cut)


@pytest.fixture(scope="module")
def single_trials():
    rng = np.random.default_rng(0)
    cells = [spectral(label, 1024, d, rng, trials=1) for label in ("skeinformer", "linformer") for d in (16, 64)]
    cells = [once(cell) for cell in (*cells, spectral("v_mean", 1024, None, rng, trials=1))]
    cells += [once(latency(c.config["label"], 1024, rng, attention=c.config["attention"])) for c in cells]
    cells += [memory("flash", 512), decode("flash", 512, rng), train_step("performer", 16, rng)]
    cells += [compare(("flash", "performer"), n, rng, rounds=1) for n in (512, 1024)]
    cells += [roofline("flash", 512, rng, rounds=1)]
    cells += [capacity(label, 64, 12, rng, draws=1) for label in ("performer", "polynomial_p4")]
    cells += [sketch_error("gaussian", 4, r, rng, trials=1, batch_size=1) for r in (8, 32)]
    tasks = ("reversal", "language_modelling", "induction_heads", "associative_recall")
    cells += [*quality(seeds=1), *arena(1)]
    return tidy([*cells, *(train("polynomial_p4", 16, 0, rng, evaluations=1, task=task) for task in tasks)])


# Of one seed there is no difference to a control.
OF_DIFFERENCES = ("controls", "attribution", "loss_by_distance", "equal_quality")


@pytest.mark.parametrize("name", [name for name in FIGURES if name not in OF_DIFFERENCES])
def test_single_trials_are_drawn_without_bars(name, single_trials):
    """One value has no interval; nothing may hang on it."""
    figure = FIGURES[name](single_trials)
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert np.isfinite([*axes.get_xlim(), *axes.get_ylim()]).all()


def test_a_pass_that_failed_is_a_gap_in_its_own_panel(rng):
    def of_pass(name, n, status="ok"):
        whole = latency("softmax", n, rng, status)
        kept = {name: whole.measurements["passes"][name]} if status == "ok" else {}
        asked = {"bench": {**whole.config["bench"], "passes": [name]}}
        return changed(whole, asked, {"passes": kept} if kept else {}, cell_id=f"{name}{n}" * 4)

    records = [of_pass(name, n) for name in ("forward", "forward_backward") for n in (512, 1024)]
    records += [of_pass("forward", 2048), of_pass("forward_backward", 2048, "oom")]
    figure = scaling.latency(tidy(records))
    assert gaps(panels(figure)["forward"]) == []
    assert [(word, at) for word, at, _ in gaps(panels(figure)["forward + backward"])] == [("OOM", 2048.0)]


def test_pareto_keeps_functions_apart_and_matches_sizes(frame):
    figure = pareto.figure(frame)
    axes = panels(figure)
    assert list(axes) == ["polynomial p=4, causal, n = 4096", "softmax, not causal, n = 4096"]
    words = sorted(text.get_text() for text in axes["softmax, not causal, n = 4096"].texts)
    # informer at d = 256 ended in a timeout: no error, no point.
    assert words == ["256", "256", "64", "64", "64"]
    # Averaging the values is no choice, but what a choice must be better than.
    panel = axes["softmax, not causal, n = 4096"]
    ((line, band),) = [marked(panel, "upright") + [one for one in panel.patches if one.get_gid() == "upright"]]
    of_mean = frame.query("metric == 'relative' and attention == 'v_mean' and seq_len == 4096")
    assert line.get_xdata()[0] in set(of_mean["value"]) and band.get_bbox().x0 < line.get_xdata()[0]
    (front,) = marked(panel, "front")
    assert (front.get_xdata() < line.get_xdata()[0]).all()


def test_compare_shows_ratios_ties_and_the_crossover(frame):
    figure = comparison.figure(frame)
    panel = panels(figure)["causal, forward"]
    x, y, _ = curve(figure, panel, "performer")
    ratios = frame[(frame["bench"] == "compare") & (frame["metric"] == "speedup")]
    rows = ratios[ratios["attention"] == "performer"].sort_values("seq_len")
    assert list(x) == list(LENGTHS[:-1])
    np.testing.assert_allclose(y, rows["value"])
    assert [word for word, *_ in gaps(panel)] == ["OOM", "OOM"]
    # 0.5 + 3 n = 9 and = 14 in µs per token, n in units of 1024.
    crossings = sorted(line.get_xdata()[0] for line in panel.lines if line.get_gid() == "crossover")
    np.testing.assert_allclose(crossings, [8.5 / 3 * 1024, 13.5 / 3 * 1024], rtol=0.05)
    found = comparison.crossovers(frame).set_index("attention")
    assert found["seq_len"].tolist() == pytest.approx(crossings) and (found["low"] < found["seq_len"]).all()


def test_sixteen_variants_of_a_mechanism_differ_and_four_by_their_marks_alone(rng):
    source = latency("polysketch_random_r32", 512, rng)
    frame = tidy(changed(source, {"label": f"polysketch_variant_{i}"}) for i in range(16))
    found = [*style.of_series(frame.assign(series=sorted(frame["attention"]))).values()]
    assert len({(look["linestyle"], look["markerfacecolor"]) for look in found}) == 16
    assert len({look["markerfacecolor"] for look in found[:4]}) == 4
    assert len({(look["color"], look["marker"]) for look in found}) == 1


def test_figures_of_some_cells_only_are_the_same_bytes_on_a_second_run(rng, tmp_path):
    records = [memory("flash", 512), memory("flash", 1024), latency("flash", 512, rng)]
    written(tmp_path, records)
    chosen = {record.cell_id for record in records[:2]}
    first, second = (analysis.figures(tmp_path, tmp_path / name, chosen) for name in "ab")
    assert [path.name for path in first] == ["memory.png", "memory.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert analysis.figures(tmp_path / "nothing") == []


def test_a_caption_names_the_cells_that_were_disturbed(rng):
    records = [latency("flash", n, rng) for n in LENGTHS]
    quiet = caption(scaling.latency(tidy(records)))
    assert "disturbance" not in quiet
    records[0], records[1] = under(records[0], "the hypervisor: 2 s"), under(records[1], "other processes: 1.3 cores")
    text = caption(scaling.latency(tidy(records)))
    said = "Measured under disturbance (other processes, the hypervisor): flash at n = 512 and flash at n = 1k."
    assert said in text
    many = [under(record, "other processes: 2 cores") for record in records]
    assert "flash at n = 4k and 3 more." in caption(scaling.latency(tidy(many)))


def test_every_table_says_which_rows_were_disturbed():
    loud = tidy(good()).assign(disturbed=True, disturbance="other processes: 1.3 cores")
    for name, table in TABLES.items():
        assert "other processes: 1.3 cores" in set(table(loud)["disturbed"]), name
    quiet = loud.assign(disturbed=False, disturbance=None)
    pd.testing.assert_frame_equal(TABLES["peers"](loud).drop(columns="disturbed"), TABLES["peers"](quiet))
    one = (loud["bench"] == "roofline") & (loud["seq_len"] == 512)
    shares = TABLES["roofline_shares"](quiet.assign(disturbance=loud["disturbance"].where(one, None)))
    assert shares.set_index("n")["disturbed"].isna().to_dict() == {512: False, 1024: True}


def of_code(record, hash, commit):
    return changed(record, code={"sources_sha256": hash, "git_sha": commit, "git_dirty": False})


def test_a_caption_names_the_lines_that_join_points_of_different_code(rng):
    def told(*records):
        text = caption(scaling.latency(tidy(records)))
        return text.partition("different code may have measured: ")[2].partition(".")[0]

    flash, performer = ([latency(label, n, rng) for n in (512, 1024)] for label in ("flash", "performer"))
    # Another mechanism's code has another hash, and an edit elsewhere another commit.
    first, second, *others = map(of_code, [*flash, *performer], "aabb", "0100")
    assert told(first, second, *others) == ""
    assert told(of_code(first, "c", "0"), second, *others) == "flash"
    assert told(of_code(first, "c", "0"), second, others[0], performer[1]) == "flash and performer"
    assert told(of_code(latency("flash", 512, rng, "oom"), "c", "9"), second) == ""
    # Hashes of different comparisons say nothing, and their commits do.
    cells = compare(("flash", "performer"), 1024, rng), compare(("flash", "performer", "v_mean"), 2048, rng)
    for commit, said in (("1", False), ("2", True)):
        text = caption(comparison.figure(tidy([of_code(cells[0], "a", "1"), of_code(cells[1], "b", commit)])))
        assert ("different code may have measured: flash and performer." in text) == said


@pytest.mark.parametrize(
    ("rounds", "told"), [(20, "95% bootstrap interval over 20 rounds"), (5, "range over 5 rounds")]
)
def test_figures_and_tables_of_ratios_say_what_their_intervals_are(rng, rounds, told):
    names = ("flash", "performer", "lucidrains_performer")
    records = [compare(names, n, rng, rounds=rounds) for n in (1024, 8192)]
    frame = tidy([*records, roofline("flash", 1024, rng, rounds=rounds)])
    for name in ("compare", "crossover", "roofline"):
        text = caption(FIGURES[name](frame))
        assert told in text and ("95%" in text) == (rounds == 20), name
    for name in ("crossover_speeds", "peers", "roofline_shares"):
        assert set(TABLES[name](frame)["interval"]) == {told}, name


def test_old_names_draw_with_a_warning(frame, monkeypatch):
    for name in ("memory", "polysketchformer", "page"):  # another test may have imported them
        monkeypatch.delitem(sys.modules, f"analysis.plots.{name}", raising=False)
        monkeypatch.delattr(plots, name, raising=False)
    with pytest.warns(FutureWarning, match=r"is analysis.plots.(scaling|layout) now"):
        from analysis.plots import memory as old_memory
        from analysis.plots import polysketchformer
        from analysis.plots.page import page
    with pytest.warns(DeprecationWarning, match="analysis.selection.choose"):
        from analysis.frame import choose
    with page(names="papers"):
        assert set(legend(polysketchformer.figure1(choose(frame, ["flash"])))) == {"FlashAttention"}
    assert old_memory.figure is scaling.memory is old_memory.memory
