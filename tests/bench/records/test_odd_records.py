"""One odd record never stops the others: not a sweep that goes on, not a figure, a table, the mirror or an archive."""

import contextlib
import dataclasses
import io
import xml.etree.ElementTree
from pathlib import Path

import pytest
from odd_records import FILES, TEXTS, UNREADABLE, base, extreme, good, renamed, spoil, strange, unusable

import analysis
from analysis.__main__ import main
from analysis.frame import tidy
from analysis.registry import FIGURES, TABLES, made
from bench.measures.summary import Results
from bench.records import archive, index
from bench.records.store import Store
from bench.table import crossovers, line, table
from bench.tracking import local
from bench.tracking.mirror import Mirror

UNUSABLE, EXTREME = unusable(), extreme()


def some_quickly(kinds, every=8):
    """Each of the kinds takes seconds: most of them are `slow`."""
    return [pytest.param(kind, marks=[pytest.mark.slow] if i % every else []) for i, kind in enumerate(kinds)]


def said(call, *arguments):
    """What a call returns, and the lines that it says on stderr."""
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr):
        result = call(*arguments)
    return result, stderr.getvalue().split("\n")[:-1]


def assert_plain(lines):
    for text in lines:
        assert text.isprintable() and len(text) < 1200, text[:2000]


@pytest.fixture(scope="module")
def fine(tmp_path_factory):
    """A results folder of good records only, and what the commands make of it."""
    results = tmp_path_factory.mktemp("fine")
    for record in good():
        Store(results).write(record)
    return results


@pytest.fixture
def results(tmp_path):
    for record in good():
        Store(tmp_path).write(record)
    return tmp_path


def test_there_are_many_kinds():
    assert len(FILES) >= 50 and len(UNREADABLE) >= 100 and len(UNUSABLE) >= 60 and len(EXTREME) + len(TEXTS) >= 60


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_is_no_record_is_one_line_and_costs_no_other(kind, tmp_path):
    store, neighbour = Store(tmp_path), base("a good one")
    store.write(neighbour)
    message = spoil(store, kind)
    loaded, lines = said(store.load)
    assert loaded == [neighbour] and len(lines) == 1
    assert said(index.entries, store)[1] == lines
    assert_plain(lines)
    path, _, reason = lines[0].rpartition(": skipped, ")
    assert path.startswith(str(store.records_dir)) and message in reason
    assert said(store.of_cell, base(kind).cell_id)[0] == []


def test_all_kinds_together_cost_no_figure_no_table_and_no_run(results, fine, tmp_path):
    for kind in UNREADABLE:
        spoil(Store(results), kind)
    for record in UNUSABLE.values():
        Store(results).write(record)
    frames = [said(analysis.frame.load, folder) for folder in (fine, results)]
    assert_plain(frames[1][1])
    assert len(frames[1][1]) == len(UNREADABLE) + len(UNUSABLE) and not frames[0][1]
    assert frames[0][0].drop(columns="raw").equals(frames[1][0].drop(columns="raw"))


@pytest.mark.parametrize("command", ["list", "table", "tables"])
def test_commands_say_the_same_beside_odd_records(command, results, fine, capsys):
    for kind in FILES:
        spoil(Store(results), kind)
    for record in UNUSABLE.values():
        Store(results).write(record)
    outputs = []
    for folder in (fine, results):
        assert main([command, "--results", str(folder)]) == 0
        outputs.append(capsys.readouterr().out.replace(str(folder), ""))
    assert outputs[0] == outputs[1] != ""


@pytest.mark.parametrize("kind", UNUSABLE)
def test_measurements_that_say_nothing_cost_no_other(kind):
    odd, neighbour = UNUSABLE[kind], base("a good one")
    frame, lines = said(tidy, [odd, neighbour])
    assert set(frame["cell_id"]) == {neighbour.cell_id} and len(lines) == 1 and odd.file_name in lines[0]
    text, silence = said(table, [odd, neighbour])
    assert silence == [] and text.count("\n") == 3
    assert crossovers([odd, neighbour]) == [] and odd.file_name in line(odd)
    assert_plain([*lines, line(odd)])


