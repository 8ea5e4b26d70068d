"""Figures and tables of trained models, on synthetic records."""

import dataclasses
from itertools import product

import numpy as np
import pandas as pd
import pytest
from drawn import bars, bars_of_rows, caption, changed, marked, words
from matplotlib.text import Text
from synthetic_records import latency, train, train_step

from analysis import controls
from analysis.controls import Diagnosis
from analysis.frame import tidy
from analysis.plots import layout, learning, marks, perplexity, quality_cost, scaling, thesis
from analysis.selection import MissingRecords
from analysis.tables import trained
from analysis.training import MOST_HOURS, panels, timed, trained_cells
from bench.published.papers import ROWS

LM = {"task": "language_modelling"}


def language_models(rng, **changes):
    runs = product({"softmax": 1.4, "performer": 1.6}.items(), (64, 128), range(3))
    return [train(name, n, seed, rng, final=loss * (1 + seed / 10), **LM | changes) for (name, loss), n, seed in runs]


def test_models_of_two_cpus_compare_and_their_times_do_not(rng):
    own = language_models(rng)
    other = {"softmax": {}, "performer": {"cpu_model": "Another CPU", "device_name": "Another CPU"}}
    moved = [dataclasses.replace(one, machine=one.machine | other[one.config["label"]]) for one in own]
    data, _ = trained_cells(tidy(moved))
    assert set(data["series"]) == {"softmax", "performer"} and data["device_name"].nunique() == 2
    assert timed(data)["device_name"].nunique() == 1 < timed(trained_cells(tidy(own))[0])["series"].nunique()
    unknown = [dataclasses.replace(one, machine={}) for one in own]
    assert len(timed(trained_cells(tidy(unknown))[0])) == len(timed(trained_cells(tidy(own))[0]))
    of_a_gpu = [dataclasses.replace(one, config=one.config | {"device": "cuda:0"}) for one in moved]
    assert trained_cells(tidy(of_a_gpu))[0]["device_name"].nunique() == 1


def at_rates(ends, rng):
    """Runs of softmax whose loss ends at so much, by rate and seed; None: it diverged."""
    return [
        train("softmax", 64, seed, rng, "nonfinite" if end is None else "ok", rate, end or 1.0, **LM)
        for rate, of_seeds in ends.items()
        for seed, end in enumerate(of_seeds)
    ]


@pytest.mark.parametrize(
    "ends",
    [
        {1e-3: (2.0, 2.0, 2.0), 3e-3: (1.0, 1.0, 9.0), 1e-2: (1.0, 1.0, None)},
        {1e-3: (2.0, 2.0, None), 3e-3: (1.0, 3.0, None), 1e-2: (1.0, None, None)},
    ],
    ids=["the best mean", "of rates at which some failed, the best median"],
)
def test_a_mechanism_has_the_best_rate_and_a_failed_run_is_worst(ends, rng):
    records = at_rates(ends, rng)
    data, notes = trained_cells(tidy(records))
    assert set(data["rate"]) == {1e-3} and set(data["rates"]) == {"0.001, 0.003, 0.01"}
    assert "Learning rates: the best of 0.001, 0.003, 0.01 by mean validation loss for each mechanism." in notes
    _, notes = trained_cells(tidy([*records, train("performer", 64, 0, rng, **LM)]))
    assert any("not as many for all" in note for note in notes)


def with_training(record, **settings):
    return changed(record, {"training": record.config["training"] | settings})


def test_with_checkpoint_best_the_rate_is_that_of_the_weights_that_are_tested(rng):
    """The loss of one rate rises again at the end, of weights that are not tested."""
    records = at_rates({1e-3: (1.0,), 3e-3: (1.3,)}, rng)
    *_, last = records[0].measurements["validation"]
    last["loss"] = 2.0
    for checkpoint, rate in (("last", 3e-3), ("best", 1e-3)):
        data, _ = trained_cells(tidy(with_training(one, checkpoint=checkpoint) for one in records))
        assert set(data["rate"]) == {rate}


def test_settings_that_change_nothing_that_was_learned_keep_nobody_out(rng):
    softmax, performer = (train(label, 64, 0, rng, **LM) for label in ("softmax", "performer"))
    looks = {"evaluate_every": 7, "evaluation_examples": 9}
    for settings, are_both in (
        ({**looks, "checkpoint_seconds": 1.0, "test_lengths": [128]}, True),
        ({**looks, "checkpoint": "best"}, False),  # decide which weights are tested
        ({"weight_decay": 0.5}, False),
    ):
        one = with_training(softmax, **{key: settings[key] for key in settings.keys() & {"checkpoint"}})
        data, _ = trained_cells(tidy([one, with_training(performer, **settings)]))
        assert (data["series"].nunique() == 2) == are_both, settings


