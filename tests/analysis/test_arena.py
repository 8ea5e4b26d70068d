"""Long Range Arena: blind tasks rank nobody, controls without attention are rows, and options are paired."""

import dataclasses
import logging
import re
from pathlib import Path

import numpy as np
import pytest
import synthetic_records as synthetic
import yaml
from drawn import caption, curves, legend, panels
from scipy import stats
from synthetic_arena import ACCURACIES, SKEINFORMER, arena, cell, cells
from synthetic_quality import runs
from test_diagnosis import only

from analysis.controls import BLIND, DIAGNOSTIC, compared, diagnoses, error_rates
from analysis.frame import tidy
from analysis.plots import learning, lra, scaling
from analysis.published import published
from analysis.registry import FIGURES, TABLES
from analysis.selection import MissingRecords
from analysis.tables.lra import TASKS
from analysis.tables.people import readable
from analysis.training import trained_cells

CONF = Path(__file__).parents[2] / "conf" / "task"


def test_a_task_is_blind_where_a_control_may_be_within_two_points_of_softmax():
    found = only(cells(ACCURACIES | {"local": 0.76, "bag_of_tokens": 0.76, "convolution": 0.76}))
    assert found.word == DIAGNOSTIC and "points, 95 % interval" in found.sentence
    for control in ("local", "bag_of_tokens", "convolution"):
        found = only(cells(ACCURACIES | {control: 0.79}))
        said = rf"flash, 80\.0 % right against {control}, [78]\d\.\d % right: \+[01]\.\d points"
        assert found.word == BLIND and re.match(said, found.sentence)


def test_losses_do_not_judge_classes_and_accuracies_no_text():
    data, _ = trained_cells(tidy(cells()))
    assert set(error_rates(data)) == set(ACCURACIES)
    data, _ = trained_cells(tidy(runs()))
    assert error_rates(data) == {} and [one.word for one in diagnoses(data).values()] == [DIAGNOSTIC]


def test_a_control_without_attention_is_a_row_beside_mechanisms():
    data, _ = trained_cells(tidy(cells()))
    by_series = data.drop_duplicates("cell_id").groupby("series")
    assert by_series.size().to_dict() == dict.fromkeys(ACCURACIES, 5)
    is_control = by_series["control"].all()
    assert set(is_control.index[is_control]) == {"local", "bag_of_tokens", "convolution"}
    assert set(data["layers"]) == {2}
    assert "bag_of_tokens" in legend(learning.figure(tidy(cells(seeds=1))))


def test_controls_without_attention_of_different_models_are_different_series():
    """Seed by seed the newest of either model would be one control that nobody trained."""
    other = [cell("bag_of_tokens", seed, 0.7, model={"dropout": 0.5}) for seed in range(5)]
    data, _ = trained_cells(tidy(cells() + other))
    bags = data[data["attention"] == "bag_of_tokens"]
    seeds = bags.groupby("series")["seed"].nunique().to_dict()
    assert seeds == {"bag_of_tokens dropout=0.1": 5, "bag_of_tokens dropout=0.5": 5}
    assert bags["control"].all() and data["series"].nunique() == len(ACCURACIES) + 1


def test_a_record_from_before_the_options_is_as_one_that_was_trained_without_them():
    usual = {"checkpoint": "last", "epsilon": 1e-8, "optimizer": "adamw"}
    new = cell("flash", 0, 0.7, training=usual)
    old = cell("flash", 1, 0.7, training=usual)
    for key in ("checkpoint", "order", "pretrain_steps", "epsilon", "patience", "optimizer"):
        del old.config["training"][key]
    assert tidy([old, new])["settings"].nunique() == 1
    assert tidy([old, cell("flash", 0, 0.7)])["settings"].nunique() == 2


def test_black_pixels_as_padding_are_an_option_and_no_other_task():
    usual = [*cells({name: 0.7 for name in ACCURACIES}, task="image", n=256, mask="all")]
    option = cells({"flash": 0.9}, task="image", n=256, mask="nonzero")
    data, _ = trained_cells(tidy([*usual, *option]))
    assert set(data["kind"]) == {"image"} and data.loc[data["series"] == "flash", "cell_id"].nunique() == 5
    flash = data[(data["series"] == "flash") & (data["metric"] == "accuracy")]
    assert flash["value"].mean() == pytest.approx(0.7, abs=0.01)


