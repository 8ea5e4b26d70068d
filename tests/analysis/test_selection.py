"""What may stand side by side, and that no figure loses what it compares with."""

import dataclasses
import logging

import numpy as np
import pytest
from drawn import caption, gaps, legend, panels
from synthetic_quality import runs, timed
from synthetic_records import compare, latency, memory, record

from analysis import equal_quality
from analysis.frame import tidy
from analysis.plots import compare as comparison
from analysis.plots import scaling
from analysis.selection import choose, exact_softmax, newest, of_several_codes, settle, several_lengths


@pytest.fixture
def log(caplog):
    """What was logged as left out, so far."""
    caplog.set_level(logging.INFO, "analysis")
    return lambda: " ".join(one.getMessage() for one in caplog.records)


def test_settle_keeps_the_most_frequent_conditions_and_logs_the_others(rng, log):
    records = [latency("flash", n, rng) for n in (512, 1024, 2048)]
    records += [latency("flash", n, rng, dtype="bfloat16") for n in (512, 1024)]
    records += [dataclasses.replace(latency("softmax", 2048, rng, "oom"), machine={})]
    kept, notes = settle(tidy(records))
    assert set(kept["dtype"]) == {"float32"} and kept["cell_id"].nunique() == 4
    assert notes == [] and "left out 2 cells, with dtype=bfloat16" in log() and "float32" not in log()


def test_of_what_is_left_out_only_what_differs_is_said(rng, log):
    records = [latency("flash", n, rng, num_heads=2) for n in (512, 1024, 2048)]
    records += [latency("flash", 512, rng, num_heads=2, dtype="bfloat16"), latency("flash", 512, rng, num_heads=4)]
    settle(tidy(records))
    assert log() == "bench=latency: left out 2 cells, with num_heads=4, dtype=bfloat16"


def test_chosen_mechanisms_keep_what_their_steps_are_compared_with():
    frame = tidy([*runs(), timed(("softmax", "flash", "performer"), 64)])
    some = choose(frame, ["performer"])
    assert set(some.loc[some["bench"] == "compare_train_step", "attention"]) == {"softmax", "flash", "performer"}
    assert len(equal_quality.table(some))
    assert set(some["attention"]) == {"performer", "softmax", "flash", "identity", "local"}


def test_a_commit_that_nobody_knows_is_none_in_common(rng):
    frame = tidy([latency("flash", n, rng) for n in (512, 1024, 2048, 4096)])
    groups = frame["seq_len"].map({512: "a", 1024: "a", 2048: "b", 4096: "b"})
    for commits, said in (((None, "c", None, "d"), ["flash"]), ((None, "c", None, "c"), []), ((None,) * 4, [])):
        own = frame["seq_len"].map(dict(zip((512, 1024, 2048, 4096), commits, strict=True)))
        assert of_several_codes(frame.assign(mechanisms=groups, commit=own.astype(object), code="x")) == said


def test_settle_allows_a_batch_that_follows_the_length(rng, log):
    kept, _ = settle(tidy([latency("flash", n, rng) for n in (512, 1024, 2048)]))
    assert set(kept["seq_len"]) == {512, 1024, 2048} and log() == ""
    fixed = [latency("flash", n, rng, batch_size=1) for n in (512, 1024, 2048, 4096)]
    kept, _ = settle(tidy([*fixed, latency("flash", 512, rng, batch_size=2)]))
    assert set(kept["batch_size"]) == {1} and "batch_size=2" in log()


def test_settle_never_mixes_machines(rng, log):
    one, other = (latency("flash", n, rng) for n in (512, 1024))
    other = record(other.config, other.measurements, machine={**other.machine, "cpu_model": "Other"})
    kept, _ = settle(tidy([one, other]))
    (shown,) = set(kept["cpu_model"])
    (hidden,) = {"Other", one.machine["cpu_model"]} - {shown}
    assert hidden in log() and shown not in log()


def test_the_baseline_is_kept_however_rare_its_conditions(rng):
    others = [latency("performer", n, rng) for n in (512, 1024, 2048, 4096)]
    both = [latency(label, 512, rng, dtype="bfloat16") for label in ("flash", "performer")]
    kept, _ = settle(tidy([*others, *both]))
    assert set(kept["attention"]) == {"flash", "performer"} and set(kept["dtype"]) == {"bfloat16"}
    # Alone it is beside nothing: there is no comparison that could be lost.
    kept, _ = settle(tidy([*others, both[0]]))
    assert set(kept["attention"]) == {"performer"} and len(kept["cell_id"].unique()) == 4


def test_a_baseline_that_did_not_run_is_none(rng):
    others = [latency("performer", n, rng) for n in (512, 1024)]
    failed = [latency("flash", 512, rng, "oom", dtype="bfloat16"), latency("performer", 512, rng, dtype="bfloat16")]
    kept, _ = settle(tidy([*others, *failed]))
    assert set(kept["dtype"]) == {"float32"}