def test_a_rate_with_fewer_seeds_is_not_chosen(rng):
    """Those that are missing may have been the worse ones, and what has few seeds is compared with nothing."""
    data, _ = trained_cells(tidy(at_rates({1e-3: (2.0, 2.0, 2.0), 3e-3: (1.0,)}, rng)))
    assert set(data["rate"]) == {1e-3} and set(data["rates"]) == {"0.001"}


def test_the_best_rate_is_that_of_the_validation_loss_not_of_the_test_loss(rng):
    records = at_rates({1e-3: (1.0,), 3e-3: (2.0,)}, rng)
    for one, loss in zip(records, (2.0, 1.0), strict=True):
        one.measurements["test"] = {**one.measurements["test"], "loss": loss}
    data, _ = trained_cells(tidy(records))
    assert set(data["rate"]) == {1e-3}


def test_runs_that_failed_are_named_and_how_many_seeds_there_are(rng):
    records = [train("softmax", 64, seed, rng, "nonfinite" if seed else "ok") for seed in range(3)]
    records += [train("performer", n, seed, rng) for seed in range(3) for n in (64, 128)]
    _, notes = trained_cells(tidy(records))
    assert notes[:2] == ["1 to 3 seeds.", "Runs that did not end: softmax, reversal, n = 64 (2: nonfinite)."]
    # Of a length at which nothing ended too.
    _, notes = trained_cells(tidy([*records, train("softmax", 256, 0, rng, "oom")]))
    assert "softmax, reversal, n = 256 (1: oom)" in notes[1]


def test_tasks_are_told_apart_by_the_text_that_was_read_and_by_settings_that_differ(rng):
    records = [train("softmax", 64, 0, rng, **LM, settings={"text": text}) for text in ("kjv", "pydoc")]
    records += [train("softmax", 64, 1, rng, "timeout", **LM, settings={"text": "pydoc"})]
    records += [train("softmax", 64, 0, rng, task="associative_recall", settings={"num_pairs": p}) for p in (4, 16)]
    records[0].measurements["source"] = "kjv (hub cannot be reached)"
    data, _ = trained_cells(tidy(records))
    of_texts = {f"language modelling, {text}" for text in ("kjv (hub cannot be reached)", "pydoc")}
    assert set(data["kind"]) == of_texts | {f"associative recall, num_pairs={pairs}" for pairs in (4, 16)}


def test_models_of_other_depth_are_series_of_their_own(rng):
    data, _ = trained_cells(tidy(train("softmax", 64, 0, rng, layers=layers) for layers in (2, 12)))
    assert set(data["series"]) == {"softmax layers=2", "softmax layers=12"}
    data, _ = trained_cells(tidy([train("softmax", 50, 0, rng, layers=1), train("softmax", 64, 0, rng, **LM)]))
    assert set(data["series"]) == {"softmax"}, "the layers of another task are in no name"


def test_perplexity_has_its_range_its_baselines_its_text_and_what_ran_out_of_memory(rng):
    records = [*language_models(rng), *(train("softmax", 256, seed, rng, "oom", **LM) for seed in range(3))]
    figure = perplexity.figure(tidy(records))
    (panel,) = figure.axes
    assert panel.get_title() == "language modelling, kjv"
    found = bars(panel)
    for colour, loss in (("#000000", 1.4), ("#029e73", 1.6)):
        expected = [(n, *np.exp([1.1 * loss, loss, 1.2 * loss])) for n in (64, 128)]
        np.testing.assert_allclose(found[colour], expected)
    (unigram,), (bigram,) = marked(panel, "unigram"), marked(panel, "bigram")
    np.testing.assert_allclose(unigram.get_ydata(), np.exp([2.9, 2.9]))
    np.testing.assert_allclose(bigram.get_ydata(), np.exp([2.2 + 1 / 64, 2.2 + 1 / 128]))
    assert words(panel) == ["OOM"]
    assert [text.get_text() for text in figure.legends[0].texts][-2:] == ["unigram", "bigram"]
    assert "Tokens: bytes; trained on 3.28 to 6.55 million." in caption(figure) and "3 seeds." in caption(figure)
    # A baseline that is far from every model leaves them the room.
    assert "Above the axes: unigram of language modelling, kjv, 18.2." in caption(figure)
    assert np.exp(2.2 + 1 / 64) < panel.get_ylim()[1] < np.exp(2.9)
    for one in records:  # a training with patience may end earlier than its settings say
        one.config["training"] |= {"steps": 100_000, "patience": 2}
    assert "trained on 3.28 to 6.55 million." in caption(perplexity.figure(tidy(records)))