def test_another_rate_is_no_option_of_the_protocol():
    """What was trained at two rates is compared within each."""
    usual = [*cells({"flash": 0.7, "local": 0.6}), *cells({"flash": 0.9}, training={"learning_rate": 0.01})]
    option = cells({"flash": 0.7}, training={"checkpoint": "last"})
    (row,) = TABLES["lra_protocols"](tidy([*usual, *option])).to_dict("records")
    assert abs(row["difference (points)"]) < 2


def test_another_model_is_no_option_of_the_protocol():
    """Deeper models with another protocol are compared with none of the usual depth; a control has its own model."""
    other = {"training": {"checkpoint": "last"}}
    usual = cells({"flash": 0.7, "local": 0.6, "bag_of_tokens": 0.5, "convolution": 0.5, SKEINFORMER: 0.6})
    option = cells({"flash": 0.7, "bag_of_tokens": 0.6}, **other)
    deeper = cells({"flash": 0.9}, model={"layers": 6}, **other)
    more_heads = cells({"local": 0.9}, num_heads=4, **other)
    gated = cells({"flash": 0.9}, model={"gated": True}, **other)  # a setting that the others do not have
    table = TABLES["lra_protocols"](tidy([*usual, *option, *deeper, *more_heads, *gated])).set_index("attention")
    assert set(table.index) == {"flash model.gated=None model.layers=2", "bag_of_tokens"}
    assert abs(table.loc["flash model.gated=None model.layers=2", "difference (points)"]) < 2
    bag = table.loc["bag_of_tokens"]
    assert bag["ahead of softmax (points)"] == pytest.approx(-20, abs=1)
    assert bag["with it (points)"] == pytest.approx(-10, abs=1)


def test_units_without_examples_at_the_end_change_no_accuracy():
    """A seed may have fewer units: those whose examples it did not draw."""
    records = cells({"flash": 0.8, "local": 0.7})
    right = records[0].measurements["test"]["accuracy_by_unit"]
    records[0].measurements["test"]["accuracy_by_unit"] = right[:20]
    data, _ = trained_cells(tidy(records))
    found = error_rates(data)["flash"]
    assert [len(each) for each in found.values()] == [32] * 5
    assert np.nanmean(found[0]) == pytest.approx(1 - np.mean(right[:20]))
    one = compared(found, error_rates(data)["local"])
    assert one.units == 32 and np.isfinite(one.value)
    for record in records:
        test = record.measurements["test"]
        test["accuracy_by_unit"] = [*test["accuracy_by_unit"][:20], *[None] * 12]
    rates = error_rates(trained_cells(tidy(records))[0])
    assert compared(rates["flash"], rates["local"]).units == 20, "nothing is known of the others"


# --- beside the paper


def test_people_read_our_accuracies_and_the_papers_each_below_the_data_that_they_are_of():
    several = [*cells(seeds=2, n=4096), *cells(seeds=2, n=256), *cells(seeds=2, task="listops", n=128)]
    text = readable("skeinformer_table1", TABLES["skeinformer_table1"](tidy(of("mine (stand-in)", several))))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]
    header, _, *body = lines
    column = {name: header.index(f"{name}: right (%)") for name in TASKS}
    ours, papers = ({row[1]: row for row in body if row[0] == whose} for whose in ("here", "Skeinformer"))
    assert ours["(data)"][column["text"]] == "mine (stand-in), n = 256 or mine (stand-in), n = 4096"
    assert ours["(data)"][column["listops"]] == "mine (stand-in), n = 128" and ours["(data)"][column["image"]] == ""
    assert ours["flash"][column["listops"]].startswith("80 [") and {"flash, n = 256", "flash, n = 4096"} <= ours.keys()
    assert papers["bigbird"][column["image"]] == "35" and papers["(data)"][column["image"]].endswith("n = 1024")


def of(source, records):
    """Records whose data have a source."""
    for one in records:
        one.measurements["source"] = source
    return records


def test_every_row_of_table_1_stands_beside_ours_and_only_what_is_diagnostic_is_ranked():
    blind = {"flash": 0.5, SKEINFORMER: 0.52, "bag_of_tokens": 0.5}
    records = of("stanfordnlp/imdb", cells(n=4096)) + of("generated", cells(blind, task="listops", n=2048))
    table = TABLES["skeinformer_table1"](tidy(records))
    ours = table[table["seeds"].notna()].set_index(["task", "attention"])
    assert ours["task is"].groupby("task").unique().map(list).to_dict() == {"text": [DIAGNOSTIC], "listops": [BLIND]}
    assert ours.loc["listops", "rank"].isna().all()
    assert ours.loc["text", "rank"].sort_values().index.tolist() == sorted(ACCURACIES, key=ACCURACIES.get)[::-1]
    row = ours.loc[("text", "flash")]
    assert row["Skeinformer (%)"] == 59.44 and row["Skeinformer, minutes per 1,000 steps"] == 39.49
    assert ours.loc[("text", SKEINFORMER), "Skeinformer (%)"] == 62.47
    assert np.isnan(ours.loc[("text", "bag_of_tokens"), "Skeinformer (%)"])
    missing = table[table["seeds"].isna()]
    assert len(missing) == 16 * len(TASKS) - 2 * 2
    assert missing.set_index(["task", "attention"]).loc[("image", "performer"), "Skeinformer (%)"] == 37.40


