"""Results folders that share a server: each writes, replaces and ends its own runs, and no other's."""

import base64
import json
import re
import shutil
import zlib

import pytest
from mlflow import MlflowClient
from test_tracking import SWEEP, a_record

from bench.execution.locks import hold
from bench.measures.progress import Point
from bench.records.own import identity
from bench.tracking.mirror import Mirror

POINTS = {"train_loss": Point(10, 2.0)}


@pytest.fixture
def server(tmp_path, empty_database):
    return MlflowClient(f"sqlite:///{shutil.copy(empty_database, tmp_path / 'shared.db')}")


@pytest.fixture
def mirrors(tmp_path, server):
    """Of two folders."""
    for name in "ab":
        (tmp_path / name).mkdir()
    return [Mirror(tmp_path / name, uri=server.tracking_uri) for name in "ab"]


def runs(server, query="", **changes):
    experiment = server.get_experiment_by_name("attention-zoo").experiment_id
    return {run.info.run_id: run for run in server.search_runs([experiment], query, **changes)}


def seen(server, query=""):
    return {run_id: (run.info.status, run.data.tags) for run_id, run in runs(server, query).items()}


def of_the_same_plan():
    """What two folders measured of one plan."""
    cells = [dict(cell_id=f"{number}" * 64, seq_len=512 << number) for number in range(2)]
    return [[a_record(10 * folder + number, **cell) for number, cell in enumerate(cells)] for folder in (1, 2)]


def test_two_folders_that_measured_the_same_plan_have_their_runs_side_by_side(mirrors, server):
    records = of_the_same_plan()
    found = []
    for mirror, own in zip(mirrors, records, strict=True):
        assert mirror.complete(own) == 2
        found.append(seen(server, f"tags.folder = '{identity(mirror.results_dir)}'"))
    assert seen(server) == found[0] | found[1] and not found[0].keys() & found[1].keys()
    for of_folder, own in zip(found, records, strict=True):
        tags = [tags for _, tags in of_folder.values()]
        assert sorted(one["kind"] for one in tags) == ["cell", "cell", "comparison", "curve", "summary"]
        assert {one["record_id"] for one in tags if "record_id" in one} == {one.record_id for one in own}
        (summary,) = (run_id for run_id, (_, one) in of_folder.items() if one["kind"] == "summary")
        assert [one["mlflow.parentRunId"] for one in tags if one["kind"] in ("cell", "curve")] == [summary] * 3
    for mirror, own in zip(mirrors, records, strict=True):
        assert mirror.complete(own) == 0
    assert seen(server) == found[0] | found[1]


def test_what_a_folder_writes_again_or_supersedes_is_its_own(mirrors, server):
    first, second = of_the_same_plan()
    for mirror, own in zip(mirrors, (first, second), strict=True):
        mirror.complete(own)
    others = f"tags.folder = '{identity(mirrors[1].results_dir)}'"
    before = seen(server, others)
    again = a_record(30, cell_id=first[0].cell_id, attempt=2, seq_len=512)
    mirrors[0].sync([first[0], again])
    mirrors[0].summary(SWEEP, [*first, again], [], "another table")
    mirrors[0].complete([*first, again])
    assert seen(server, others) == before
    (summary,) = seen(server, f"tags.kind = 'summary' AND tags.folder = '{identity(mirrors[0].results_dir)}'")
    cells = runs(server, f"tags.kind = 'cell' AND tags.mlflow.parentRunId = '{summary}'").values()
    assert {run.data.tags["record_id"]: run.data.tags["superseded"] for run in cells} == {
        **{first[0].record_id: "true", again.record_id: "false", first[1].record_id: "false"}
    }


def test_records_that_two_folders_hold_are_runs_of_each_once(mirrors, server):
    """As after they were unpacked from an archive."""
    records, _ = of_the_same_plan()
    assert [mirror.complete(records) for mirror in mirrors + mirrors] == [2, 2, 0, 0]
    assert len(runs(server, "tags.kind = 'cell'")) == 4


