"""One odd record never stops the others: not a sweep that goes on, not a table, the mirror or an archive."""

import dataclasses
from pathlib import Path

import pytest
from odd_records import (
    TEXTS,
    UNREADABLE,
    assert_plain,
    base,
    extreme,
    one_of_each,
    renamed,
    said,
    spoil,
    strange,
    unusable,
)
from synthetic_records import written

from analysis.__main__ import main
from analysis.frame import tidy
from bench.records import archive
from bench.records.store import Store, latest
from bench.records.summary import Results
from bench.records.table import crossovers, line, table
from bench.tracking.mirror import Mirror

UNUSABLE, EXTREME = unusable(), extreme()


def messages(capsys):
    """The lines on stderr, all of them fit to be printed."""
    lines = capsys.readouterr().err.split("\n")[:-1]
    assert_plain(lines)
    return lines


def test_what_is_no_record_is_one_line_and_costs_no_other(tmp_path):
    store, neighbour = Store(tmp_path), base("a good one")
    store.write(neighbour)
    messages = {kind: spoil(store, kind) for kind in UNREADABLE}
    loaded, lines = said(store.load)
    assert loaded == [neighbour] and len(lines) == len(UNREADABLE)
    assert_plain(lines)
    for kind, message in messages.items():
        name = "" if "its name" in kind or kind == "another name" else base(kind).file_name
        reasons = [text.rpartition(": skipped, ")[2] for text in lines if f"{name}: skipped, " in text]
        assert any(message in reason for reason in reasons), (kind, message)
    assert all(text.startswith(str(store.records_dir)) for text in lines)


def test_measurements_that_say_nothing_cost_no_other():
    neighbour, odd = base("a good one"), list(UNUSABLE.values())
    frame, lines = said(tidy, [*odd, neighbour])
    assert set(frame["cell_id"]) == {neighbour.cell_id} and len(lines) == len(odd)
    assert all(any(record.file_name in text for text in lines) for record in odd)
    text, silence = said(table, [*odd, neighbour])
    assert silence == [] and text.count("\n") == len(odd) + 2
    assert crossovers([*odd, neighbour]) == [] and all(record.file_name in line(record) for record in odd)
    assert_plain([*lines, *map(line, odd)])


def test_what_claims_to_have_measured_what_cannot_be_does_not_stand_before_a_good_one(tmp_path):
    results, odd = Results(tmp_path), dict([*UNUSABLE.items()][::5])
    for kind, record in odd.items():
        results.write(dataclasses.replace(record, attempt=2, ended="2099-01-01T00:00:00+00:00"))
        results.write(dataclasses.replace(base(f"good beside {kind}"), cell_id=record.cell_id))
    records, lines = said(results.load)
    assert len(lines) == len(odd) and all(": skipped, " in text for text in lines)
    assert len(latest(records)) == len(odd) and {record.attempt for record in records} == {1}
    assert_plain(lines)


def test_what_a_benchmark_that_nobody_knows_has_measured_is_read(tmp_path):
    """Whatever it calls its numbers, and whether or not it has any."""
    measured = {"latency": -1.0, "samples": [-1.0, 0.0], "loss": -5, "peak_bytes": -1}
    config = base("unknown").config | {"bench": {"name": "of_a_plugin"}}
    records = [
        dataclasses.replace(renamed(base(str(number)), str(number)), config=config, measurements=measurements)
        for number, measurements in enumerate((measured, {}))
    ]
    written(tmp_path, records)
    loaded, lines = said(Results(tmp_path).load)
    assert lines == [] and {record.record_id for record in loaded} == {record.record_id for record in records}


def test_a_plugin_that_is_gone_costs_only_the_records_that_it_must_read(tmp_path, monkeypatch):
    config = base("unknown").config | {"bench": {"name": "of_a_plugin"}}
    good, failed, measured = (renamed(base(kind), kind) for kind in ("good", "failed", "measured"))
    failed = dataclasses.replace(failed, config=config, status="error", reason="a plugin's", measurements={})
    written(tmp_path, [good, failed, dataclasses.replace(measured, config=config)])
    monkeypatch.setenv("ATTENTION_ZOO_PLUGINS", "package_that_is_gone")
    loaded, (text,) = said(Results(tmp_path).load)
    assert {record.record_id for record in loaded} == {good.record_id, failed.record_id}
    assert "package_that_is_gone" in text


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_of_all_kinds_are_shown_as_they_are(kind, tmp_path):
    records = strange(kind)
    written(tmp_path, records)
    # In memory too, where nobody has read them.
    for each in (records, Store(tmp_path).load()):
        text = table(each)
        assert text.count("\n") == len(each) + 1
        assert_plain(map(line, each))
        assert text.replace("\n", "").isprintable()
        assert len({len(row.replace("\\|", "").split("|")) for row in text.split("\n")}) == 1
        text.encode()


@pytest.mark.parametrize(("folder", "target"), [("records", None), ("records", "/dev/zero"), ("samples", "/nowhere")])
def test_a_folder_that_is_none_is_one_line(folder, target, tmp_path, capsys):
    path = tmp_path / folder
    path.symlink_to(target) if target else path.write_text("a")
    with pytest.raises(NotADirectoryError):
        Store(tmp_path).load()
    assert main(["figures", "--results", str(tmp_path)]) == 1
    (error,) = messages(capsys)
    assert str(path) in error


def test_the_mirror_holds_all_that_can_be_read(tmp_path):
    from mlflow import MlflowClient

    odd = [*list(UNUSABLE.values())[::16], *list(EXTREME.values())[::8]]
    odd += [strange(kind)[number % 8] for number, kind in enumerate(TEXTS) if number % 3 == 0]
    written(tmp_path, odd)
    records, _ = said(Store(tmp_path).load)
    assert len(records) == len(odd)
    mirror = Mirror(tmp_path)
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


def test_odd_records_are_not_packed_and_are_named(tmp_path, capsys):
    results, fine = tmp_path / "runs", one_of_each(5).values()
    written(results, fine)
    some = [*UNREADABLE][::6]
    for kind in some:
        spoil(Store(results), kind)
    linked = next((results / "records").glob("*.json"))
    Path(linked.rename(results / "elsewhere")).touch()
    linked.symlink_to(results / "elsewhere")
    assert archive.main(["pack", str(tmp_path / "a.tgz"), "--results", str(results)]) == 0
    assert len(messages(capsys)) == len(some)
    assert archive.main(["unpack", str(tmp_path / "a.tgz"), "--results", str(tmp_path / "home")]) == 0
    loaded, lines = said(Store(tmp_path / "home").load)
    assert lines == [] and {record.record_id for record in loaded} == {record.record_id for record in fine}