@pytest.mark.parametrize(("source", "n"), [("testaments of kjv (stand-in for IMDB)", 4096), ("stanfordnlp/imdb", 256)])
def test_other_data_and_other_lengths_share_no_row_with_the_papers_numbers(source, n):
    table = TABLES["skeinformer_table1"](tidy(of(source, cells(seeds=2, n=n))))
    is_ours, papers = table["seeds"].notna(), table[["Skeinformer (%)", "Skeinformer, minutes per 1,000 steps"]]
    assert is_ours.sum() == len(ACCURACIES) and papers[is_ours].isna().all(axis=None)
    assert papers[~is_ours].notna().all(axis=None) and len(papers[~is_ours]) == 16 * len(TASKS)
    assert set(table["source"][is_ours]) == {source} and set(table["source"][~is_ours]) == {"Skeinformer's data"}
    theirs = table[~is_ours].groupby("task")["n"].unique().map(list).to_dict()
    written = {task: yaml.safe_load((CONF / f"{task}.yaml").read_text())["seq_len"] for task in TASKS}
    assert theirs == {task: [length] for task, length in written.items()}


def test_accuracies_and_times_are_those_of_the_records():
    frame = tidy([*cells({"flash": 0.8, "local": 0.7}), cell("flash", 5, 0.8, busy=0.5)])
    row = TABLES["skeinformer_table1"](frame).set_index("attention").loc["flash"]
    right = np.stack(frame[(frame["metric"] == "accuracy") & (frame["attention"] == "flash")]["raw"])
    assert right.shape == (6, 32) and row["accuracy (%)"] == pytest.approx(100 * right.mean())
    assert row["low"] < row["accuracy (%)"] < row["high"]
    assert row["minutes per 1,000 steps"] == pytest.approx(1000 / 60)
    assert row["minutes in total"] == pytest.approx(40 / 60)
    alone = TABLES["skeinformer_table1"](tidy([cell("flash", 0, 0.8, busy=0.5)])).set_index("attention").loc["flash"]
    assert np.isnan(alone["low"]) and np.isnan(alone["minutes in total"]) and alone["seeds"] == 1


def test_table_1_is_the_papers():
    rows = published("accuracy")
    assert len(rows) == 16 * 5 and set(rows["at"].str.lower()) == set(TASKS)
    assert set(rows["attention"]) == set(published("minutes_per_1000_steps")["attention"])
    averages = rows.assign(printed=rows["printed"].astype(float)).groupby("attention")["printed"].mean()
    printed = {"softmax_dropout": 57.50, "softmax": 57.38, "v_mean": 53.98, "bigbird": 57.45, "nystromformer": 56.60}
    printed |= {"reformer": 57.02, "linformer_frozen": 53.39, "linformer_unreduced": 56.08, "skeinformer": 58.08}
    printed |= {"informer_paper_mapping": 55.35, "informer_padding_mask": 55.57, "skeinformer_uniform_sampling": 55.28}
    printed |= {"skeinformer_no_row_normalization": 56.09, "skeinformer_simple_row_normalization": 56.54}
    printed |= {"skeinformer_no_pilot_reuse": 57.83}
    for name, average in printed.items():
        assert averages[name] == pytest.approx(average, abs=0.0061), name


# --- protocols


