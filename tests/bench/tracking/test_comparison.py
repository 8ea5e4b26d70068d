"""The lines of the comparison: a mechanism's condition, its speed over the best exact softmax, and their order."""

import dataclasses
import random
import re

import numpy as np
import pytest
import synthetic_records as synthetic
from test_tracking import client_of, runs_of

from analysis.plots import style
from bench.common.palette import COLOURS, colour
from bench.tracking import views
from bench.tracking.comparison import entries, lines, settled

FOUR = ("softmax", "flash", "performer", "linformer")
METRICS = [chart.metric for chart in views.CHARTS]


def of(sweep, *records):
    return [dataclasses.replace(record, sweep_id=sweep * 64) for record in records]


def by_name(records):
    return {line.name: line for line in lines(entries(records))}


def test_a_comparison_is_a_line_for_each_mechanism_and_its_speed_is_over_the_best_exact_softmax(rng):
    record = synthetic.compare(FOUR, 4096, rng)
    found = by_name([record])
    assert found.keys() == set(FOUR)
    times = {label: np.array(samples) for label, samples in record.measurements["samples"].items()}
    best = min(("softmax", "flash"), key=lambda label: np.median(times[label]))
    for label, line in found.items():
        # The median of the logarithms: of an even number of rounds the root of the product of the two in the middle.
        middle = np.sort(times[best] / times[label])[9:11]
        assert line.values["speedup.forward", 4096] == pytest.approx(np.sqrt(middle.prod()), rel=1e-12)
        low, high = (line.values[f"speedup{end}.forward", 4096] for end in ("_low", "_high"))
        assert low <= line.values["speedup.forward", 4096] <= high
        tokens = 4096 * record.config["batch_size"]
        per_token = np.median(times[label]) / 1e3 / tokens
        assert line.values["latency_us_per_token.forward", 4096] == pytest.approx(per_token, rel=1e-12)
        assert line.values["sequence length", 4096] == 4096
    assert found[best].values["speedup.forward", 4096] == 1


def test_a_speed_over_another_baseline_is_another_number(rng):
    found = by_name([synthetic.compare(("performer", "linformer"), 1024, rng)])
    names = {name for line in found.values() for name, _ in line.values}
    assert "speedup over performer.forward" in names and "speedup.forward" not in names


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"causal": False}, {"causal", "not causal"}),
        ({"batch_size": 3}, {"batch 8", "batch 3"}),
        ({"num_heads": 2, "head_dim": 32}, {"12 heads of 64", "2 heads of 32"}),
        ({"dtype": "bfloat16"}, {"float32", "bfloat16"}),
    ],
)
def test_what_makes_times_comparable_tells_lines_apart_and_is_in_their_names(changes, words, rng):
    records = of("1", synthetic.latency("flash", 4096, rng))
    records += of("2", synthetic.latency("flash", 4096, rng, **changes))
    assert by_name(records).keys() == {f"flash, {word}" for word in words}


def test_cells_of_one_benchmark_with_other_settings_are_not_averaged(rng):
    records = [synthetic.spectral("performer", 1024, 64, rng) for _ in range(2)]
    for record, trials in zip(records, (1, 2), strict=True):
        record.config["bench"]["trials"] = trials
    assert by_name(of("1", *records)).keys() == {f"performer, bench.trials={trials}" for trials in (1, 2)}


def test_a_batch_that_follows_the_length_is_one_condition(rng):
    records = [synthetic.latency("flash", n, rng) for n in (512, 2048, 65536)]
    assert len({record.config["batch_size"] for record in records}) == 3
    (line,) = lines(entries(records))
    assert {at for name, at in line.values if name == "latency_us_per_token.forward"} == {512, 2048, 65536}
    assert "32,768 tokens" in line.condition


def test_a_setting_that_older_records_do_not_have_is_no_condition(rng):
    new = synthetic.latency("flash", 512, rng, attention={"name": "flash", "backend": "auto", "dropout": 0.0})
    old = synthetic.latency("flash", 512, rng)
    assert by_name([*of("1", old), *of("2", new)]).keys() == {"flash"}
    other = synthetic.latency("flash", 512, rng, attention={"name": "flash", "backend": "efficient"})
    assert len(by_name([*of("1", old), *of("2", other)])) == 2


