"""The curves of a training run: in the mirror while it lasts, and with its record afterwards."""

import json
import threading

import pytest
from mlflow import MlflowClient
from synthetic_records import train
from test_tracker import tracker as a_tracker

from bench.measures.progress import Point, Progress
from bench.tracking import tracker
from bench.tracking.mirror import Mirror
from bench.tracking.runs import MAX_POINTS


@pytest.fixture
def record(rng):
    return train("softmax", 16, 0, rng)


def runs(mirror, kind):
    client = MlflowClient(mirror.uri)
    return client, client.search_runs([mirror.create()], f"tags.kind = '{kind}'")


def curve(client, run, name):
    history = client.get_metric_history(run.info.run_id, f"curve/{name}")
    return sorted((metric.step, metric.value) for metric in history)


def test_points_are_there_while_it_trains_and_make_room_for_the_record(mirror, record):
    for step, loss in ((10, 2.0), (20, 1.5), (20, 1.5)):
        mirror.follow(record.cell_id, record.config, {"train_loss": Point(step, loss)})
    client, (live,) = runs(mirror, "live")
    assert live.info.status == "RUNNING" and live.data.params["model.name"] == "encoder"
    assert curve(client, live, "train_loss") == [(10, 2.0), (20, 1.5)]
    mirror.sync([record])
    assert not runs(mirror, "live")[1]
    client, (cell,) = runs(mirror, "cell")
    found, measured = curve(client, cell, "train_loss"), record.measurements["curve"]["train_loss"]
    assert found[-1] == (len(measured), measured[-1]) and MAX_POINTS / 2 < len(found) <= MAX_POINTS
    assert all(measured[step - 1] == value for step, value in found)
    losses = [(one["step"], one["loss"]) for one in record.measurements["validation"]]
    assert curve(client, cell, "validation_loss") == losses


def test_of_a_run_that_failed_the_curve_stays_and_the_next_attempt_adds_to_it(mirror, rng):
    failed = train("softmax", 16, 0, rng, status="timeout")
    mirror.follow(failed.cell_id, failed.config, {"train_loss": Point(10, 2.0)})
    mirror.sync([failed])
    client, (live,) = runs(mirror, "live")
    assert live.info.status == "FAILED"
    mirror.follow(failed.cell_id, failed.config, {"train_loss": Point(20, 1.0)})
    client, (live,) = runs(mirror, "live")
    assert live.info.status == "RUNNING" and curve(client, live, "train_loss") == [(10, 2.0), (20, 1.0)]


def test_the_tracker_does_not_write_at_every_word(tmp_path, record, monkeypatch):
    followed = []
    monkeypatch.setattr(Mirror, "follow", lambda self, *given: followed.append(given))
    one = a_tracker(tmp_path, None)
    clock = iter([0.0, 1.0, 1.5, 4.9, 6.1])
    monkeypatch.setattr(tracker.time, "monotonic", lambda: next(clock))
    one.follow(record, Progress("1/2"))
    for step in (1, 2, 3, 4):
        one.follow(record, Progress("1/2", {"train_loss": Point(step, 1.0)}))
        assert one._background.wait(10)
    assert [points["train_loss"].step for _, _, points in followed] == [1, 4]


def test_a_slow_server_gets_the_newest_points_only_and_none_after_the_record(tmp_path, record, monkeypatch):
    told, free = [], threading.Event()
    monkeypatch.setattr(Mirror, "load", lambda self: None)
    monkeypatch.setattr(Mirror, "create", lambda self: free.wait(10))
    monkeypatch.setattr(Mirror, "follow", lambda self, *given: told.append(given[2]["train_loss"].step))
    monkeypatch.setattr(Mirror, "sync", lambda self, records: told.append("record"))
    one = a_tracker(tmp_path, "http://127.0.0.1:1")
    one.sync([])
    for step in (1, 2, 3):
        one.follow(record, Progress("1/2", {"train_loss": Point(step, 1.0)}))
    free.set()
    assert one._background.wait(10) and told == [3]
    free.clear()
    one._background.add(lambda: free.wait(10))
    one._followed.clear()
    one.follow(record, Progress("1/2", {"train_loss": Point(4, 1.0)}))
    one.sync([record])
    free.set()
    assert one._background.wait(10) and told == [3, "record"]


def test_progress_comes_back_as_it_was_told_and_halves_of_it_do_not():
    told = Progress("3/10 loss 1", {"train_loss": Point(3, 0.25)})
    assert Progress.decode(told.encode()) == told
    odd = Progress("x", {"train_loss": Point(1, float("nan"))})
    assert Progress.decode(odd.encode()).curves == {}
    for text in ("", told.encode()[:-3], "7", '["x", 7]', json.dumps(["x", {"a": 3}])):
        with pytest.raises((ValueError, TypeError, AttributeError)):
            Progress.decode(text)
