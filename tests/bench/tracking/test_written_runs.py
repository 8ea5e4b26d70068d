"""What runs are called, and that many at once are those that MLflow's client writes."""

import dataclasses
import shutil

import synthetic_records
from test_tracking import SWEEP, a_record, client_of, runs_of

from bench.tracking.lines import sweep_name
from bench.tracking.mirror import Mirror

# A summary's note names a view of the folder.
OF_THE_FOLDER = ("folder", "mlflow.parentRunId", "mlflow.note.content")


def test_runs_of_cells_that_differ_have_names_that_differ(mirror, results_dir):
    records = [
        a_record(1, config={"causal": True, "inputs": {"name": "gaussian"}}),
        a_record(2, config={"causal": False, "inputs": {"name": "gaussian"}}),
        a_record(3, config={"causal": False, "inputs": {"name": "pretrained", "layer": 3}}),
        a_record(4, seq_len=512, status="timeout", cell_id="c" * 64),
        a_record(5, seq_len=512, attempt=2, cell_id="c" * 64),
        a_record(6, seq_len=256),
        a_record(7, seq_len=256, machine={"cpu_model": "another"}),
    ]
    for record in records:
        mirror.sync([record])
    mirror.sync(records)
    names = {int(run.data.tags["record_id"][::-1], 16): run.info.run_name for run in runs_of(results_dir)}
    assert len(set(names.values())) == 7
    assert names[1] == "flash, n=1,024, causal, latency"
    assert names[3] == "flash, n=1,024, latency, inputs.name=pretrained"
    assert names[5] == "flash, n=512, latency, attempt=2"


def test_a_sweep_is_called_by_its_experiment_and_else_by_what_it_measures():
    named = ("experiment=lm_small", "size=minutes", "tracking=none")
    assert sweep_name([a_record(overrides=named)]) == "lm_small, minutes"
    records = [a_record(label=label, bench=bench) for label in "abcd" for bench in ("latency", "memory")]
    assert sweep_name(records) == "a, b, c and 1 more: latency, memory"


def test_a_cell_that_compares_is_called_by_what_it_compares(mirror, results_dir):
    bench = {"name": "compare", "measured_pass": "forward", "against": []}
    cells = [{"label": f"{label} dtype=float32", "attention": {"name": label}} for label in ("flash", "performer")]
    config = {**cells[0], "bench": bench | {"against": cells[1:]}, "causal": True}
    mirror.sync([a_record(seq_len=4096, status="oom", config=config)])
    (run,) = runs_of(results_dir)
    assert run.info.run_name == "performer over flash, n=4,096, causal"


def test_a_run_of_an_older_format_is_written_anew(mirror, results_dir):
    records = [a_record(1), a_record(2)]
    mirror.complete(records)
    for kind in ("cell", "summary"):
        for run in runs_of(results_dir, kind):
            client_of(results_dir).set_tag(run.info.run_id, "format", "1")
    old = {run.info.run_id for kind in ("cell", "summary") for run in runs_of(results_dir, kind)}
    assert mirror.complete(records) == 2
    for kind, count in (("cell", 2), ("summary", 1)):
        runs = runs_of(results_dir, kind)
        assert len(runs) == count and not {run.info.run_id for run in runs} & old


def test_many_runs_at_once_are_those_that_a_client_writes(mirror, results_dir, tmp_path, rng):
    """The client is the second implementation."""
    records = [synthetic_records.latency(label, n, rng) for label in ("flash", "performer") for n in (512, 1024)]
    records += [synthetic_records.train("softmax", 16, 0, rng), a_record(9, status="oom")]
    records = [dataclasses.replace(record, sweep_id=SWEEP, inputs_sha256="b2" * 32) for record in records]
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(results_dir / "mlflow.db", other)
    told = Mirror(other, uri=f"sqlite:///{other / 'mlflow.db'}")
    for each in (mirror, told):
        assert each.sync(records[:2]) == 2
        assert each.complete(records) == 4, "and names and parents of the two change"

    def content(folder):
        client = client_of(folder)
        for kind in ("cell", "curve", "comparison", "summary"):
            for run in runs_of(folder, kind):
                tags = {key: value for key, value in run.data.tags.items() if key not in OF_THE_FOLDER}
                parent = client.get_run(run.data.tags["mlflow.parentRunId"]) if kind == "curve" else None
                history = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
                points = {key: sorted((m.step, m.value, m.timestamp) for m in own) for key, own in history.items()}
                yield (
                    *(kind, run.info.run_name, run.info.status, run.info.start_time, run.info.end_time),
                    *(run.info.user_id, run.info.lifecycle_stage, tags, run.data.params, run.data.metrics, points),
                    parent and parent.info.run_name,
                    [
                        (one.dataset.to_dictionary(), [dict(tag) for tag in one.tags])
                        for one in run.inputs.dataset_inputs
                    ],
                    run.info.artifact_uri.rpartition(run.info.run_id)[2],
                )

    bulk, by_client = (sorted(content(folder), key=repr) for folder in (results_dir, other))
    assert len(bulk) == 6 + 3 + 3 + 1 and bulk == by_client
