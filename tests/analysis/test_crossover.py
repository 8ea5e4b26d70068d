"""Speeds over the best exact softmax: whichever entry it is, round by round, and from which length on."""

import numpy as np
import pytest
from drawn import caption, changed, legend, marked, panels, words
from synthetic_records import ATTENTIONS, config, record

from analysis.frame import tidy
from analysis.plots import compare, crossover
from analysis.selection import MissingRecords

N = (512, 1024, 2048, 4096)


def comparison(n, times, *, named=True, measured_pass="forward", status="ok", drift=1.0, **changes):
    """A comparison of `{(label, dtype): ns}`, all of which share the drift of each of 10 rounds."""
    labels = {(f"{label} dtype={dtype}" if named else label): (label, dtype) for label, dtype in times}
    entries = [{"label": name, "attention": dict(ATTENTIONS[label][0]), "impl": "auto", "dtype": dtype}
               for name, (label, dtype) in labels.items()]  # fmt: skip
    bench = {"name": "compare", "measured_pass": measured_pass, "min_sample_ms": 20.0, "against": entries[1:]}
    changes = {"causal": False, "batch_size": 1, "dtype": entries[0]["dtype"], **changes}
    cell = config(entries[0]["label"], bench, n, entries[0]["attention"], **changes)
    rounds = np.linspace(1, 1.5, 10) * drift
    samples = {name: (times[key] * rounds).tolist() for name, key in labels.items()}
    return record(cell, {"pass": measured_pass, "labels": list(labels), "samples": samples}, status)


def times(n, **others):
    """In ns: at 512 softmax in bfloat16 is the fastest exact softmax, then flash in float32, at 4096 in bfloat16."""
    flash = {512: (2e6, 3e6), 1024: (8e6, 9e6), 2048: (32e6, 40e6), 4096: (128e6, 64e6)}[n]
    own = {("flash", "float32"): flash[0], ("flash", "bfloat16"): flash[1]}
    own["softmax", "bfloat16"] = 1e6 * (n / 512) ** 4
    # Linear: 16 ms at 2048, 8 ms at 1024 where the best takes as long.
    return own | {("skeinformer", "float32"): n / 1024 * 8e6, ("skeinformer", "bfloat16"): n / 1024 * 2e6} | others


def rows_of(table, **conditions):
    for name, value in conditions.items():
        table = table[table[name] == value]
    return table


@pytest.fixture(scope="module")
def frame():
    return tidy([comparison(n, times(n)) for n in N])


def test_the_baseline_is_whichever_exact_softmax_is_the_fastest_in_the_cell(frame):
    table = crossover.table(frame)
    rows = rows_of(table, attention="skeinformer", dtype="float32")
    assert list(rows["seq_len"]) == list(N) and len(table) == 5 * len(N)
    assert list(rows["best"]) == ["softmax bfloat16", "flash float32", "flash float32", "flash bfloat16"]
    np.testing.assert_allclose(rows["over_best"], [1 / 4, 1, 2, 2])
    np.testing.assert_allclose(rows["over_flash"], [2 / 4, 1, 2, 4])
    assert list(rows["best_verdict"]) == ["slower", "tie", "faster", "faster"]
    np.testing.assert_allclose(rows["from_seq_len"], 1024)
    # What drifts with its round leaves no width.
    np.testing.assert_allclose(rows[["best_low", "best_high"]], rows[["over_best", "over_best"]])
    # Exact softmax has rows too; in bfloat16 the other is as fast as the best at 512, and four times at 1024.
    flash = rows_of(table, attention="flash", dtype="float32")
    assert list(flash["over_flash"]) == [1] * 4 and flash["over_best"].tolist() == pytest.approx([0.5, 1, 1, 0.5])
    assert flash["from_seq_len"].isna().all()
    bfloat16 = rows_of(table, attention="skeinformer", dtype="bfloat16")
    assert bfloat16["over_best"].tolist() == pytest.approx([1, 4, 8, 8])


def test_passes_and_directions_are_curves_of_their_own():
    cells = [comparison(n, times(n), measured_pass=name, causal=causal, drift=2.0)
             for n in N[:2] for name in ("forward", "forward_backward") for causal in (False, True)]  # fmt: skip
    frame = tidy(cells)
    assert len(crossover.table(frame)) == 4 * 5 * 2
    shown = panels(crossover.figure(frame))
    titles = [f"{causal}, {name}" for name in ("forward", "forward + backward") for causal in ("not causal", "causal")]
    assert [title for title in shown if title] == titles


def test_the_figure_shows_the_tables_numbers_a_line_per_mechanism_and_dtype(frame):
    figure = crossover.figure(frame)
    speeds, crossings = figure.axes
    drawn = {line.get_linestyle(): (line.get_xdata(), line.get_ydata()) for line, *_ in speeds.containers}
    for dtype, dash in (("float32", "-"), ("bfloat16", "--")):
        rows = rows_of(crossover.table(frame), attention="skeinformer", dtype=dtype)
        np.testing.assert_allclose(drawn[dash][0], rows["seq_len"])
        np.testing.assert_allclose(drawn[dash][1], rows["over_best"])
    assert [label.get_text() for label in crossings.get_yticklabels()] == ["skeinformer"]
    assert words(crossings) == ["512", "1,024"]
    assert set(legend(figure)) == {"skeinformer", "float32", "bfloat16"}
    text = caption(figure)
    assert "flash float32 but for flash bfloat16 at 4k (not causal, forward); softmax bfloat16 at 512 (" in text
    assert "bfloat16, float32, 12 heads x 64, batch size 1, not causal" in text and "Left out" not in text