def test_two_texts_have_a_panel_each_and_no_baseline_is_invented(rng):
    records = language_models(rng) + language_models(rng, settings={"text": "pydoc"})
    for one in records:
        one.measurements.pop("baselines")
    figure = perplexity.figure(tidy(records))
    assert [axes.get_title() for axes in figure.axes] == [f"language modelling, {text}" for text in ("kjv", "pydoc")]
    assert "n-grams" not in caption(figure)


def test_perplexity_by_position_falls_as_the_losses_do(rng):
    figure = perplexity.by_position(tidy(language_models(rng)))
    assert [axes.get_title() for axes in figure.axes] == [f"language modelling, kjv, n = {n}" for n in (64, 128)]
    medians = marked(figure.axes[0], "median")
    # Bins of one position at first: nothing is asked at position 1, position 2 has twice the loss.
    at = medians[1].get_xdata().tolist().index(2.0)
    assert medians[1].get_ydata()[at] == pytest.approx(np.exp(2 * 1.4 * 1.1))
    assert len(marked(figure.axes[0], "seed")) == 6


def recalls(rng, label, n, pairs):
    """Three seeds, whose losses are once, twice and three times a tenth of the number of pairs."""
    settings = {"task": "associative_recall", "settings": {"num_pairs": pairs}}
    return [train(label, n, seed, rng, final=0.1 * pairs * (1 + seed), **settings) for seed in range(3)]


def right(pairs):
    """Percent: the median over the seeds of `recalls`, the lowest, the highest."""
    return 100 * np.exp(-0.1 * pairs * np.array([2, 3, 1]))


def test_right_answers_of_recall_by_pairs_and_length(rng):
    records = [one for n, pairs in product((64, 128), (2, 4, 8)) for one in recalls(rng, "softmax", n, pairs)]
    failed = train("softmax", 64, 0, rng, "oom", task="associative_recall", settings={"num_pairs": 16})
    figure = learning.recall(tidy([*records, failed]))
    assert [axes.get_title() for axes in figure.axes] == ["n = 64", "n = 128"]
    np.testing.assert_allclose(bars(figure.axes[0])["#000000"], [(pairs, *right(pairs)) for pairs in (2, 4, 8)])
    assert words(figure.axes[0]) == ["OOM"] and words(figure.axes[1]) == []