def test_an_option_is_compared_with_the_usual_protocol_by_seed_and_group():
    both = {"flash": 0.8, SKEINFORMER: 0.78}
    last = cells({name: accuracy - 0.05 for name, accuracy in both.items()}, training={"checkpoint": "last"})
    masked = cells({"flash": 0.8}, mask="nonzero")
    records = [*cells(mask="all"), *last, *masked]
    for one in last:
        one.config["task"]["mask"] = "all"
    table = TABLES["lra_protocols"](tidy(records)).set_index(["option", "attention"])
    rows = {("checkpoint=last", "flash"), ("checkpoint=last", SKEINFORMER), ("mask=nonzero", "flash")}
    assert set(table.index) == rows
    row = table.loc[("checkpoint=last", "flash")]
    assert row["verdict"] == "worse" and row["low"] < row["difference (points)"] < row["high"] < 0
    assert row["with it (%)"] - row["usual (%)"] == pytest.approx(row["difference (points)"])
    assert row["difference (points)"] == pytest.approx(-5, abs=0.3) and np.isnan(row["ahead of softmax (points)"])
    skein = table.loc[("checkpoint=last", SKEINFORMER)]
    assert skein["ahead of softmax (points)"] == pytest.approx(-2, abs=0.5)
    assert table.loc[("mask=nonzero", "flash"), "verdict"] == "as good as"


def test_looks_are_an_option_where_they_decide_and_are_not_named_beside_a_protocol_without():
    often, seldom = ({"checkpoint": "best", "evaluate_every": every} for every in (10, 800))
    records = [*cells({"flash": 0.9}, training=often), *cells({"flash": 0.5}, 3, training=seldom)]
    table = TABLES["lra_protocols"](tidy([*records, *cells({"flash": 0.7}, 3, training={"checkpoint": "last"})]))
    found = table.set_index("option")["difference (points)"].to_dict()
    assert found == {"evaluate_every=800": pytest.approx(-40, abs=1), "checkpoint=last": pytest.approx(-20, abs=1)}


def test_differences_are_those_of_a_paired_t_test_where_only_seeds_differ():
    """Of two groups of examples that are alike, so that all chance is of the seeds."""
    usual, other = cells({"flash": 0.8}, 6), cells({"flash": 0.8}, 6, training={"schedule": "linear"})
    rng = np.random.default_rng(3)
    for one in (*usual, *other):
        one.measurements["test"]["accuracy_by_unit"] = [float(rng.uniform(0.6, 0.9))] * 32
    (row,) = TABLES["lra_protocols"](tidy([*usual, *other])).to_dict("records")
    values = [[one.measurements["test"]["accuracy_by_unit"][0] for one in of] for of in (other, usual)]
    low, high = stats.ttest_rel(*values).confidence_interval()
    signs = -1 if row["option"] == "schedule=one_cycle" else 1  # both protocols have as many runs
    assert sorted([signs * row["low"], signs * row["high"]]) == pytest.approx([100 * low, 100 * high])


def test_without_records_it_says_what_is_missing():
    frame = tidy(runs(seeds=1))
    for name in ("skeinformer_table1", "lra_protocols", "skeinformer_figure2", "skeinformer_figure3"):
        with pytest.raises(MissingRecords, match=r"^needs an ok record of bench=train"):
            (FIGURES | TABLES)[name](frame)


# --- figures

LISTOPS = {"task": "listops", "n": 128, "num_heads": 4, "batch_size": 64}


def sized(name, size, seed=0):
    return cell(f"{name} num_features={size}", seed, 0.5, given={"name": name, "num_features": size}, **LISTOPS)


def elsewhere(one):
    """The run on another machine."""
    return dataclasses.replace(one, machine={**one.machine, "cpu_model": "Other"}, cell_id=one.record_id * 2)


def test_figure_2_has_losses_over_quiet_seconds():
    figure = lra.figure2(tidy([*cells(seeds=3), cell("flash", 3, 0.8, busy=0.9)]))
    (panel,) = panels(figure).values()
    assert panel.get_xlabel() == "training time (s)"
    lines = {line.get_label(): line for line in panel.lines if line.get_gid() == "median"}
    assert set(lines) == set(ACCURACIES)
    np.testing.assert_allclose(lines["flash"].get_xdata(), np.arange(1, 5) * 10 * 1.0)
    np.testing.assert_allclose(lines["flash"].get_ydata(), 0.7 - 0.08 * np.arange(1, 5))
    assert caption(figure).startswith("Not diagnostic here") and "Without a line" not in caption(figure)
    others = {name: accuracy for name, accuracy in ACCURACIES.items() if name != "flash"}
    lacking = lra.figure2(tidy([*cells(others, seeds=3), *(cell("flash", seed, 0.8, busy=0.9) for seed in range(3))]))
    assert "Without a line, since no seed had a core for itself: text, n = 256 (flash)." in caption(lacking)
    with pytest.raises(MissingRecords, match="on cores that nothing else used"):
        lra.figure2(tidy([cell("flash", 0, 0.8, busy=0.9)]))
    resumed = cell("flash", 0, 0.8)
    resumed.measurements["resumed_from"] = 20
    with pytest.raises(MissingRecords, match="on cores that nothing else used"):
        lra.figure2(tidy([resumed]))