def test_where_no_exact_softmax_is_the_controls_are_kept(rng):
    others = [latency("performer", n, rng) for n in (512, 1024, 2048)]
    both = [latency(label, 512, rng, dtype="bfloat16", causal=False) for label in ("v_mean", "performer")]
    kept, _ = settle(tidy([*others, *both]))
    assert set(kept["attention"]) == {"v_mean", "performer"}


def test_a_panel_without_a_baseline_under_the_common_conditions_has_its_own(rng):
    causal = [latency(label, n, rng, causal=True) for label in ("flash", "performer") for n in (512, 1024)]
    other = [latency(label, 512, rng, causal=False, dtype="bfloat16") for label in ("flash", "performer")]
    common = [latency("performer", 512, rng, causal=False)]
    kept, notes = settle(tidy([*causal, *other, *common]), panels=["causal"])
    assert set(kept.loc[~kept["causal"].astype(bool), "dtype"]) == {"bfloat16"}
    assert set(kept.loc[kept["causal"].astype(bool), "dtype"]) == {"float32"}
    assert notes == ["Measured under other conditions: not causal: dtype=bfloat16."]
    # With one there, the panels agree.
    kept, notes = settle(tidy([*causal, *other, *common, latency("flash", 512, rng, causal=False)]), panels=["causal"])
    assert set(kept["dtype"]) == {"float32"} and notes == []


@pytest.mark.parametrize("seed", range(5))
def test_whatever_was_measured_no_panel_loses_its_baseline(seed):
    """Conditions by chance: where a baseline and another mechanism share some, a panel has such a pair."""
    rng = np.random.default_rng(seed)
    records = [
        latency(str(rng.choice(["flash", "softmax", "performer", "linformer"])), 512, rng, "ok",
                dtype=str(rng.choice(["float32", "bfloat16"])), num_heads=int(rng.choice([1, 4])),
                causal=bool(rng.integers(2)), seed=int(rng.integers(2)))
        for _ in range(14)
    ]  # fmt: skip
    frame = tidy(records)
    kept, _ = settle(frame, panels=["causal"])
    for causal in (True, False):
        rows, shown = (one[one["causal"] == causal] for one in (frame, kept))
        pairs = [exact_softmax(own).nunique() > 1 for _, own in rows.groupby(["dtype", "num_heads", "seed"])]
        assert not any(pairs) or exact_softmax(shown).nunique() > 1
        assert len(shown.drop_duplicates(["dtype", "num_heads", "seed"])) == 1


def test_the_newest_counts_and_how_many_do_not_is_logged(rng, log):
    old, new = latency("flash", 512, rng), latency("flash", 512, rng)
    new = dataclasses.replace(new, cell_id="a" * 64, ended="2030-01-01T00:00:00+00:00")
    rows = newest(tidy([old, new]), ["attention", "metric", "pass"])
    assert set(rows["cell_id"]) == {"a" * 64} and "left out 1 older" in log()


def test_a_panel_of_one_length_is_left_out_if_another_has_more(rng, log):
    causal = [latency("flash", n, rng, causal=True) for n in (512, 1024)]
    other = latency("flash", 512, rng, causal=False)
    assert set(several_lengths(tidy([*causal, other]), "latency")["causal"]) == {True}
    assert "left out what has one length: not causal" in log()
    assert set(several_lengths(tidy([causal[0], other]), "latency")["causal"]) == {True, False}


def test_memory_has_a_panel_for_each_mask_and_pass_with_its_baselines():
    lengths = (512, 1024)
    records = [memory(label, n, causal=True) for label in ("softmax", "performer") for n in lengths]
    records += [memory(label, n, causal=False, batch_size=2) for label in ("softmax", "performer") for n in lengths]
    records += [memory("linformer", n, causal=False, batch_size=4) for n in (512, 1024, 2048, 4096)]
    figure = scaling.memory(tidy(records))
    passes = ("forward", "forward + backward")
    assert list(panels(figure)) == [f"{mask}, {name}" for mask in ("not causal", "causal") for name in passes]
    for panel in panels(figure).values():
        colours = {line.get_color() for line, *_ in panel.containers}
        assert legend(figure)["softmax"].get_color() in colours and not gaps(panel)
    assert "linformer" not in legend(figure) and "Left out" not in caption(figure)


def test_comparisons_are_over_exact_softmax_if_over_any_and_have_both_masks(rng, log):
    records = [compare(("flash", "performer"), n, rng, causal=causal) for n in (512, 1024) for causal in (True, False)]
    records += [
        compare(("polynomial_p4", "performer", "linformer"), n, rng, causal=False) for n in (512, 1024, 2048, 4096)
    ]
    figure = comparison.figure(tidy(records))
    assert list(panels(figure)) == ["not causal, forward", "causal, forward"]
    assert {panel.get_ylabel() for panel in figure.axes} == {"speed over flash", ""}
    assert set(legend(figure)) == {"performer"}
    alone = comparison.figure(tidy([record for record in records if record.config["label"] == "polynomial_p4"]))
    assert alone.axes[0].get_ylabel() == "speed over polynomial_p4"