def test_of_several_sweeps_the_newest_counts_and_of_seeds_the_mean_without_an_interval(rng):
    first, second = (synthetic.compare(FOUR, 1024, rng, seed=seed) for seed in (0, 1))
    apart = [by_name([one])["performer"].values["speedup.forward", 1024] for one in (first, second)]
    seeds = by_name(of("1", first, second))["performer"].values
    assert seeds["speedup.forward", 1024] == pytest.approx(np.mean(apart), rel=1e-12)
    assert ("speedup_low.forward", 1024) not in seeds
    newest = by_name([*of("1", first), *of("2", second)])["performer"].values
    assert newest["speedup.forward", 1024] == apart[1] and ("speedup_low.forward", 1024) in newest
    in_turn = by_name([*of("1", first), *of("2", first), *of("1", second)])["performer"].values
    assert in_turn["speedup.forward", 1024] == seeds["speedup.forward", 1024]


def test_baselines_are_first_however_many_lines_there_are_and_every_mechanism_has_one_of_the_first(rng):
    """MLflow's page loads a hundred runs."""
    labels = [*FOUR, "skeinformer", "informer", "v_mean", "polynomial_p4"]
    records = [synthetic.latency(label, 512, rng, num_heads=heads) for label in labels for heads in range(1, 14)]
    random.Random(0).shuffle(records)
    ranked = lines(entries(records))
    assert len(ranked) == len(labels) * 13 > 100
    assert {line.label for line in ranked[:20]} == {"softmax", "flash"}
    assert {line.label for line in ranked[:100]} == set(labels)


def test_the_comparison_has_one_line_for_each_mechanism_and_each_chart_one_condition(rng):
    masks = (True, False)
    records = of("1", *(synthetic.compare(FOUR, n, rng, causal=causal) for n in (512, 1024) for causal in masks))
    # More points, but of fewer mechanisms and without softmax.
    others = (synthetic.compare(("performer", "linformer"), n, rng, dtype="bfloat16") for n in (512, 1024, 2048))
    records += of("2", *others)
    records += of("3", synthetic.spectral("performer", 1024, 64, rng), synthetic.memory("flash", 512))
    found = {line.name: line for line in settled(lines(entries(records)), METRICS)}
    assert list(found)[:2] == ["flash", "softmax"] and found.keys() == set(FOUR)
    performer = found["performer"].values
    for name in ("speedup.forward", "speedup_low.forward", "latency_us_per_token.forward"):
        for mask in ("", "causal "):
            assert {at for metric, at in performer if metric == mask + name} == {512, 1024}, name
    assert performer["features d", 64] == 64 and ("spectral_norm.relative", 64) in performer
    assert ("causal peak_mib.forward", 512) in found["flash"].values


def test_lines_have_the_colours_of_the_figures_and_ranks(mirror, results_dir, rng):
    records = [synthetic.compare(FOUR, n, rng) for n in (512, 1024)]
    records.append(synthetic.compare(FOUR, 2048, rng, "oom"))
    mirror.complete(records)
    (flash,) = (run for run in runs_of(results_dir, "curve") if run.info.run_name == "flash")
    points = client_of(results_dir).get_metric_history(flash.info.run_id, "times as fast as softmax/forward pass")
    values = by_name(records)["flash"].values
    assert [(point.step, point.value) for point in points] == [(n, values["speedup.forward", n]) for n in (512, 1024)]
    for kind in ("curve", "comparison"):
        runs = {run.info.run_name: run.data.tags for run in runs_of(results_dir, kind)}
        colours = {name: style.MECHANISMS[name][0] for name in FOUR}
        assert {name: tags["mlflow.runColor"] for name, tags in runs.items()} == colours
        assert sorted(runs, key=lambda name: runs[name]["rank"])[:2] == ["flash", "softmax"]
    mirror.complete(records)
    assert len(runs_of(results_dir, "comparison")) == len(FOUR)


def test_every_mechanism_has_a_colour_that_does_not_hang_on_its_company():
    for name in (*COLOURS, "lucidrains_performer", "mine", "yours"):
        assert re.fullmatch("#[0-9a-f]{6}", colour(name))
        assert style._of_mechanisms({name, "mine", "another", "softmax"})[name][0] == colour(name)
    assert colour("lucidrains_performer") == colour("performer")