def test_no_line_joins_two_numbers_of_pairs(rng):
    """Each has a panel with a row for each mechanism: its median, its range and its seeds, or what came of it."""
    runs = (("softmax", 4), ("softmax", 8), ("performer", 4))
    records = [one for label, pairs in runs for one in recalls(rng, label, 64, pairs)]
    records += [train("performer", 64, 0, rng, "oom", task="associative_recall", settings={"num_pairs": 8})]
    figure = learning.recall(tidy(records))
    assert [axes.get_title() for axes in figure.axes] == ["n = 64, 4 pairs", "n = 64, 8 pairs"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["performer", "softmax"]
    for panel, pairs in zip(figure.axes, (4, 8), strict=True):
        np.testing.assert_allclose(bars_of_rows(panel)[1], right(pairs))
        np.testing.assert_allclose(sorted(marked(panel, "seed")[-1].get_xdata()), sorted(right(pairs)))
        assert all(line.get_linestyle() == "None" for line, *_ in panel.containers)
    assert words(figure.axes[1]) == ["OOM"] and not words(figure.axes[0])


def test_sudden_learning_has_a_panel_for_each_mechanism_and_says_what_failed(rng):
    changes = {"task": "induction_heads", "evaluations": 20}
    records = [train("softmax", 127, seed, rng, **changes) for seed in range(3)]
    records += [train("performer", 127, seed, rng, "nonfinite" if seed else "ok", **changes) for seed in (0, 1)]
    records += [train("softmax", 64, 0, rng, task="selective_copying")]
    figure = learning.sudden(tidy(records))
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["performer", "softmax", "", ""]
    performer, softmax, not_run, _ = figure.axes
    assert words(performer) == ["1 of 2: not finite"] and words(not_run) == ["not run"] and words(softmax) == []
    assert [len(marked(softmax, gid)) for gid in ("seed", "median")] == [3, 1]
    with pytest.raises(MissingRecords, match="induction_heads or selective_copying"):
        learning.sudden(tidy([train("softmax", 64, 0, rng)]))


def test_the_groups_of_the_thesis_are_those_of_its_figures():
    figures = {}
    for row in ROWS:
        if row.paper == "Thesis" and row.variant:
            # Of the squares, one is in the first of its two figures only.
            where = "Figures 5.3, 5.4" if row.where == "Figure 5.3" else row.where
            figures.setdefault(where, set()).add(row.variant)
    assert {f"Figures {', '.join(numbers)}": set(names) for numbers, (_, names) in thesis.GROUPS.items()} == figures


def test_the_thesis_figures_show_the_start_and_the_rest(rng):
    labels = ("polynomial_p4", "softmax")
    records = [train(label, 50, seed, rng, evaluations=30) for label in labels for seed in (0, 1)]
    records += [train("polynomial_p4", 16, 0, rng)]
    figure = thesis.figure(tidy(records))
    assert [axes.get_title().partition(":")[0] for axes in figure.axes] == [f"Figure 5.{i}" for i in (1, 2, 7, 8)]
    first, rest = (marked(axes, "median")[0] for axes in figure.axes[:2])
    assert first.get_xdata().tolist() == list(range(10, 1001, 10))
    assert rest.get_xdata().tolist() == list(range(1010, 3001, 10))
    losses = records[0].measurements["curve"]["train_loss"]
    assert first.get_ydata()[4] == pytest.approx(np.mean(losses[40:50]))
    assert figure.axes[0].get_yscale() == "linear" and figure.axes[1].get_yscale() == "log"
    assert "Other lengths and settings are left out (1)." in caption(figure)
    degrees = [changed(records[0], {"label": f"polynomial_p{p}"}, cell_id=str(p) * 64) for p in (2, 4, 8)]
    handles = thesis.figure(tidy(degrees)).axes[1].get_legend().legend_handles
    assert len({handle.get_marker() for handle in handles}) == len({handle.get_color() for handle in handles}) == 3
    with pytest.raises(MissingRecords, match="mechanism of the thesis"):
        thesis.figure(tidy([train("performer", 16, 0, rng)]))


def front(axes):
    (line,) = marked(axes, "front")
    return line.get_xydata().tolist()


def test_times_of_training_beside_others_are_nowhere(rng):
    alone = [record for record in language_models(rng) if record.config["seq_len"] == 64]
    busy = {"during": {"seconds": 10.0, "others_s": 0.6}}
    beside = [changed(one, host_state={**one.host_state, **busy}) for one in alone]
    assert quality_cost.figure(tidy(alone)).axes and trained.trained(tidy(alone))["steps/s"].notna().all()
    with pytest.raises(MissingRecords, match="cores that nothing else used"):
        quality_cost.figure(tidy(beside))
    assert trained.trained(tidy(beside))["steps/s"].isna().all()


def test_quality_stands_over_the_measured_time_of_the_same_step(rng, monkeypatch):
    records = [record for record in language_models(rng) if record.config["seq_len"] == 64]
    measured = {label: train_step(label, 64, rng, tokens=64 * 64) for label in ("softmax", "performer")}
    other = train_step("softmax", 64, rng, tokens=64 * 32)
    frame = tidy([*records, *measured.values(), other])
    (panel,) = quality_cost.figure(frame).axes
    assert not marked(panel, "front"), "without controls nobody is ranked"
    diagnosis = Diagnosis(True, "planted", None, None)
    monkeypatch.setattr(controls, "diagnoses", lambda data: {key: diagnosis for key, _ in panels(data)})
    (panel,) = quality_cost.figure(frame).axes
    assert panel.get_xlabel() == quality_cost.MEASURED
    times = {label: 1e-6 * np.median(m.measurements["parts"]["step"]["samples"]) for label, m in measured.items()}
    # Softmax is faster at this length and better: nothing else is on the front.
    np.testing.assert_allclose(front(panel), [(times["softmax"], 1.1 * 1.4)])
    assert sorted(words(panel)) == ["performer", "softmax"]
    # Not for all of them: the times while training, and no mixture.
    (panel,) = quality_cost.figure(tidy([*records, measured["softmax"], other])).axes
    assert panel.get_xlabel() == quality_cost.TRAINING
    seconds = [np.median(r.measurements["seconds"]) for r in records if r.config["label"] == "softmax"]
    np.testing.assert_allclose(front(panel), [(1e3 * np.median(seconds), 1.1 * 1.4)])


def test_times_that_are_hours_apart_say_so_and_have_no_front(rng, monkeypatch):
    diagnosis = Diagnosis(True, "planted", None, None)
    monkeypatch.setattr(controls, "diagnoses", lambda data: {key: diagnosis for key, _ in panels(data)})
    records = [record for record in language_models(rng) if record.config["seq_len"] == 64]
    for hour, said in ((2, "2 hours"), (4, "4 hours"), (62, "2.6 days")):
        later = f"2026-01-{1 + hour // 24:02}T{hour % 24:02}:00:00+00:00"
        steps = [train_step(label, 64, rng, tokens=64 * 64) for label in ("softmax", "performer")]
        late_step, late_run = changed(steps[1], ended=later), changed(records[0], ended=later)
        for times in ([*records, steps[0], late_step], [*records[1:], late_run]):
            figure = quality_cost.figure(tidy(times))
            (panel,) = figure.axes
            assert len(marked(panel, "front")) == (hour < MOST_HOURS)
            assert f"Between the first and the last cell of a panel: {said} (language modelling, " in caption(figure)


def test_names_beside_points_cover_neither_each_other_nor_a_point():
    """Ten points in a tenth of the panel, with names half as wide as it."""
    drawn, (axes,) = layout.grid(1)
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.uniform(0.45, 0.55, (10, 2)), columns=["x", "value"])
    rows = rows.assign(x_low=np.nan, x_high=np.nan, low=np.nan, high=np.nan)
    axes.plot(rows["x"], rows["value"], "o", markersize=3)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    marks.beside(axes, rows, "x", [f"polysketch_random_{i}" for i in range(10)])
    drawn.draw_without_rendering()
    boxes = [text.get_window_extent() if not text.arrow_patch else Text.get_window_extent(text) for text in axes.texts]
    points = axes.transData.transform(rows[["x", "value"]])
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i])
        assert not any(box.contains(*point) for point in points)