@pytest.mark.parametrize("kind", UNUSABLE)
def test_what_claims_to_have_measured_what_cannot_be_does_not_stand_before_a_good_one(kind, tmp_path):
    odd = dataclasses.replace(UNUSABLE[kind], attempt=2, ended="2099-01-01T00:00:00+00:00")
    neighbour = dataclasses.replace(base("a good one"), cell_id=odd.cell_id)
    results = Results(tmp_path)
    for record in (neighbour, odd):
        results.write(record)
    found, lines = said(results.find, odd.cell_id)
    assert found == neighbour and len(lines) == 1
    assert lines[0].startswith(f"{results.records_dir / odd.file_name}: skipped, ")
    assert_plain(lines)
    (entry,), again = said(index.entries, results)
    assert entry.record_id == neighbour.record_id and again == lines


def test_what_a_benchmark_that_nobody_knows_has_measured_is_read(tmp_path):
    """Whatever it calls its numbers, and whether or not it has any."""
    measured = {"latency": -1.0, "samples": [-1.0, 0.0], "loss": -5, "peak_bytes": -1}
    config = base("unknown").config | {"bench": {"name": "of_a_plugin"}}
    records = [
        dataclasses.replace(renamed(base(str(number)), str(number)), config=config, measurements=measurements)
        for number, measurements in enumerate((measured, {}))
    ]
    for record in records:
        Store(tmp_path).write(record)
    loaded, lines = said(Results(tmp_path).load)
    assert lines == [] and {record.record_id for record in loaded} == {record.record_id for record in records}


@pytest.mark.parametrize("kind", some_quickly(EXTREME))
def test_values_that_nobody_expects_cost_no_figure(kind, tmp_path):
    assert_drawn(tmp_path, [EXTREME[kind]])


@pytest.mark.parametrize("kind", some_quickly(TEXTS))
def test_texts_of_all_kinds_are_shown_as_they_are(kind, tmp_path):
    records = strange(kind)
    loaded, frame = assert_drawn(tmp_path, records)
    assert len(loaded) == len(records) <= frame["cell_id"].nunique()
    # In memory too, where nobody has read them.
    for each in (records, loaded):
        text = table(each)
        assert text.count("\n") == len(each) + 1
        assert_plain(map(line, each))
        assert text.replace("\n", "").isprintable()
        assert len({len(row.replace("\\|", "").split("|")) for row in text.split("\n")}) == 1
        text.encode()


def assert_drawn(folder, records):
    """That the records, read from files, cost no figure or table of good ones, nor a word; returns what was read."""
    results = Results(folder)
    for record in records:
        results.write(record)
    loaded, lines = said(results.load)
    assert len(loaded) == len(records) and lines == []
    frame, lines = said(tidy, [*good(), *loaded])
    assert all(text.startswith("skipped, ") for text in lines) and len(lines) <= 1
    # Those that read such records at all.
    benches = {record.config["bench"]["name"] for record in records}
    entries = {
        name: entry for name, entry in {**FIGURES, **TABLES}.items() if not entry.needs or benches & {*entry.needs}
    }
    done, lines = said(lambda: dict(made(frame, entries, lambda name, one: "made")))
    assert done == dict.fromkeys(entries, "made") and lines == []
    assert main(["table", "--results", str(folder)]) == 0
    return loaded, frame


def test_figures_with_all_texts_can_be_written(results):
    for kind in TEXTS:
        for record in strange(kind)[:3]:
            Store(results).write(record)
    paths, lines = said(analysis.figures, results)
    assert len(paths) == 2 * len(FIGURES)
    assert not any(text.startswith("warning: ") for text in lines)
    for path in paths:
        if path.suffix == ".svg":
            xml.etree.ElementTree.parse(path)


def test_a_dollar_in_a_label_is_drawn_as_one(tmp_path):
    for record in strange("mathtext of a file"):
        Store(tmp_path).write(record)
    assert analysis.figures(tmp_path)
    svg = (tmp_path / "figures" / "memory.svg").read_text()
    assert "<!-- v$_{$.yaml -->" in svg