def test_a_line_that_does_not_cross_says_so():
    others = {("linformer", "float32"): 1e3}
    cells = [comparison(n, {**times(n), **others, ("skeinformer", "float32"): 1e12}) for n in N[:2]]
    *_, crossings = crossover.figure(tidy(cells)).axes
    assert {"ahead throughout", "behind throughout"} <= set(words(crossings))
    assert [label.get_text() for label in crossings.get_yticklabels()] == ["linformer", "skeinformer"]


def test_a_tie_is_not_ahead():
    cells = [comparison(n, {**times(n), ("linformer", "float32"): 9.5e5 if n == 512 else 1e3}) for n in N[:2]]
    noisy = cells[0].measurements["samples"]["linformer dtype=float32"]
    noisy[:] = np.multiply(noisy, [0.8, 1.0, 1.3, 0.9, 1.0, 1.2, 1.0, 0.7, 1.2, 1.0])
    assert rows_of(crossover.table(tidy(cells)), attention="linformer")["best_verdict"].iloc[0] == "tie"
    *_, crossings = crossover.figure(tidy(cells)).axes
    assert "ahead or a tie throughout" in words(crossings) and "ahead throughout" not in words(crossings)


def test_a_line_that_exact_softmax_overtakes_says_until_when():
    key = ("skeinformer", "float32")
    frame = tidy(comparison(n, {**times(n), key: times(n)["flash", "float32"] * (n / 1500)}) for n in (1024, 2048))
    *_, crossings = crossover.figure(frame).axes
    assert any(word.startswith("until 1,") for word in words(crossings))
    assert rows_of(crossover.table(frame), attention=key[0], dtype=key[1])["from_seq_len"].isna().all()


def test_labels_need_not_name_the_dtype_and_the_newest_measurement_counts():
    alone = {(name, "float32"): times(2048)[name, "float32"] for name in ("flash", "skeinformer")}
    old = comparison(2048, {**alone, ("skeinformer", "float32"): 1.0}, named=False)
    later = {"cell_id": "1" * 64, "record_id": "1" * 32, "ended": "2026-05-01T00:00:00+00:00"}
    new = changed(comparison(2048, alone, named=False), **later)
    named = [comparison(n, times(n)) for n in (512, 1024)]
    table = crossover.table(tidy([new, old, *named]))
    rows = rows_of(table, attention="skeinformer", dtype="float32")
    assert list(rows["seq_len"]) == [512, 1024, 2048]
    assert rows["over_best"].iloc[-1] == pytest.approx(2)


def test_without_flash_in_float32_only_the_best_is_compared_with():
    cells = [comparison(n, {key: value for key, value in times(n).items() if key[1] == "bfloat16"}) for n in N[:2]]
    table = crossover.table(tidy(cells))
    assert table["over_flash"].isna().all() and table["over_best"].notna().all()


def test_a_cell_that_did_not_measure_is_a_gap():
    cells = [*(comparison(n, times(n)) for n in N[:2]), comparison(2048, times(2048), status="oom")]
    speeds, _ = crossover.figure(tidy(cells)).axes
    assert words(speeds) == ["OOM"]


@pytest.mark.parametrize("kept", [["flash", "softmax"], ["skeinformer"]])
def test_nothing_to_compare_is_said(kept):
    frame = tidy([comparison(n, {key: ns for key, ns in times(n).items() if key[0] in kept}) for n in N[:2]])
    with pytest.raises(MissingRecords, match="an exact softmax and another mechanism"):
        crossover.figure(frame)


@pytest.mark.parametrize("most, marked", [(4, True), (3, False)])
def test_the_figure_of_comparisons_marks_few_crossings_or_none(most, marked, monkeypatch, frame):
    monkeypatch.setattr(compare, "MOST_MARKED", most)
    (panel,) = compare.figure(frame).axes
    assert any(line.get_gid() == "crossover" for line in panel.lines) == marked


def test_comparisons_show_every_dtype_and_never_two_baselines():
    def pairs(n, dtypes, **changes):
        return comparison(n, {key: ns for key, ns in times(n).items() if key[1] in dtypes}, **changes)

    figure = compare.figure(tidy([pairs(n, ("float32", "bfloat16")) for n in N[:2]]))
    assert list(panels(figure)) == ["not causal, forward"] and figure.axes[0].get_ylabel() == "speed over flash float32"
    assert list(legend(figure)) == ["flash", "skeinformer", "softmax", "float32", "bfloat16"], "each name once"
    (panel,) = figure.axes
    drawn = [(line.get_color(), line.get_linestyle()) for line, *_ in panel.containers]
    assert len(set(drawn)) == len(drawn) == 4
    assert "bfloat16, float32, 12 heads" in caption(figure)
    # The same baseline's name in another dtype is another baseline.
    mixed = [pairs(n, [dtype], named=False) for n, dtype in ((512, "float32"), (1024, "float32"), (2048, "bfloat16"))]
    assert "; float32, 12 heads" in caption(compare.figure(tidy(mixed)))


def test_a_tie_has_a_ring_and_a_row():
    frame = tidy([comparison(512, {("flash", "float32"): 1e6, ("skeinformer", "float32"): 1e6})])
    ratios = frame[frame["metric"] == "speedup"]
    assert ratios["verdict"].tolist() == ["tie"] and ratios["samples"].tolist() == [10]
    (panel,) = compare.figure(frame).axes
    (tie,) = marked(panel, "tie")
    assert len(tie.get_xdata()) == 1 and tie.get_markerfacecolor() == "none"
