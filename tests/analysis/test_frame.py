"""The tidy frame says exactly what the records say."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from synthetic_records import compare, config, decode, latency, memory, record, spectral, under

from analysis.frame import load, tidy
from analysis.selection import MissingRecords, newest, series, settle
from analysis.table import by_cell
from bench.records.record import Record
from bench.records.store import Store


def only(frame, **conditions):
    for name, value in conditions.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1
    return frame.iloc[0]


def test_latency_rows(rng):
    source = latency("flash", 1024, rng)
    frame = tidy([source])
    samples = source.measurements["passes"]["forward"]["samples"]
    row = only(frame, metric="latency", **{"pass": "forward"})
    assert row["value"] == np.median(samples) and row["unit"] == "ns" and row["samples"] == 20
    assert row["low"] < row["value"] < row["high"]
    np.testing.assert_array_equal(row["raw"], samples)
    per_token = only(frame, metric="latency_per_token", **{"pass": "forward"})
    assert per_token["value"] == pytest.approx(np.median(samples) / 32768 / 1e3)
    assert (row["attention"], row["mechanism"], row["seq_len"], row["tokens"]) == ("flash", "flash", 1024, 32768)
    assert row["device_name"] == "Synthetic CPU 9000" and row["cell_id"] == source.cell_id


def test_memory_and_largest_rows():
    source = memory("flash", 1024)
    measurements = {**source.measurements, "largest": {"axis": "seq_len", "value": 4096, "limit_bytes": 1, "tried": {}}}
    frame = tidy([dataclasses.replace(source, measurements=measurements)])
    peak = source.measurements["passes"]["forward"]["peak_bytes"]
    assert only(frame, metric="peak_memory", **{"pass": "forward"})["value"] == peak
    assert only(frame, metric="largest_seq_len")["value"] == 4096


def test_spectral_rows_have_the_mean_over_sequences_and_its_interval(rng):
    source = spectral("skeinformer", 1024, 64, rng, "pretrained")
    row = only(tidy([source]), metric="absolute")
    sequences = np.asarray(source.measurements["absolute"]).reshape(4, 2 * 12).mean(1)  # two draws, twelve heads
    half = 3.1824 * sequences.std(ddof=1) / 2  # Student's t with three degrees of freedom
    assert (row["value"], row["high"] - row["value"]) == pytest.approx((sequences.mean(), half))
    np.testing.assert_allclose(row["raw"], sequences)
    assert (row["features"], row["function"], row["weights"]) == (64, "softmax", "pretrained")
    assert (row["interval"], row["over"], row["samples"]) == ("95% t", "sequences", 4)


def test_decode_rows_are_a_time_and_a_size(rng):
    source = decode("performer", 4096, rng)
    frame = tidy([source])
    row = only(frame, metric="decode_latency")
    samples = source.measurements["samples"]
    assert row["value"] == np.median(samples) and row["unit"] == "ns" and row["low"] < row["value"] < row["high"]
    np.testing.assert_array_equal(row["raw"], samples)
    state = only(frame, metric="state_bytes")
    assert (state["value"], state["unit"]) == (12 * 65 * 4 * 1024, "bytes")
    assert (row["seq_len"], row["batch_size"]) == (4096, 1)


def test_compare_rows_are_ratios_of_rounds(rng):
    source = compare(("flash", "performer", "v_mean"), 2048, rng)
    frame = tidy([source])
    times = {label: np.asarray(values) for label, values in source.measurements["samples"].items()}
    for label in ("performer", "v_mean"):
        row = only(frame, metric="speedup", attention=label)
        assert row["baseline"] == "flash" and row["mechanism"] == label and row["pass"] == "forward"
        expected = np.exp(np.median(np.log(times["flash"] / times[label])))
        assert row["value"] == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(row["raw"], times["flash"] / times[label])


def test_each_row_of_a_comparison_has_its_own_implementation(rng):
    source = compare(("flash", "performer", "v_mean"), 2048, rng, impl="reference")
    source.config["bench"]["against"][0]["impl"] = "fused"
    frame = tidy([source])
    rows = frame[frame["metric"] == "latency"].set_index("attention")["impl"]
    assert dict(rows) == {"flash": "reference", "performer": "fused", "v_mean": "reference"}


def test_each_row_of_a_comparison_has_its_own_dtype_and_an_older_entry_the_cells(rng):
    source = compare(("flash", "performer", "v_mean"), 2048, rng, dtype="bfloat16")
    source.config["bench"]["against"][0]["dtype"] = "float32"
    expected = {"flash": "bfloat16", "performer": "float32", "v_mean": "bfloat16"}
    for each in (source, Record.from_fields(json.loads(json.dumps(dataclasses.asdict(source))))):
        rows = tidy([each])
        assert dict(rows[rows["metric"] == "latency"].set_index("attention")["dtype"]) == expected
        assert set(rows.loc[rows["metric"] == "speedup", "dtype"]) == {"float32", "bfloat16"}
    assert by_cell(tidy([source]))["attention"].tolist() == ["flash"]
    both = by_cell(tidy([source, compare(("flash", "performer"), 4096, rng)]))
    assert both["dtype"].tolist() == ["bfloat16, float32", "float32"]
    failed = tidy([compare(("flash", "performer", "v_mean"), 2048, rng, "oom")])
    assert list(failed["dtype"]) == ["float32", "float32"]


@pytest.mark.parametrize("status", ["oom", "unsupported", "timeout", "crash", "nonfinite"])
def test_a_cell_that_is_not_ok_is_a_row_without_numbers(rng, status):
    frame = tidy([latency("softmax", 32768, rng, status)])
    row = only(frame, status=status)
    assert np.isnan(row["value"]) and pd.isna(row["metric"]) and row["reason"] == f"synthetic {status}"
    failed = tidy([compare(("flash", "performer", "v_mean"), 2048, rng, status)])
    assert list(failed["attention"]) == ["performer", "v_mean"] and set(failed["baseline"]) == {"flash"}


def test_a_benchmark_of_another_kind_is_a_row_too():
    frame = tidy([record(config("flash", {"name": "accuracy"}, 512), {"anything": 1})])
    assert only(frame, bench="accuracy")["status"] == "ok"


def test_the_newest_terminal_record_stands(tmp_path, rng):
    store = Store(tmp_path)
    good = latency("flash", 512, rng)
    store.write(good)
    later = dataclasses.replace(
        good, record_id="f" * 32, attempt=2, status="crash", measurements={}, ended="2026-02-01T00:00:00+00:00"
    )
    store.write(later)
    assert set(load(tmp_path)["status"]) == {"ok"}
    assert set(load(tmp_path, {good.cell_id})["record_id"]) == {good.record_id}
    with pytest.raises(MissingRecords, match="holds no records"):
        load(tmp_path, {"0" * 64})


def test_a_folder_without_records_is_one_line(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(MissingRecords) as error:
            load(folder)
        assert str(folder) in str(error.value) and "\n" not in str(error.value)


def test_series_tell_apart_what_differs_and_nothing_else(rng):
    base = {"name": "performer", "num_features": 64}
    frame = tidy(
        [
            latency("performer", 512, rng, attention=base),
            latency("performer", 1024, rng, attention={**base, "num_features": 128}),
            latency("flash", 512, rng),
        ]
    )
    assert set(series(frame)) == {"performer num_features=64", "performer num_features=128", "flash"}
    assert set(series(frame, apart_from_size=True)) == {"performer", "flash"}
    fused = tidy([latency("flash", 512, rng), latency("flash", 512, rng, impl="reference")])
    assert set(series(fused)) == {"flash impl=auto", "flash impl=reference"}


def test_settle_keeps_the_most_frequent_conditions_and_says_so(rng):
    records = [latency("flash", n, rng) for n in (512, 1024, 2048)]
    records += [latency("flash", n, rng, dtype="bfloat16") for n in (512, 1024)]
    records += [dataclasses.replace(latency("softmax", 2048, rng, "oom"), machine={})]
    kept, notes = settle(tidy(records))
    assert set(kept["dtype"]) == {"float32"} and kept["cell_id"].nunique() == 4
    assert len(notes) == 1 and "dtype=bfloat16" in notes[0] and "float32" not in notes[0]


def test_settle_allows_a_batch_that_follows_the_length(rng):
    kept, notes = settle(tidy([latency("flash", n, rng) for n in (512, 1024, 2048)]))
    assert set(kept["seq_len"]) == {512, 1024, 2048} and notes == []
    fixed = [latency("flash", n, rng, batch_size=1) for n in (512, 1024, 2048, 4096)]
    kept, notes = settle(tidy([*fixed, latency("flash", 512, rng, batch_size=2)]))
    assert set(kept["batch_size"]) == {1} and "batch_size=2" in notes[0]


def test_settle_never_mixes_machines(rng):
    one, other = (latency("flash", n, rng) for n in (512, 1024))
    other = record(other.config, other.measurements, machine={**other.machine, "cpu_model": "Other"})
    kept, notes = settle(tidy([one, other]))
    (shown,) = set(kept["cpu_model"])
    (hidden,) = {"Other", one.machine["cpu_model"]} - {shown}
    assert len(notes) == 1 and hidden in notes[0] and shown not in notes[0]


def test_newest_replaces_measurements_of_older_code(rng):
    old, new = latency("flash", 512, rng), latency("flash", 512, rng)
    new = dataclasses.replace(new, cell_id="1" * 64, record_id="1" * 32, ended="2026-03-01T00:00:00+00:00")
    kept, notes = newest(tidy([new, old]), ["attention", "seq_len", "pass", "metric"])
    assert set(kept["cell_id"]) == {new.cell_id} and len(notes) == 1


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


def test_measurements_of_another_shape_cost_no_other_record(rng, capsys):
    good, odd = latency("flash", 512, rng), latency("flash", 1024, rng)
    for measurements in (
        {"tokens": 1},
        {"passes": 5},
        {"passes": {"forward": {"samples": []}}, "tokens": 1, "flops": 1},
    ):
        frame = tidy([dataclasses.replace(odd, measurements=measurements), good])
        assert set(frame["cell_id"]) == {good.cell_id}
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert error.startswith(f"skipped, {odd.file_name}: measurements are not those of bench=latency: ")


def test_what_says_how_well_is_no_condition(rng):
    source = latency("flash", 512, rng)
    settings = {**source.config["bench"], "min_sample_ms": 1.0, "memory_limit": 2}
    other = dataclasses.replace(source, config={**source.config, "bench": settings})
    assert set(tidy([source])["settings"]) == set(tidy([other])["settings"])
    steps = [decode("flash", 512, rng)]
    steps += [dataclasses.replace(steps[0], config={**steps[0].config, "bench": {"name": "decode", "steps": 4}})]
    assert tidy(steps)["settings"].nunique() == 2


def test_hyperparameters_are_json(rng):
    frame = tidy([latency("polynomial_p4", 512, rng)])
    assert json.loads(frame["hyperparameters"].iloc[0]) == {"degree": 4}


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
    assert "disturbance" not in by_cell(tidy([quiet, older]))


def test_every_interval_names_what_it_is_over_and_few_rounds_have_a_range(rng):
    few = latency("flash", 2048, rng)
    timed = few.measurements["passes"]["forward"]
    passes = {"forward": {**timed, "samples": timed["samples"][:5]}}
    few = dataclasses.replace(few, measurements={**few.measurements, "passes": passes})
    cells = [latency("flash", 1024, rng), few, decode("performer", 4096, rng), spectral("skeinformer", 1024, 64, rng)]
    frame = tidy([*cells, compare(("flash", "performer"), 2048, rng)])
    assert sorted(by_cell(frame)["intervals over"]) == [
        "20 rounds",
        "20 rounds",
        "20 rounds",
        "4 sequences",
        "5 rounds",
    ]
    told = frame.dropna(subset=["low"])
    assert set(zip(told["bench"], told["over"], strict=True)) == {
        ("latency", "rounds"), ("decode", "rounds"), ("compare", "rounds"), ("spectral_norm", "sequences"),
    }  # fmt: skip
    assert frame.loc[frame["low"].isna(), "over"].isna().all()
    ranges = told[told["interval"] == "range"]
    assert len(ranges) and set(ranges["seq_len"]) == {2048} and set(ranges["samples"]) == {5}
    one = ranges[ranges["metric"] == "latency"].iloc[0]
    assert (one["low"], one["high"]) == (one["raw"].min(), one["raw"].max())