@pytest.mark.parametrize("what", ["file", "dangling", "loop", "device"])
@pytest.mark.parametrize("folder", ["records", "samples"])
def test_a_folder_that_is_none_is_one_line(what, folder, tmp_path, capsys):
    path = tmp_path / folder
    if what == "file":
        path.write_text("a")
    else:
        path.symlink_to({"dangling": "/nowhere/at/all", "loop": path, "device": "/dev/zero"}[what])
    with pytest.raises(NotADirectoryError):
        Store(tmp_path).load()
    assert main(["figures", "--results", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(path) in error


# --- the mirror -----------------------------------------------------------------------------------------


def test_the_mirror_holds_all_that_can_be_read(results):
    from mlflow import MlflowClient

    odd = [
        *list(UNUSABLE.values())[::6],
        *list(EXTREME.values())[::3],
        *(strange(kind)[number % 8] for number, kind in enumerate(TEXTS)),
    ]
    for record in odd:
        Store(results).write(record)
    records, _ = said(Store(results).load)
    assert len(records) == len(good()) + len(odd)
    mirror = Mirror(results)
    assert mirror.sync(records) == len(records) and mirror.sync(records) == 0
    mirror.summary("1" * 16, records, [], table(records))
    client = MlflowClient(mirror.uri)
    experiment = client.get_experiment_by_name("attention-zoo").experiment_id
    runs = client.search_runs([experiment], "tags.kind = 'cell'", max_results=5000)
    assert {run.data.tags["record_id"] for run in runs} == {record.record_id for record in records}
    assert {run.info.status for run in runs} <= {"FINISHED", "FAILED", "KILLED"}
    unusable_ids = {record.record_id for record in UNUSABLE.values()}
    for run in runs:
        if run.data.tags["record_id"] in unusable_ids:
            assert "measurements are not those of" in run.data.tags["reason"] and not run.data.metrics


def test_what_mlflow_refuses_is_named_and_costs_no_other(tmp_path, monkeypatch, capsys):
    from mlflow.entities import Metric

    import bench.tracking.mirror as module

    local.create(tmp_path / "mlflow.db", "file:///nowhere")
    capsys.readouterr()
    records = good()
    refused = records[1]
    metrics = module._metrics
    monkeypatch.setattr(
        module,
        "_metrics",
        lambda record, told: [Metric("a*b\n", 1.0, -5, 0)] if record is refused else metrics(record, told),
    )
    mirror = Mirror(tmp_path)
    assert mirror.sync(records) == len(records) - 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith(f"warning: MLflow mirror: {refused.file_name}: left out, ")
    monkeypatch.setattr(module, "_metrics", metrics)
    assert mirror.sync(records) == 1


# --- archives ---------------------------------------------------------------------------------------------


def test_odd_records_are_not_packed_and_are_named(results, tmp_path_factory, capsys):
    for kind in UNREADABLE:
        spoil(Store(results), kind)
    linked = next((results / "records").glob("*.json"))
    Path(linked.rename(results / "elsewhere")).touch()
    linked.symlink_to(results / "elsewhere")
    home = tmp_path_factory.mktemp("home")
    assert archive.main(["pack", str(home / "a.tgz"), "--results", str(results)]) == 0
    lines = capsys.readouterr().err.split("\n")[:-1]
    assert len(lines) == len(UNREADABLE)
    assert_plain(lines)
    assert archive.main(["unpack", str(home / "a.tgz"), "--results", str(home / "runs")]) == 0
    loaded, lines = said(Store(home / "runs").load)
    assert lines == [] and {record.record_id for record in loaded} == {record.record_id for record in good()}


@pytest.mark.parametrize("kind", [kind for kind in UNREADABLE if "10 GB" not in kind and "200 MB" not in kind])
def test_an_archive_of_an_odd_record_is_refused_in_one_line_and_nothing_is_written(kind, tmp_path, capsys):
    import tarfile

    store = Store(tmp_path / "runs")
    store.write(base("a good one"))
    spoil(store, kind)
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as tar:
        for folder in ("samples", "records"):
            for path in sorted((store.root / folder).iterdir()):
                tar.add(path, f"{folder}/{path.name}", recursive=False)
    assert archive.main(["unpack", str(tmp_path / "a.tgz"), "--results", str(tmp_path / "home")]) == 2
    lines = capsys.readouterr().err.split("\n")[:-1]
    assert len(lines) == 1 and lines[0].startswith("error: ")
    assert_plain(lines)
    assert not (tmp_path / "home").exists()