def test_a_view_of_a_sweep_shows_the_lines_of_one_folder(mirrors, server):
    for mirror, own in zip(mirrors, of_the_same_plan(), strict=True):
        mirror.complete(own)
    tags, start = server.get_experiment_by_name("attention-zoo").tags, "mlflow.sharedViewState."
    packed = {key.removeprefix(start): text.removeprefix("deflate;") for key, text in tags.items() if start in key}
    for summary in runs(server, "tags.kind = 'summary'").values():
        (name,) = re.findall("viewStateShareKey=([^&]*)", summary.data.tags["mlflow.note.content"])
        view = json.loads(zlib.decompress(base64.b64decode(packed[name])))
        (line,) = runs(server, view["searchFilter"]).values()
        assert line.data.tags["mlflow.parentRunId"] == summary.info.run_id


def test_a_folder_that_has_moved_knows_its_runs(mirrors, server, tmp_path):
    records, _ = of_the_same_plan()
    mirrors[0].complete(records)
    before = seen(server)
    shutil.move(tmp_path / "a", tmp_path / "moved")
    assert Mirror(tmp_path / "moved", uri=server.tracking_uri).complete(records) == 0
    assert seen(server) == before


@pytest.mark.parametrize("damaged", [b"", b"'; drop\n", b"\xff" * 17])
def test_a_folder_whose_mark_is_damaged_gets_another(tmp_path, damaged):
    first = identity(tmp_path)
    assert identity(tmp_path) == first
    (tmp_path / "mlflow.folder").write_bytes(damaged)
    assert identity(tmp_path) == identity(tmp_path) != first


def without_tags(client):
    """Make all runs those of a version that did not write the tag."""
    for run_id in runs(client):
        client.delete_tag(run_id, "folder")
    return seen(client)


def test_on_a_server_runs_of_older_versions_stay_and_are_written_once_more(mirrors, server):
    records, _ = of_the_same_plan()
    mirrors[0].complete(records)
    mirrors[0].follow("9" * 64, records[0].config, POINTS)
    old = without_tags(server)
    assert [mirrors[0].complete(records) for _ in range(2)] == [2, 0]
    now = seen(server)
    assert {run_id: now[run_id] for run_id in old} == old and len(now) == 2 * len(old) - 1


def test_in_a_folders_own_store_runs_of_older_versions_are_its_own(mirror):
    records, _ = of_the_same_plan()
    mirror.complete(records)
    client = MlflowClient(mirror.uri)
    old = without_tags(client)
    assert mirror.complete(records) == 0
    assert seen(client) == old


# --- curves of cells that are being measured -------------------------------------------------------------


def test_a_cell_that_two_folders_train_has_curves_of_each(mirrors, server):
    records = [of_folder[0] for of_folder in of_the_same_plan()]
    for mirror, record in zip(mirrors, records, strict=True):
        mirror.follow(record.cell_id, record.config, POINTS)
    live = seen(server, "tags.kind = 'live'")
    assert len(live) == 2
    mirrors[0].sync(records[:1])
    (left,) = runs(server, "tags.kind = 'live'").values()
    assert left.data.tags["folder"] == identity(mirrors[1].results_dir) and left.info.status == "RUNNING"


def test_a_training_that_was_killed_ends_once_nobody_measures_its_cell(mirrors, server):
    records, _ = of_the_same_plan()
    cell_id = "9" * 64
    for mirror in mirrors:
        mirror.follow(cell_id, records[0].config, POINTS)
    with hold(mirrors[0].results_dir / "locks" / f"{cell_id[:16]}.lock", "a training"):
        mirrors[0].complete(records)
        assert {run.info.status for run in runs(server, "tags.kind = 'live'").values()} == {"RUNNING"}
    mirrors[0].complete(records)
    found = {run.data.tags["folder"]: run.info.status for run in runs(server, "tags.kind = 'live'").values()}
    one, other = (identity(mirror.results_dir) for mirror in mirrors)
    assert found == {one: "KILLED", other: "RUNNING"}
    mirrors[0].follow(cell_id, records[0].config, POINTS)
    assert {run.info.status for run in runs(server, "tags.kind = 'live'").values()} == {"RUNNING"}