def test_an_axis_of_seconds_is_of_one_machine(caplog):
    caplog.set_level(logging.INFO, "analysis")
    others = {name: accuracy for name, accuracy in ACCURACIES.items() if name != "local"}
    slow = cell("flash", 3, 0.8)
    slow.measurements["seconds"] = [9.0] * 40
    moved = [elsewhere(slow), *(elsewhere(cell("local", seed, 0.7)) for seed in range(3))]
    figure = lra.figure2(tidy([*cells(others, seeds=3), *moved]))
    (panel,) = panels(figure).values()
    lines = {line.get_label(): line for line in panel.lines if line.get_gid() == "median"}
    assert set(lines) == set(others)
    np.testing.assert_allclose(lines["flash"].get_xdata(), np.arange(1, 5) * 10 * 1.0)
    assert "Without a line, since timed on another machine: text, n = 256 (local)." in caption(figure)
    assert "left out the times of 4 trainings on Other, since most ran on another machine" in caplog.text


def test_figure_3_has_rates_by_batch_and_sizes():
    figure = lra.figure3(tidy(arena(2)))
    assert "inputs; " not in caption(figure)
    right, time, size = figure.axes
    assert [axes.get_xlabel() for axes in (right, time, size)] == ["learning rate"] * 2 + ["number of features d"]
    rates = sorted(tuple(x) for x, _, _ in curves(right).values())
    assert rates == [(0.001, 0.003), (0.001, 0.003)], "batches of 8 and 32, not the usual one"
    ((x, y, _),) = curves(size).values()
    assert list(x) == [8, 32, 128] and y == pytest.approx([70.8, 78, 82.8], abs=1)
    one_each = [sized(name, 32) for name in ("skeinformer", "performer", "informer", "linformer")]
    ((x, _, _),) = curves(lra.figure3(tidy([*arena(2), *one_each])).axes[2]).values()
    assert list(x) == [8, 32, 128], "a task with many mechanisms of one size each says nothing about sizes"


def test_figure_3_mixes_no_machines_and_shapes():
    one = [*cells({SKEINFORMER: 0.7}, 2), *arena(2)]
    other = cells({SKEINFORMER: 0.5}, 2, training={"learning_rate": 0.03}, batch_size=8)
    four = cells({SKEINFORMER: 0.5}, 2, training={"learning_rate": 0.1}, batch_size=8, num_heads=4)
    figure = lra.figure3(tidy([*one, *map(elsewhere, other), *four]))
    rates = sorted(tuple(x) for x, _, _ in curves(figure.axes[0]).values())
    assert rates == [(0.001, 0.003), (0.001, 0.003)] and "Other" not in caption(figure)


# --- captions of two tasks


@pytest.mark.parametrize("ending", ["error", "busy"])
def test_a_caption_names_the_conditions_of_what_is_drawn_only(ending):
    listops = cells(**LISTOPS, seeds=2, busy=0.9)
    if ending == "error":
        listops = [dataclasses.replace(one, status="error", measurements={}) for one in listops]
    figures = {"busy": [lra.figure2], "error": [lra.figure2, learning.figure]}[ending]
    for figure in (make(tidy([*cells(seeds=2), *listops])) for make in figures):
        assert all(title.startswith("text, n = 256") for title in panels(figure))
        assert "2 heads x 32, batch size 16, not causal, text inputs." in caption(figure)
        assert "iagnostic: all" not in caption(figure) and "listops, n = 128 (" not in caption(figure).split("Runs")[0]


def test_panels_of_two_tasks_have_their_own_conditions_in_the_caption():
    sizes = [sized("skeinformer", size, seed) for size in (8, 32, 64, 128) for seed in range(2)]
    said = caption(lra.figure3(tidy([*arena(2), *sizes])))
    assert "skeinformer, text, n = 256: float32, 2 heads x 32, batch size 8, 32, not causal, text inputs; " in said
    assert "; listops, n = 128: float32, 4 heads x 32, batch size 64, not causal, listops inputs." in said
    rng = np.random.default_rng(0)
    steps = [synthetic.train_step("softmax", n, rng, task="reversal") for n in (256, 512)]
    steps += [synthetic.compare_train_step(["softmax", "performer"], n, rng) for n in (256, 512)]
    said = caption(scaling.steps_per_second(tidy(steps)))
    assert re.search(r"each by itself: [^;]* not causal, reversal inputs; .*rounds: [^;]* causal, language_mod", said)