def test_a_name_nearer_to_another_point_than_to_its_own_is_joined_to_its_own(rng):
    """And one that is far from its own; others stand beside it without a line."""
    seen = set()
    for _ in range(20):
        _, (axes,) = layout.grid(1)
        size = np.array([72 * 0.75 * layout.picture(axes).panel_width, 72 * 0.7 * layout.PANEL[1]])
        axes.set(xlim=(0, 1), ylim=(0, 1))
        points = rng.uniform(0.4, 0.6, (8, 2))
        rows = pd.DataFrame({"x": points[:, 0], "value": points[:, 1]})
        marks.beside(axes, rows.assign(x_low=np.nan, x_high=np.nan, low=np.nan, high=np.nan), "x", ["name"] * 8)
        for number, text in enumerate(axes.texts):
            low = points[number] * size + text.xyann
            high = np.add(low, (marks._LETTER * layout.SMALLEST * 4, 1.25 * layout.SMALLEST))
            gaps = np.hypot(*(np.clip(points * size, low, high) - points * size).T)
            is_clear = gaps[number] <= min(8, gaps.min() + 0.02)
            assert (text.arrow_patch is None) == is_clear
            seen.add((is_clear, bool(gaps[number] <= 8)))
    assert seen == {(True, True), (False, True), (False, False)}


def test_names_of_a_panel_have_the_settings_that_tell_them_apart():
    names = pd.Series(["a block_size=4", "b block_size=4", "b block_size=8"])
    assert quality_cost.short(names) == ["a", "b block_size=4", "b block_size=8"]


