"""A tracking server that is not there, or is no good, costs seconds, once, and one line; never a cell."""

import os
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from synthetic_everything import everything

from bench.common.errors import ConfigError
from bench.plan.config import Config
from bench.tracking import tracker as tracker_module
from bench.tracking.mirror import Mirror
from bench.tracking.tracker import PATIENCE, Tracker

ERROR_500 = b"HTTP/1.1 500 Oops\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"


@pytest.fixture(autouse=True)
def nobody_has_set_anything(monkeypatch):
    for name in PATIENCE:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)


def tracker(results_dir, uri):
    tracking = {"name": "mlflow", "experiment": "x", "uri": uri}
    return Tracker(Config({}, {}, {}, tracking, results_dir=str(results_dir)))


@contextmanager
def server(answer):
    """Accepts everybody; answers each with `answer`, or not at all. Yields its address and who came."""
    came = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                came.append(connection)
                if answer:
                    connection.recv(65536)
                    connection.sendall(answer)
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", came
    for connection in came:
        connection.close()


@pytest.mark.parametrize(
    "answer", [None, b"", ERROR_500, b"nonsense\r\n\r\n"], ids=["gone", "silent", "500", "nonsense"]
)
def test_a_server_that_is_no_good_is_given_up_once(answer, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(PATIENCE, "MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    records = list(everything())[:6]
    with server(answer) as (address, came):
        mirror = tracker(tmp_path, "http://127.0.0.1:1" if answer is None else address)
        mirror.mirror.load()  # imports MLflow
        began = time.monotonic()
        for some in ([], *([record] for record in records[:4])):
            mirror.sync(some)
        # The silent one is given up after two requests of 1 s.
        assert time.monotonic() - began < 1.5, "the cells wait for nobody"
        mirror.finish("sweep", records[:4], [])
        assert time.monotonic() - began < 30
        contacts = len(came)
        mirror.sync(records[4:])
        mirror.finish("sweep", records, [])
        assert len(came) == contacts
    printed = capsys.readouterr().err
    warnings = [line for line in printed.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1 and "the records are safe" in warnings[0]


def test_what_does_not_get_on_is_left_to_the_next_sweep(tmp_path, monkeypatch, capsys):
    for name in ("FINISH_S", "SILENT_S", "LOCAL_WINDOW_S"):
        monkeypatch.setattr(tracker_module, name, 0.1)
    never = threading.Event()
    monkeypatch.setattr(Mirror, "create", lambda self: never.wait(60))
    mirror = tracker(tmp_path, None)
    mirror.sync([])
    began = time.monotonic()
    mirror.sync(list(everything())[:1])
    mirror.finish("sweep", list(everything())[:1], [])
    assert time.monotonic() - began < 5
    assert "no answer for 1 s; the records are safe, the same command mirrors them" in capsys.readouterr().err
    never.set()


def test_a_slow_server_is_waited_for_as_long_as_it_answers(tmp_path, monkeypatch, capsys):
    for name, seconds in {"FINISH_S": 0.4, "SILENT_S": 0.1, "LOCAL_WINDOW_S": 0.1}.items():
        monkeypatch.setattr(tracker_module, name, seconds)

    def slow(self):
        for _ in range(5):
            time.sleep(0.25)
            self.answered = time.monotonic()
        done.append(True)

    done = []
    monkeypatch.setattr(Mirror, "create", slow)
    monkeypatch.setattr(Mirror, "sync", lambda self, records: None)
    mirror = tracker(tmp_path, None)
    mirror.sync([])
    mirror.finish("sweep", list(everything())[:1], [])
    assert done and "warning" not in capsys.readouterr().err


def test_an_answer_of_the_store_is_noted(mirror):
    began = time.monotonic()
    mirror.create()
    assert began <= mirror.answered <= time.monotonic()


def test_a_local_store_has_a_record_before_the_next_cell_and_the_rest_in_the_end(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(Mirror, "create", lambda self: time.sleep(0.1))
    monkeypatch.setattr(Mirror, "sync", lambda self, records: (time.sleep(0.1), done.append(len(records))))
    mirror, records = tracker(tmp_path, None), list(everything())
    mirror.sync(records[:5])
    assert done == [], "what the cells have already is told when nothing is measured any more"
    mirror.sync(records[5:6])
    assert done == [1]
    mirror.finish("sweep", records[:1], [])
    assert done == [1, 6]


def test_what_the_user_has_set_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    tracker(tmp_path, "http://127.0.0.1:1")
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == PATIENCE["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]


def test_an_address_that_a_store_can_have_is_taken(tmp_path):
    """Others: `hostile.py`."""
    for uri in ("http://h:80", "https://h/x", "sqlite:///{}/x.db", "file:///{}", "postgresql+psycopg2://h/x"):
        assert tracker(tmp_path, uri.format(tmp_path)).mirror is not None


@pytest.mark.parametrize("name", ["plan?v2", "a%20b"])
def test_a_folder_whose_name_would_end_or_change_a_database_s_address_is_refused(tmp_path, name):
    """Else MLflow's tables are written into `plan`, or beside the folder."""
    (tmp_path / "plan").write_text("somebody's")
    with pytest.raises(ConfigError, match="MLflow's database cannot be at a path with"):
        tracker(tmp_path / name, None)
    assert (tmp_path / "plan").read_text() == "somebody's" and {path.name for path in tmp_path.iterdir()} == {"plan"}
