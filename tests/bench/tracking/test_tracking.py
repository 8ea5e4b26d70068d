"""The mirror of records in MLflow: all of them, once each, whatever is killed, named or broken."""

import base64
import dataclasses
import json
import math
import shutil
import sys
import zlib
from collections import Counter
from pathlib import Path

import pytest
import synthetic_records

from bench.common.errors import bounded
from bench.common.palette import colour
from bench.common.schema import flatten
from bench.records import plans
from bench.records.own import identity
from bench.records.record import STATUSES
from bench.records.summary import summarise
from bench.tracking import views
from bench.tracking.lines import FORMAT
from bench.tracking.mirror import Mirror, TrackingError

SWEEP = "5a3e" * 16
UNITS = "latency in ms, latency_per_token in µs/token, spread in %, flops in FLOP, throughput in TFLOP/s"
TIMES = [2e6, 1e6, 3e6, 2e6, 9e6]
LATENCY = {"passes": {"forward": {"unit": "ns", "samples": TIMES}}, "tokens": 4000, "flops": 6_000_000}


def a_record(number=0, *, label="flash", bench="latency", seq_len=1024, status="ok", measured=LATENCY, **changes):
    """A made-up record; `number` stands for its identity, `config` changes settings, the others fields."""
    settings = {"attention": {"name": "flash"}, "inputs": {"name": "gaussian"}, "batch_size": 4096 // seq_len}
    settings |= {"dtype": "float32", "device": "cpu", "seed": 0} | changes.pop("config", {})
    config = {"label": label, "bench": {"name": bench}, "seq_len": seq_len, **settings}
    record = synthetic_records.record(config, measured, status)
    ids = {"record_id": f"{number:032x}"[::-1], "cell_id": f"{number:064x}"[::-1], "sweep_id": SWEEP}
    return dataclasses.replace(record, **ids | changes)


def compared(labels, *times):
    samples = dict(zip(labels, times, strict=True))
    return {"pass": "forward", "labels": labels, "samples": samples, "calls_per_sample": {}}


def of_trials(values):
    errors = dict.fromkeys(("relative", "absolute", "exact_norm"), values)
    return {"features": 64, "reference": "softmax", **errors}


def client_of(results_dir):
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{Path(results_dir).resolve() / 'mlflow.db'}")


def runs_of(results_dir, kind="cell"):
    client = client_of(results_dir)
    experiment = client.get_experiment_by_name("attention-zoo")
    return list(client.search_runs([experiment.experiment_id], f"tags.kind = '{kind}'", max_results=5000))


# --- cells -----------------------------------------------------------------------------------------------


def test_the_numbers_of_a_record():
    latency = summarise(a_record())
    assert (latency["latency_ms.forward"], latency["latency_us_per_token.forward"]) == (2.0, 0.5)
    assert latency["spread_pct.forward"] == 50.0
    assert latency["tflop_per_s.forward"] == pytest.approx(6e6 / 2e-3 / 1e12, rel=1e-12)
    passes = {"forward": {"peak_bytes": 3 * 2**20, "baseline_bytes": 2**20}}
    largest = {"axis": "batch_size", "value": 96, "limit_bytes": 2**30, "tried": {"128": False}}
    memory = summarise(a_record(bench="memory", measured={"passes": passes, "largest": largest}))
    assert memory == {"peak_mib.forward": 3.0, "largest.batch_size": 96.0}
    slow = [200.0, 210.0, 190.0, 400.0, 200.0, 205.0, 195.0]
    measured = compared(["softmax", "flash"], slow, [time / 4 for time in slow])
    ratio = summarise(a_record(bench="compare", measured=measured))
    speedups = {key: 4.0 for key in ("speedup.flash", "speedup_low.flash", "speedup_high.flash")}
    assert ratio == pytest.approx({**speedups, "latency_ms.softmax": 200e-6, "latency_ms.flash": 50e-6})
    assert flatten({"a": {"b": {"c": 1}, "d": []}, "e": None}) == {"a.b.c": 1, "a.d": [], "e": None}
    odd = {"loss": {"train": 0.5, "test": math.nan}, "steps": 10, "converged": True, "best": -math.inf, "curve": [1]}
    assert summarise(a_record(bench="training", measured=odd)) == {"loss.train": 0.5, "steps": 10.0}


def test_spectral_norm_is_the_mean_over_sequences_with_its_interval():
    measured = of_trials([[1.0, 2.0], [3.0, 6.0], [2.0, 4.0]])
    summary = summarise(a_record(bench="spectral_norm", measured=measured, config={"batch_size": 3}))
    # Of the sequences 1.5, 4.5 and 3 the standard deviation is 1.5; Student's t with two degrees of freedom.
    half = 4.3027 * 1.5 / math.sqrt(3)
    numbers = [summary[f"spectral_norm{end}.relative"] for end in ("", "_low", "_high")]
    assert numbers == pytest.approx([3, 3 - half, 3 + half], rel=1e-12)
    alone = summarise(a_record(bench="spectral_norm", measured=measured, config={"batch_size": 1}))
    assert alone["spectral_norm.relative"] == 3.0
    assert "spectral_norm_low.relative" not in alone, "draws and heads of one sequence say nothing of others"


def test_a_record_comes_back_as_it_was(mirror, results_dir):
    times = {"started": "2026-01-02T03:04:05+00:00", "ended": "2026-01-02T03:04:07.250000+00:00"}
    loud = {"host_state": {"disturbed": ["other processes: 1.3 cores", "heat"]}, "inputs_sha256": "a1" * 32}
    loud |= {"code": {"git_sha": "c0ffee"}, "overrides": ("experiment=cpu_peers",)}
    record = a_record(7, seq_len=2048, config={"attention": {"name": "flash", "scale": 0.125}}, **times, **loud)
    assert mirror.sync([record]) == 1
    (run,) = runs_of(results_dir)
    assert run.info.run_name == "flash, n=2,048, latency"
    assert (run.info.start_time, run.info.end_time) == (1767323045000, 1767323047250)
    assert run.info.artifact_uri.startswith((results_dir / "mlartifacts").as_uri())
    assert run.data.params == {key: str(value) for key, value in flatten(record.config).items()}
    assert run.data.metrics == {key.replace(".", "/"): value for key, value in summarise(record).items()}
    steps = {point.step for point in client_of(results_dir).get_metric_history(run.info.run_id, "latency_ms/forward")}
    assert steps == {2048}
    tags = {key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")}
    assert tags == {
        **{"kind": "cell", "sweep_id": SWEEP, "cell_id": record.cell_id, "record_id": record.record_id},
        **{"attempt": "1", "status": "ok", "result": "forward 2 ms", "superseded": "false"},
        **{"attention": "flash", "bench": "latency", "intervals_over": "rounds"},
        **{"device": "Synthetic CPU 9000", "cpu_model": "Synthetic CPU 9000", "torch": "2.13.0"},
        "disturbed": "other processes: 1.3 cores; heat",
        **{"format": FORMAT, "units": UNITS, "folder": identity(results_dir)},
    }
    assert run.data.tags["mlflow.source.git.commit"] == "c0ffee"
    assert run.data.tags["mlflow.source.name"] == "python -m bench experiment=cpu_peers"
    assert run.data.tags["mlflow.runColor"] == colour("flash")
    (used,) = run.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("gaussian", ("a1" * 32)[:36])


def test_spectral_norms_are_drawn_over_the_features(mirror, results_dir):
    mirror.sync([a_record(bench="spectral_norm", measured={**of_trials([[1.0]]), "sequences": 1})])
    (run,) = runs_of(results_dir)
    history = client_of(results_dir).get_metric_history(run.info.run_id, "spectral_norm/relative")
    assert [point.step for point in history] == [64]
    assert run.info.run_name == "flash, n=1,024, d=64, spectral_norm"
    assert run.data.tags["intervals_over"] == "sequences"


def test_only_what_measured_is_shown_as_finished_and_has_numbers(mirror, results_dir):
    mirror.sync(a_record(number, status=status) for number, status in enumerate(STATUSES))
    found = {run.data.tags["status"]: run for run in runs_of(results_dir)}
    expected = dict.fromkeys(STATUSES, "FAILED") | {"ok": "FINISHED", "interrupted": "KILLED"}
    assert {status: run.info.status for status, run in found.items()} == expected
    assert found.pop("ok").data.metrics
    for status, run in found.items():
        assert run.data.tags["reason"] == f"synthetic {status}" and run.data.metrics == {}


def test_a_later_attempt_supersedes(mirror, results_dir):
    first = a_record(1, status="timeout", cell_id="c" * 64)
    second = a_record(2, cell_id="c" * 64, attempt=2)
    mirror.sync([first])
    mirror.sync([first, second])
    found = {run.data.tags["record_id"]: run.data.tags["superseded"] for run in runs_of(results_dir)}
    assert found == {first.record_id: "true", second.record_id: "false"}


def test_a_long_sweep_with_torn_runs_is_written_in_batches_and_read_in_pages(mirror, results_dir, monkeypatch):
    measured = {f"quantity{index:04}": float(index) for index in range(1000)}
    each = enumerate([measured, *6 * [{"loss": 1.0}]])
    records = [a_record(number, bench="training", measured=one) for number, one in each]
    experiment = mirror.create()
    client = client_of(results_dir)
    search = type(client).search_runs
    monkeypatch.setattr(
        type(client), "search_runs", lambda *args, **kwargs: search(*args, **kwargs | {"max_results": 2})
    )
    elsewhere = a_record(9)  # another folder's records may be mirrored here
    for record in [*records[:3], elsewhere]:  # torn, and repaired while the pages are read
        client.create_run(experiment, tags={"kind": "cell", "record_id": record.record_id})
    assert mirror.sync(records) == 7
    assert mirror.sync(records) == 0
    monkeypatch.undo()
    found = {run.data.tags["record_id"]: (run.info.status, run.data.metrics) for run in runs_of(results_dir)}
    written = {record.record_id: ("FINISHED", summarise(record)) for record in records}
    assert found == written | {elsewhere.record_id: ("RUNNING", {})}


def test_an_experiment_deleted_in_the_pages_comes_back(mirror, results_dir):
    mirror.sync([a_record(1)])
    client_of(results_dir).delete_experiment(mirror.create())
    assert mirror.sync([a_record(1), a_record(2)]) == 1
    assert len(runs_of(results_dir)) == 2


def test_nothing_that_a_user_may_name_breaks_the_mirror(mirror, results_dir):
    labels = ["", "..", "/", "a/../b", "a=b@c[d]", "ü", "x" * 1000, "new\nline", "'; drop table runs; --", "a,b|c"]
    many, records = {f"option{index}": index for index in range(150)}, []
    for number, label in enumerate(labels):
        measured = {f"loss.{label}": 1.5, "bad": math.inf, "worse": math.nan}
        config = {"attention": {"name": label, label: ""}, "long": "y" * 10_000, **many}
        records.append(a_record(number, label=label, bench="training", measured=measured, config=config))
    assert mirror.sync(records) == len(labels)
    mirror.summary(SWEEP, records, [], "table")
    found = runs_of(results_dir)
    assert len(found) == len(labels)
    assert all(run.info.status == "FINISHED" and 1.5 in run.data.metrics.values() for run in found)
    assert all(math.isfinite(value) for run in found for value in run.data.metrics.values())
    assert Counter(run.data.tags["attention"] for run in found) == Counter(bounded(label, 500) for label in labels)


# --- summaries of sweeps ---------------------------------------------------------------------------------


def test_a_summary_holds_figures_table_and_cells_and_is_rewritten_when_they_change(mirror, results_dir, tmp_path):
    figures = [tmp_path / "latency.png", tmp_path / "latency.svg"]
    for figure in figures:
        figure.write_bytes(figure.name.encode())
    records = [a_record(1), a_record(2, status="oom")]
    table = "| a |\n|---|\n| 1 |"
    mirror.summary(SWEEP, records, figures, table)
    (run,) = runs_of(results_dir, "summary")
    assert run.data.metrics == {"status/ok": 1.0, "status/oom": 1.0}
    assert run.data.tags["sweep_id"] == SWEEP
    artifacts = results_dir / "mlartifacts" / run.info.run_id / "artifacts"
    assert {path.name for path in (artifacts / "figures").iterdir()} == {"latency.png", "latency.svg"}
    assert (artifacts / "table.md").read_text() == table
    listed = {cell["cell_id"]: cell["status"] for cell in json.loads((artifacts / "cells.json").read_text())["cells"]}
    assert listed == {record.cell_id: record.status for record in records}

    mirror.summary(SWEEP, records, figures, table)
    assert [same.info.run_id for same in runs_of(results_dir, "summary")] == [run.info.run_id]
    figures[0].write_bytes(b"other pixels")
    mirror.summary(SWEEP, records, figures, table)
    (rewritten,) = runs_of(results_dir, "summary")
    assert rewritten.info.run_id != run.info.run_id
    assert len(runs_of(results_dir, "curve")) == 1


def test_a_torn_summary_is_written_again_and_another_sweep_left_alone(mirror, results_dir, monkeypatch):
    mirror.summary("other", [a_record(1)], [], "")
    with monkeypatch.context() as patch, pytest.raises(TrackingError, match="disk full"):
        patch.setattr("mlflow.MlflowClient.log_text", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
        mirror.summary(SWEEP, [a_record(2)], [], "table")
    mirror.summary(SWEEP, [a_record(2)], [], "table")
    for kind in ("curve", "summary"):
        found = Counter((run.data.tags["sweep_id"], run.info.status) for run in runs_of(results_dir, kind))
        assert found == {(SWEEP, "FINISHED"): 1, ("other", "FINISHED"): 1}


def test_a_sweep_is_one_row_with_its_cells_and_curves_below_it(mirror, results_dir):
    records = [a_record(number, label=label) for number, label in enumerate(["flash", "performer"])]
    other = a_record(9, sweep_id="9" * 64)
    mirror.sync([*records, other])
    mirror.summary(SWEEP, records, [], "")
    (summary,) = runs_of(results_dir, "summary")
    late = a_record(10, label="softmax")
    mirror.sync([late])
    parents = {run.data.tags["record_id"]: run.data.tags.get("mlflow.parentRunId") for run in runs_of(results_dir)}
    own = {record.record_id: summary.info.run_id for record in [*records, late]}
    assert parents == own | {other.record_id: None}
    assert {run.data.tags["mlflow.parentRunId"] for run in runs_of(results_dir, "curve")} == {summary.info.run_id}
    assert summary.data.tags["result"] == "2 ok"
    starts = [run.info.start_time for kind in ("cell", "curve") for run in runs_of(results_dir, kind)]
    assert summary.info.start_time > max(starts), "the newest run is listed first"


def test_what_records_there_are_is_mirrored_with_a_summary_for_each_sweep(mirror, results_dir):
    records = [a_record(number, seq_len=seq_len) for number, seq_len in enumerate([512, 1024])]
    alone = a_record(7, sweep_id="7" * 64)
    folder = results_dir / "sweeps" / SWEEP
    folder.mkdir(parents=True)
    (folder / "latency.png").write_bytes(b"pixels")
    assert mirror.complete([*records, alone]) == 3
    (summary,) = runs_of(results_dir, "summary")
    artifacts = results_dir / "mlartifacts" / summary.info.run_id / "artifacts"
    assert (artifacts / "figures" / "latency.png").read_bytes() == b"pixels"
    assert "flash" in (artifacts / "table.md").read_text()
    assert mirror.complete([*records, alone]) == 0
    assert [run.info.run_id for run in runs_of(results_dir, "summary")] == [summary.info.run_id]


@pytest.mark.parametrize("sweep_id", [SWEEP, "3" * 64])
def test_a_summary_older_than_its_records_is_written_again(mirror, results_dir, sweep_id):
    """As after a second attempt with tracking=none, by any sweep. A cell that another sweep measured stays in it."""
    failed, fine = a_record(1, status="oom"), a_record(2, seq_len=512, sweep_id="2" * 64)
    records = [failed, fine, a_record(3, seq_len=2048)]
    mirror.summary(SWEEP, records, [], "")
    cells = [plans.SavedCell(one.cell_id, "", one.config, 60.0, None, []) for one in records]
    (results_dir / "sweeps" / SWEEP).mkdir(parents=True)
    plans.save(results_dir, plans.SavedPlan(SWEEP, [], {}, {}, [], cells))
    ended = "2099-01-01T00:00:00+00:00"
    again = a_record(4, cell_id=failed.cell_id, attempt=2, ended=ended, sweep_id=sweep_id)
    for _ in range(2):
        mirror.complete([*records, again])
        (summary,) = runs_of(results_dir, "summary")
        assert summary.data.tags["result"] == "3 ok"


def test_a_folder_that_has_moved_is_mirrored_again(mirror, results_dir, tmp_path_factory):
    """MLflow keeps whole paths of artifacts."""
    records = [a_record(1), a_record(2)]
    mirror.complete(records)
    moved = tmp_path_factory.mktemp("elsewhere") / "a longer name"
    shutil.move(results_dir, moved)
    assert Mirror(moved).complete(records) == 2 and Mirror(moved).complete(records) == 0
    (summary,) = runs_of(moved, "summary")
    assert {item.path for item in client_of(moved).list_artifacts(summary.info.run_id)} == {"table.md", "cells.json"}
    uris = {run.info.run_id: run.info.artifact_uri for run in runs_of(moved)}
    assert uris == {run_id: f"{(moved / 'mlartifacts').as_uri()}/{run_id}/artifacts" for run_id in uris}
    results_dir.mkdir()


def test_what_a_server_refuses_is_named_and_costs_no_other(mirror, results_dir, monkeypatch, capsys):
    mirror = Mirror(results_dir, uri=mirror.uri)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    records, log = [a_record(number, seq_len=512 << number) for number in range(3)], MlflowClient.log_batch

    def refusing(self, run_id, metrics=(), params=(), tags=()):
        if any(param.key == "seq_len" and param.value == "1024" for param in params):
            raise MlflowException("no\nsuch", error_code=1000)
        log(self, run_id, metrics, params, tags)

    monkeypatch.setattr(MlflowClient, "log_batch", refusing)
    assert mirror.sync(records) == 2
    assert capsys.readouterr().err == f"warning: MLflow mirror: {records[1].file_name}: left out, no\n"
    monkeypatch.setattr(MlflowClient, "log_batch", log)
    assert mirror.sync(records) == 1


def test_seeds_are_on_one_line_and_lines_are_bounded(mirror, results_dir, capsys, monkeypatch):
    monkeypatch.setattr("bench.tracking.mirror.MAX_LINES", 2)
    records = [
        a_record(seed, bench="training", measured={"loss": float(seed)}, config={"seed": seed}) for seed in range(3)
    ]
    performer = {"attention": {"name": "performer"}}
    records += [a_record(10 + number, label=f"other{number}", config=performer) for number in range(3)]
    mirror.summary(SWEEP, records, [], "")
    curves = {run.info.run_name: run for run in runs_of(results_dir, "curve")}
    assert len(curves) == 2 and curves["flash"].data.metrics == {"loss": 1.0, "sequence length": 1024}
    assert curves["flash"].data.params["dtype"] == "float32" and "seed" not in curves["flash"].data.params
    assert curves["flash"].data.tags["bench"] == "training"
    assert "lines for 2 of 4 mechanisms and conditions" in capsys.readouterr().err


def test_the_experiment_says_where_to_click_and_holds_its_views(mirror, results_dir):
    experiment = mirror.create()
    tags = client_of(results_dir).get_experiment(experiment).tags
    assert all(views.address(name, experiment)[1:] in tags["mlflow.note.content"] for name in ("sweeps", "comparison"))
    packed = tags["mlflow.sharedViewState.comparison"].removeprefix("deflate;")
    view = json.loads(zlib.decompress(base64.b64decode(packed)))
    first, *_ = view["compareRunCharts"]
    assert first["metricKey"] == "times as fast as softmax/forward pass" and first["scaleType"] == "log"
    assert (first["xAxisKey"], first["selectedXAxisMetricKey"]) == ("metric", "sequence length")
    assert view["searchFilter"] == views.COMPARISON and view["orderByKey"] == "tags.`rank`"
    assert len({chart["uuid"] for chart in view["compareRunCharts"]}) == len(view["compareRunCharts"])


# --- what goes wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["folder", "database"])
def test_a_store_that_cannot_be_written_is_one_line(mirror, results_dir, broken):
    (results_dir / "mlflow.db").write_bytes(b"not a database " * 1000)
    if broken == "folder":
        shutil.rmtree(results_dir)
        results_dir.write_text("a file")
    with pytest.raises(TrackingError) as raised:
        mirror.sync([a_record()])
    assert str(results_dir) in str(raised.value) and "\n" not in str(raised.value)


def test_without_mlflow(mirror, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.delitem(sys.modules, "bench.tracking.runs")
    monkeypatch.delattr("bench.tracking.runs")
    with pytest.raises(TrackingError, match="mlflow"):
        mirror.sync([a_record()])