def test_steps_per_second_and_those_of_the_paper(rng):
    records = [train_step("softmax", n, rng, "oom" if n > 1024 else "ok") for n in (512, 1024, 2048)]
    records += [train_step("polynomial_p4", n, rng, layers=3) for n in (512, 1024)]
    frame = tidy(records)
    figure = scaling.steps_per_second(frame)
    (panel,) = figure.axes
    rows = frame[(frame["metric"] == "steps_per_second") & (frame["mechanism"] == "softmax")]
    np.testing.assert_allclose([point[1:] for point in bars(panel)["#000000"]], rows[["value", "low", "high"]])
    assert words(panel) == ["OOM"] and "polynomial_p4 layers=3" in figure.legends[0].texts[0].get_text()
    table = scaling.steps_table(frame).set_index(["attention", "n"])
    assert table.loc[("softmax", 512), "GPT-2 small (ICML)"] == 6.0
    assert table.loc[("polynomial_p4", 1024), "GPT-2 small (ICML)"] == 4.74
    assert table.loc[("softmax", 2048), "status"] == "oom" and table.loc[("softmax", 2048), "GPT-2 small (v1)"] == 4.3
    with pytest.raises(MissingRecords, match="train_step"):
        scaling.steps_per_second(tidy([train_step("softmax", 512, rng, "oom")]))
    # Those of interleaved rounds have a panel of their own.
    rounds = frame.assign(bench="compare_train_step", cell_id=frame["cell_id"] + "0")
    rounds = rounds[rounds["mechanism"] == "softmax"]
    both = scaling.steps_per_second(pd.concat([frame, rounds], ignore_index=True))
    assert [axes.get_title() for axes in both.axes] == ["training, each by itself", "training, in interleaved rounds"]
    assert "Not measured in interleaved rounds: polynomial_p4 layers=3." in caption(both)
    assert "Not measured each by itself" not in caption(both)


def test_tables_stand_beside_the_papers_numbers(rng):
    records = [train("softmax", 512, seed, rng, final=1.4 * (1 + seed / 10), **LM) for seed in range(3)]
    table = trained.perplexities(tidy(records)).set_index("n")
    row = table.loc[512]
    numbers = row[["perplexity", "PG-19 (ICML)", "Wiki-40B (ICML)"]].astype(float).tolist()
    assert numbers == pytest.approx([np.exp(1.54), 13.57, 15.82])
    assert (row["seeds"], row["failed"], row["learning rate"], row["layers"]) == (3, 0, 1e-3, 2)
    assert row["unigram"] == pytest.approx(np.exp(2.9)) and row["bigram"] == pytest.approx(np.exp(2.2 + 1 / 512))
    assert table.loc[32768, "PG-19 (ICML)"] == 11.55 and pd.isna(table.loc[32768, "perplexity"])

    solved = trained.solved(tidy([train("softmax", 127, 0, rng, task="induction_heads")]))
    assert solved[["n", "ICML (%)"]].to_numpy().tolist() == [[127, "> 99.95"], [255, "around 1/16"]]

    table = trained.thesis(tidy([train("polynomial_p4", 50, seed, rng) for seed in range(2)]))
    assert table[["n", "seeds", "thesis"]].to_numpy().tolist() == [[50, 2, 0.01990822]]


def test_the_median_of_the_seeds_is_the_thick_line_and_a_row_of_the_table(rng):
    records = [train("softmax", 16, seed, rng, final=final) for seed, final in enumerate((1e-2, 1e-4, 1e-6))]
    records += [train("performer", 1024, 0, rng, final=1e-1)]
    figure = learning.figure(tidy(records))
    assert [axis.get_title() for axis in figure.axes][::2] == ["reversal, n = 16", "reversal, n = 1,024"]
    (line,) = marked(figure.axes[0], "median")
    assert line.get_ydata()[-1] == pytest.approx(1e-4) and line.get_xdata().tolist() == list(range(100, 900, 100))
    thin = sorted(line.get_ydata()[-1] for line in marked(figure.axes[0], "seed"))
    assert thin == pytest.approx([1e-6, 1e-4, 1e-2])
    table = trained.trained(tidy(records)).set_index("attention")
    assert table["seeds"].to_dict() == {"softmax": 3, "performer": 1}
    row = table.loc["softmax"]
    spread = (row["loss (nats)"], row["lowest loss (nats)"], row["highest loss (nats)"])
    assert spread == pytest.approx((1e-4, 1e-6, 1e-2))
    assert row["right (%)"] == pytest.approx(100 * np.exp(-1e-4) ** 4)


def test_without_what_was_learned_it_is_said(rng):
    others = tidy([latency("softmax", 512, rng), train("softmax", 16, 0, rng, "oom")])
    for make in (learning.figure, trained.trained):
        with pytest.raises(MissingRecords, match="ok record of bench=train"):
            make(others)
