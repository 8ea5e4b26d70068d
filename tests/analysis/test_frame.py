"""The tidy frame says exactly what the records say."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from drawn import changed
from synthetic_everything import everything
from synthetic_quality import quality
from synthetic_records import compare, decode, latency, memory, spectral, train_step, under, written

from analysis.frame import COLUMNS, load, tidy, widened
from analysis.selection import MissingRecords, series
from analysis.table import by_cell, shortened
from bench.records.record import Record
from bench.records.summary import quantities

SAME = ["metric", "value", "low", "high", "interval", "over", "samples", "unit", "verdict", "baseline"]


def only(frame, **conditions):
    for name, value in conditions.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1
    return frame.iloc[0]


@pytest.fixture(scope="module")
def whole():
    records = everything()
    return records, tidy(records)


def test_every_number_of_a_record_is_a_row_with_what_the_record_says_of_it(whole):
    records, frame = whole
    said = [(record, number) for record in records for number in quantities(record)]
    rows = frame[frame["metric"].notna()].reset_index(drop=True)
    assert set(frame["cell_id"]) == {record.cell_id for record in records} and len(rows) == len(said)
    expected = {name: [getattr(number, name) for _, number in said] for name in SAME}
    expected["attention"] = [number.attention or record.config["label"] for record, number in said]
    expected["shown_unit"] = [(number.shown or (None,))[0] for _, number in said]
    expected["pass"] = [number.measured_pass or own for (_, number), own in zip(said, rows["pass"], strict=True)]
    for name, values in expected.items():
        pd.testing.assert_series_equal(rows[name], pd.Series(values, name=name).astype(rows[name].dtype))
    for raw, (_, number) in zip(rows["raw"], said, strict=True):
        assert raw is number.raw or np.array_equal(raw, number.raw, equal_nan=True)


def test_a_row_says_what_its_cell_is(rng):
    row = only(tidy([spectral("skeinformer", 1024, 64, rng, "pretrained")]), metric="absolute")
    assert (row["attention"], row["mechanism"], row["function"], row["exact"]) == (*["skeinformer"] * 2, "softmax", 0)
    assert (row["features"], row["weights"], row["seq_len"], row["tokens"]) == (64, "pretrained", 1024, 4096)
    assert (row["device_name"], row["cpu_count"], row["threads"]) == ("Synthetic CPU 9000", 8, 8)
    assert json.loads(row["hyperparameters"]) == {"num_features": 64}


def test_a_cell_on_a_gpu_names_it_and_the_compiler_of_its_kernels(rng):
    record = spectral("skeinformer", 1024, 64, rng, "pretrained")
    machine = record.machine | {"gpu_name": "Synthetic GPU", "triton": "3.6.0"}
    on_gpu = dataclasses.replace(record, config={**record.config, "device": "cuda:1"}, machine=machine)
    frame = tidy([on_gpu])
    assert set(frame["device_name"]) == {"Synthetic GPU"}
    assert set(frame["torch"]) == {f"{machine['torch']}, triton 3.6.0"} != set(tidy([record])["torch"])


def test_each_row_of_a_comparison_has_its_own_dtype_and_implementation_and_an_older_entry_the_cells(rng):
    source = compare(("flash", "performer", "v_mean"), 2048, rng, dtype="bfloat16", impl="reference")
    source.config["bench"]["against"][0] |= {"dtype": "float32", "impl": "fused"}
    for each in (source, Record.from_fields(json.loads(json.dumps(dataclasses.asdict(source))))):
        rows = tidy([each])
        own = rows[rows["metric"] == "latency"].set_index("attention")
        assert dict(own["dtype"]) == {"flash": "bfloat16", "performer": "float32", "v_mean": "bfloat16"}
        assert dict(own["impl"]) == {"flash": "reference", "performer": "fused", "v_mean": "reference"}
        assert set(rows.loc[rows["metric"] == "speedup", "dtype"]) == {"float32", "bfloat16"}
    assert by_cell(tidy([source]))["attention"].tolist() == ["flash"]
    both = by_cell(tidy([source, compare(("flash", "performer"), 4096, rng)]))
    assert both["dtype"].tolist() == ["bfloat16, float32", "float32"]
    failed = tidy([compare(("flash", "performer", "v_mean"), 2048, rng, "oom")])
    assert list(failed["dtype"]) == ["float32", "float32"]


def test_a_cell_that_is_not_ok_is_a_row_without_numbers(rng):
    row = only(tidy([latency("softmax", 32768, rng, "oom")]), status="oom")
    assert np.isnan(row["value"]) and pd.isna(row["metric"]) and row["reason"] == "synthetic oom"
    failed = tidy([compare(("flash", "performer", "v_mean"), 2048, rng, "oom")])
    assert list(failed["attention"]) == ["performer", "v_mean"] and set(failed["baseline"]) == {"flash"}


def test_the_newest_terminal_record_stands(tmp_path, rng):
    good = latency("flash", 512, rng)
    later = {"record_id": "f" * 32, "attempt": 2, "status": "crash", "ended": "2026-02-01T00:00:00+00:00"}
    written(tmp_path, [good, dataclasses.replace(good, measurements={}, **later)])
    assert set(load(tmp_path)["status"]) == {"ok"}
    assert set(load(tmp_path, {good.cell_id})["record_id"]) == {good.record_id}
    with pytest.raises(MissingRecords, match="holds no records"):
        load(tmp_path, {"0" * 64})


def test_series_tell_apart_what_differs_and_nothing_else(rng):
    sizes = [{"name": "performer", "num_features": size} for size in (64, 128)]
    performers = [latency("performer", 512, rng, attention=attention) for attention in sizes]
    frame = tidy([*performers, latency("flash", 512, rng)])
    assert set(series(frame)) == {"performer num_features=64", "performer num_features=128", "flash"}
    assert set(series(frame, apart_from_size=True)) == {"performer", "flash"}
    fused = tidy([latency("flash", 512, rng), latency("flash", 512, rng, impl="reference")])
    assert set(series(fused)) == {"flash impl=auto", "flash impl=reference"}


def test_the_size_is_the_hyperparameter_that_the_record_names(rng):
    attention = {"name": "informer", "num_features": 64, "num_samples": 32}
    source = latency("informer", 512, rng, attention=attention)
    row = tidy([source]).iloc[0]
    assert (row["features"], row["sized_by"]) == (64, "num_features")
    other = dataclasses.replace(source, mechanisms={"informer": {"size": "num_samples"}})
    assert tidy([other]).iloc[0]["features"] == 32
    unsized = tidy([latency("v_mean", 512, rng)])
    assert unsized["features"].isna().all() and unsized["sized_by"].isna().all()
    # What was measured knows better than what was asked for.
    measured = spectral("v_mean", 512, None, rng)
    assert tidy([measured])["features"].isna().all()


def test_what_says_how_well_is_no_condition(rng):
    source, steps = latency("flash", 512, rng), decode("flash", 512, rng)
    other = changed(source, {"bench": {**source.config["bench"], "min_sample_ms": 1.0, "memory_limit": 2}})
    assert tidy([source, other])["settings"].nunique() == 1
    assert tidy([steps, changed(steps, {"bench": {"name": "decode", "steps": 4}})])["settings"].nunique() == 2


def test_rows_say_whether_their_cell_was_disturbed_and_by_what(rng):
    quiet, loud = latency("flash", 512, rng), under(latency("flash", 1024, rng), "other processes: 1.3 cores", "heat")
    older = dataclasses.replace(latency("flash", 2048, rng), host_state={})
    frame = tidy([quiet, loud, older, latency("flash", 4096, rng, "oom")])
    assert frame["disturbed"].dtype == bool
    assert set(frame.loc[frame["disturbed"], "seq_len"]) == {1024}
    assert set(frame.loc[frame["disturbed"], "disturbance"]) == {"other processes: 1.3 cores; heat"}
    assert frame.loc[~frame["disturbed"], "disturbance"].isna().all()
    table = by_cell(frame)
    assert table.loc[table["seq_len"] == 1024, "disturbance"].item() == "other processes: 1.3 cores; heat"
    assert "disturbance" not in shortened(by_cell(tidy([quiet, older])))[0]


def test_the_table_says_what_intervals_are_over_and_few_rounds_have_a_range(rng):
    few = latency("flash", 2048, rng)
    timed = few.measurements["passes"]["forward"]
    few = changed(few, measurements={"passes": {"forward": {**timed, "samples": timed["samples"][:5]}}})
    frame = tidy([few, latency("flash", 1024, rng), spectral("skeinformer", 1024, 64, rng)])
    assert sorted(by_cell(frame)["intervals over"]) == ["20 rounds", "4 sequences", "5 rounds"]
    one = only(frame, metric="latency", seq_len=2048)
    assert one["interval"] == "range" and (one["low"], one["high"]) == (one["raw"].min(), one["raw"].max())


def test_of_several_measurements_of_the_same_the_wide_frame_has_the_newest(rng):
    newer, older = (latency("flash", 512, rng) for _ in range(2))
    older = dataclasses.replace(older, cell_id="0" * 64, ended="2020-01-01T00:00:01+00:00")
    frame, alone = tidy([newer, older]), tidy([newer])
    (row,), (expected,) = (widened(each).to_dict("records") for each in (frame, alone))
    assert row["latency forward (ms)"] == expected["latency forward (ms)"]


def test_the_wide_frame_has_every_number_that_people_read_once(whole):
    _, frame = whole
    wide = widened(frame)
    read = frame[(frame["status"] == "ok") & frame["shown_unit"].notna()]
    numbers = wide[[name for name in wide if name not in COLUMNS]]
    assert numbers.columns.str.fullmatch(r"[a-z0-9_]+( forward| backward| forward_backward)?( \(.+\))?").all()
    assert not numbers.isna().all(axis=1).any() and not numbers.isna().all(axis=0).any()
    found, expected = numbers.stack().dropna(), (read["value"] * read["factor"]).dropna()
    assert set(found) <= set(expected) and len(set(found)) > 0.9 * len(set(expected))


def test_time_and_memory_of_one_condition_are_in_one_row_and_trainings_apart(rng):
    timed, held = (changed(one, {"batch_size": 2}) for one in (latency("flash", 64, rng), memory("flash", 64)))
    learned = [changed(one, {"training": {"steps": steps}}) for steps in (1, 2) for one in quality(1, (64,))[:1]]
    steps = [changed(train_step("flash", 64, rng), {"model": {"name": "transformer", "layers": n}}) for n in (2, 3)]
    wide = widened(tidy([timed, held, *learned, *steps]))
    row = wide[wide["latency forward (ms)"].notna()]
    assert len(row) == 1 and row["peak_memory forward (MiB)"].notna().all()
    assert len(wide[wide["loss (nats)"].notna()]) == len(wide[wide["step_time (ms)"].notna()]) == 2


def test_settings_of_one_benchmark_that_differ_have_a_row_each(rng):
    """Capacities of different keys are no two measurements of the same."""
    both = [changed(latency("flash", 64, rng), {"bench": {"name": "latency", "keys": keys}}) for keys in ("a", "b")]
    held = changed(memory("flash", 64), {"batch_size": both[0].config["batch_size"]})
    wide = widened(tidy([*both, held]))
    assert len(wide) == 3 and wide["settings"].nunique() == 3
    assert len(widened(tidy([both[0], held]))) == 1


def test_the_wide_frame_has_a_row_for_each_number_of_threads(rng):
    one, two = latency("flash", 512, rng), latency("flash", 512, rng)
    two = dataclasses.replace(two, cell_id="0" * 64, numerics={**(two.numerics or {}), "threads": 7})
    assert len(widened(tidy([one, two]))) == 2
