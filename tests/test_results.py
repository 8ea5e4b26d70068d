"""README, figures and tables are made from the committed records, which name the machine that they come from."""

import functools
import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from analysis import __main__ as cli
from analysis.controls import comparisons
from analysis.paired import UNDECIDED, WORSE
from analysis.plots.by_distance import by_kind
from analysis.training import panels, trained_cells, with_settings
from bench.plan.compose import expand
from bench.plan.conf import CONF
from bench.records.store import Store
from tools.pages import language, readings, readme
from tools.pages.gallery import OF_TASKS

RESULTS = Path(__file__).parents[1] / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("*/records"))
# Records of a single table in a document have no figures.
DRAWN = sorted(path.parent for path in RESULTS.glob("*/figures"))


@pytest.fixture(scope="module", autouse=True)
def read_once():
    """All speak of the same records, which are read once."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        read = functools.cache(readme.load)
        monkeypatch.setattr(readme, "load", read)
        monkeypatch.setattr(cli, "load", lambda folder, cell_ids: read(folder))
        yield


def rounded(table):
    """The text without digits that another processor may round otherwise."""
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.1f}", table)


def names(folder, suffix):
    return {path.stem for path in folder.glob(f"*.{suffix}")}


def assert_same_numbers(folder, committed, again):
    assert names(folder, "csv") == names(committed, "csv") != set(), again
    for path in folder.glob("*.csv"):
        both = (pd.read_csv(each / path.name) for each in (folder, committed))
        pd.testing.assert_frame_equal(*both, rtol=1e-6, obj=f"{path.stem}: {again}")


@pytest.mark.parametrize("folder", DRAWN, ids=lambda folder: folder.name)
def test_figures_and_tables_show_the_numbers_of_the_records(folder, tmp_path):
    figures, tables = tmp_path / "figures", tmp_path / "tables"
    cli.main(["figures", "--results", str(folder), "--out", str(figures), "--formats", "csv"])
    again = f"draw them again with `python -m analysis figures --results {folder} --formats png,csv`"
    assert_same_numbers(figures, folder / "figures", again)
    assert names(figures, "csv") == names(folder / "figures", "png"), again
    cli.main(["tables", "--results", str(folder), "--out", str(tables)])
    made, committed = (
        {path.name: rounded(path.read_text()) for path in each.glob("*.md")} for each in (tables, folder / "tables")
    )
    again = f"write them again with `make tables RESULTS={folder}`"
    assert made and made == committed, again
    assert_same_numbers(tables, folder / "tables", again)


def test_what_the_readme_says_is_made_from_the_records_whatever_stands_there():
    text = readme.PAGE.read_text()
    begin, end = text.index("<!-- answer -->"), text.index("<!-- /answer -->")
    made = readme.page(text[:begin] + "<!-- answer -->\nold\n" + text[end:])
    assert made == text, "write it again with `python -m tools.pages.readme`"
    _, below = text.split("\n## Try it\n")
    assert len(below.splitlines()) <= 150, "it is short below its first screen"


def test_how_much_losses_still_move_is_what_docs_quality_says():
    rows = trained_cells(readme.load(readme.QUALITY), ["language_modelling"])[0].query("metric == 'validation_loss'")
    means = {key: np.stack([*own]).mean(0) for key, own in rows.groupby(["attention", "seq_len"])["raw"]}
    page = " ".join((RESULTS.parent / "docs" / "quality.md").read_text().split())
    fall = [f"{before - last:.2f}" for *_, before, last in (means["flash", 512], means["local_sliding", 512])]
    behind = [[f"{one:.3f}" for one in means["linear", n] - means["identity", n]] for n in (512, 1024)]
    frame = with_settings(readme.load(readme.QUALITY), {"rate": ("training", "learning_rate")})
    longer = frame.query("inputs == 'language_modelling' and metric == 'validation_loss' and seq_len == 1024")
    curves = longer[longer["rate"] == 0.03].groupby("attention")["raw"].agg(lambda own: np.stack([*own]).mean(0))
    behind.append([f"{one:.3f}" for one in curves["linear"] - means["identity", 1024]])
    for numbers in (fall, *behind):
        assert f"{', '.join(numbers[:-1])} and {numbers[-1]}" in page
    shorter = frame.query("inputs == 'language_modelling' and metric == 'validation_loss' and seq_len == 512")
    ends = {key: np.stack([*own])[:, -2:].mean(0) for key, own in shorter.groupby(["attention", "rate"])["raw"]}
    falls = {(name.split()[0], rate): f"{before - last:.2f}" for (name, rate), (before, last) in ends.items()}
    hybrid, random, learned = (f"polysketch_{kind}" for kind in ("learned_local_r16", "random_r32", "learned_r32"))
    usual = [falls[name, 0.01] for name in ("performer", random, hybrid, learned, "polynomial_p4")]
    said = "Performer {}, the random sketch {}, the hybrid {}, the learned sketch {} and `polynomial_p4` {}."
    assert said.format(*usual) in page
    higher = sorted(falls[name, 0.03] for name in ("polynomial_p4", random, hybrid))
    said = f"at 0.03 it is {higher[0]} to {higher[-1]} of `polynomial_p4`, the random sketch and the hybrid, but "
    said += f"{falls['local_polynomial_norms', 0.03]} of the hybrid's block alone, too"
    assert f"{said} (softmax {falls['flash', 0.03]})" in page
    for name in ("polynomial_p4", "polysketch_random_r32"):
        before, after = (means[name, 512] - means["flash", 512])[-2:]
        assert f"from {before:.2f} to {after:.2f}" in page
    assert f"the random sketch comes {before - after:.2f} nats nearer to softmax" in " ".join(
        readme.PAGE.read_text().split()
    )


def test_how_much_of_the_lead_on_far_tokens_a_window_could_reach_is_what_the_pages_say():
    found = language.of_language(readme.load(readme.QUALITY))
    kinds = {n: by_kind(rows).query("series == 'flash'").set_index("token") for (_, n), rows in found.items()}
    far = {n: (own["value"] * own["share"]).filter(regex="_127$|_255$|_511$|_from_") for n, own in kinds.items()}
    short, long = (f"{100 * own['recalled_64_127'] / own.sum():.0f} %" for own in (far[512], far[1024]))
    pages = (" ".join(page.read_text().split()) for page in (readme.PAGE, RESULTS.parent / "docs" / "quality.md"))
    assert f"{short} of softmax's lead on far tokens" in next(pages)
    assert f"Of softmax's lead on far tokens {short} ({long} at n = 1,024)" in next(pages)


def test_how_the_lead_changes_with_the_context_is_what_the_pages_say():
    frames = (readme.load(folder) for folder in (readme.QUALITY, RESULTS / "more_tokens"))
    head, _, *rows = (
        [cell.strip() for cell in row.split("|")[1:-1]] for row in language.by_length(*frames).splitlines()
    )
    assert head[1:] == ["4 x 512, 2 x 1,024", "4 x 512, 4 x 1,024", "8 x 512, 4 x 1,024"]
    numbers = {
        row[0]: [[f"{float(one):.3f}" for one in re.findall(r"[+-][\d.]+", cell)] for cell in row[1:]] for row in rows
    }
    grows, _, apart, _, window, _ = ([[one.lstrip("-") for one in cell] for cell in row] for row in numbers.values())
    readme_page, page = (
        " ".join(each.read_text().split()) for each in (readme.PAGE, RESULTS.parent / "docs" / "quality.md")
    )
    _, sequences, tokens = grows
    assert f"by {tokens[0]} nats ({tokens[2]} to {tokens[1]}) if steps of both have 4,096 tokens" in page
    assert f"by {sequences[0]} ({sequences[2]} to {sequences[1]}) if they have four sequences" in page
    fewer = f"({grows[0][0]}, -{grows[0][2]} to {grows[0][1]})"
    said = f"with 4,096 tokens a step (by {tokens[0]} nats, {tokens[2]} to {tokens[1]}; with 2,048 undecided)"
    assert said in readme_page and f"With the 2,048 tokens of the tables above it is undecided {fewer}" in page
    assert f"trained at 512 it is {apart[2][0]} ({apart[2][2]} to {apart[2][1]})" in readme_page
    assert f"by {window[0][0]} and {window[2][0]} nats" in page
    assert f"softmax leads by {apart[0][0]} and {apart[2][0]} nats at 1,024 tokens" in page


def test_the_advice_on_pages_of_mechanisms_is_what_the_losses_and_errors_say():
    table = pd.read_csv(RESULTS / "quality" / "tables" / "paired.csv")
    table = table[table["task"].str.startswith("language modelling")]
    control = table[table["against"] == "local_sliding"]
    assert set(control.loc[control["attention"].str.startswith("polysketch"), "verdict"]) == {WORSE}
    linear = table[(table["attention"] == "linear") & (table["against"] == "identity")]
    assert set(linear["verdict"]) <= {UNDECIDED, WORSE} and UNDECIDED in set(linear["verdict"])
    errors = [point for point in readings.last("skeinformer_figure1_relative") if point.panel.startswith("pretrained")]
    averaging = {point.panel: point.y for point in errors if point.series == "v_mean"}
    performer = {point.panel: point.high for point in errors if point.series == "performer"}
    assert performer and all(high >= averaging[panel] for panel, high in performer.items())


def test_another_cpu_changes_a_loss_as_docs_quality_says():
    page = " ".join((RESULTS.parent / "docs" / "quality.md").read_text().split())
    keys = ["attention", "seq_len", "seed", "settings"]
    losses = [
        frame.query("inputs == 'language_modelling' and metric == 'loss'").set_index(keys)["value"]
        for frame in (readme.load(readme.QUALITY), readme.load(RESULTS / "other_cpu"))
    ]
    both = pd.concat(losses, axis=1, join="inner").round(3).droplevel(keys[1:])
    assert list(both.index) == ["flash", "identity", "polysketch_learned_local_r16 block_size=64"]
    for name, (one, other) in zip(both.index, both.to_numpy(), strict=True):
        # The README's hybrid was trained with AVX-512, all else with AVX2.
        avx2, avx512 = (other, one) if "local" in name else (one, other)
        assert f"of `{name}` is {avx2:.3f} with AVX2 and {avx512:.3f} with AVX-512" in page


def test_which_rates_count_and_which_verdicts_they_change_is_what_docs_quality_says():
    """Rates are chosen with the seeds that are compared: verdicts allow for those that are nearly as good."""
    page = " ".join((RESULTS.parent / "docs" / "quality.md").read_text().split())
    data, _ = trained_cells(readme.load(readme.QUALITY))
    cells = data[data["chosen_from"] > 1].drop_duplicates(["kind", "seq_len", "attention"])
    near = defaultdict(set)
    for task, n, name, count in cells[["inputs", "seq_len", "attention", "chosen_from"]].itertuples(index=False):
        assert count == 2
        near[task, n].add(name.partition(" ")[0])
    assert len(near.pop(("associative_recall", 64))) == 8, "nearly all"
    assert near == {
        ("fuzzy_recall", 128): {"polysketch_learned_local_r16", "polysketch_learned_r16"},
        ("language_modelling", 512): {
            *("flash", "performer", "polynomial_p4", "local_polynomial_norms", "polysketch_learned_r32")
        },
        ("language_modelling", 1024): {"linear"},
        ("retrieval", 256): {"flash", "convolution"},
    }
    with_it, without = (
        [one for key, rows in panels(each) for one in comparisons(rows, key)]
        for each in (data, data.assign(chosen_from=1))
    )
    changed = [pair for pair in zip(with_it, without, strict=True) if pair[0]["verdict"] != pair[1]["verdict"]]
    names = [(one["attention"], one["against"]) for one, _ in changed]
    assert names == [("performer", "local_sliding block_size=16"), ("linear", "flash")]
    (one, other), (more, less) = ([f"{row['p (Holm)']:.3f}" for row in pair] for pair in changed)
    assert f"corrected p = {other} in place of {one}; " in page and f"than softmax ({less} in place of {more})" in page


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_records_say_where_they_come_from(folder):
    records = Store(folder).load()
    assert len(records) == len(list((folder / "records").glob("*.json"))) > 0
    for record in records:
        assert record.machine["device_name"] and record.machine["torch"] and record.code["git_sha"]
        assert record.status in ("ok", "oom", "unsupported"), record.config["label"]


@functools.cache
def committed_configs():
    return [json.loads(path.read_bytes())["config"] for path in (RESULTS / "quality" / "records").iterdir()]


def trainings(experiment, *sizes):
    """What these sizes train: overrides by mechanism, task, length, learning rate and seed."""
    file = OmegaConf.load(CONF / "experiment" / f"{experiment}.yaml")
    chosen = (OmegaConf.merge(file, {"size": size, "max_cells": 10_000}) for size in sizes)
    usual = {"training.learning_rate": OmegaConf.select(file, "training.learning_rate"), "task": None}
    asked = defaultdict(list)
    for job in (job for config in chosen for job in expand(config, [])):
        settings = usual | dict(text.partition("=")[::2] for text in job)
        # The first task is the experiment's own; others stand in the grids.
        task = settings["task"] or str(next(one["override /task"] for one in file.defaults if "override /task" in one))
        rate = float(settings["training.learning_rate"])
        asked[settings["attention"], task, int(settings["seq_len"]), rate, int(settings["seed"])].append(settings)
    return asked


@pytest.mark.parametrize("experiment", ["lm_small", "recall_small", "mad_small", "lra_small"])
def test_the_experiments_train_every_model_that_is_committed(experiment):
    """Whoever repeats one gets the rows of README: a rate with fewer seeds would not be chosen."""
    asked = trainings(experiment, "laptop", "night")
    for config in committed_configs():
        if config["bench"]["name"] != "train" or config["task"]["name"] not in OF_TASKS[experiment]:
            continue
        name, *changed = config["label"].split()
        rate, seed = config["training"]["learning_rate"], config["seed"]
        name = "identity" if name == config["model"]["name"] else name
        found = asked[name, config["task"]["name"], config["seq_len"], rate, seed]
        settings = [f"attention.{each}".partition("=")[::2] for each in changed]
        assert any(all(one.get(key) == value for key, value in settings) for one in found), config["label"]


def test_the_usual_size_trains_the_language_models_of_the_readme():
    """Each at the rate that was chosen for it."""
    cells = trained_cells(readme.load(readme.QUALITY), ["language_modelling"])[0].query("seq_len == 512")
    asked = trainings("lm_small", "laptop")
    rows = cells[["attention", "rate", "seed"]].drop_duplicates().itertuples(index=False)
    models = [(name.split()[0], rate, seed) for name, rate, seed in rows]
    assert len(models) == 12 * 5
    for name, rate, seed in models:
        assert asked[name, "language_modelling", 512, rate, seed], (name, rate, seed)
