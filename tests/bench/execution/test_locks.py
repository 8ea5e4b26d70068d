"""Lock files: one holder at a time; whoever dies makes room; who holds one can be seen without waiting."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import threading
from datetime import UTC, datetime

import pytest
from command import wait_for

from bench.common.errors import ConfigError
from bench.execution.device_locks import lock_folder
from bench.execution.locks import hold, holder
from bench.execution.results_folder import prepare_folder


def test_a_lock_is_free_when_its_holder_ends_well_though_another_process_has_inherited_it(tmp_path, capsys):
    path = tmp_path / "lock"
    with hold(path, "it") as held:
        heir = subprocess.Popen(["sleep", "600"], pass_fds=(held,))
    with hold(path, "it"):
        assert heir.poll() is None and capsys.readouterr().err == ""
    heir.kill()
    heir.wait()


def test_who_holds_a_lock_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    path = tmp_path / "lock"
    assert holder(path) is None
    with hold(path, "something long" * 10):
        pass
    assert holder(path) is None
    with hold(path, "latency"):
        found = holder(path)
        assert holder(path) == found  # nobody has taken it meanwhile
    started = datetime.fromisoformat(found.pop("started"))
    assert started.utcoffset().total_seconds() == 0 and abs((datetime.now(UTC) - started).total_seconds()) < 10
    job = {"scheduler": "slurm", "host": socket.gethostname(), "id": "12", "task": "3"}
    assert found == {"host": socket.gethostname(), "pid": os.getpid(), "what": "latency", "job": job}
    assert holder(path) is None
    with hold(path, "latency", shared=True):
        assert holder(path) is None


@pytest.fixture
def waiting(tmp_path, monkeypatch):
    """Starts somebody who waits for the lock and has said so; gives what was said, and events to enter and leave."""
    said, entered, leave = [], threading.Event(), threading.Event()
    monkeypatch.setattr("bench.execution.locks.SILENT_S", 0.05)
    monkeypatch.setattr("bench.execution.locks.say", said.append)

    def wait():
        with hold(tmp_path / "lock", "it"):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=wait)

    def start():
        thread.start()
        wait_for(lambda: said)
        return said, entered

    yield start
    leave.set()
    thread.join()


@pytest.mark.parametrize("text", ["", "1234", "{", "[" * 4000, '{"pid": null}', json.dumps({"what": "\x1b[31m\n"})])
def test_whatever_stands_in_a_lock_file_is_one_line(tmp_path, text, waiting):
    with hold(tmp_path / "lock", "it"):
        (tmp_path / "lock").write_text(text)
        assert isinstance(holder(tmp_path / "lock"), dict)
        said, _ = waiting()
    assert said[0].startswith("it: waiting for ") and said[0].isprintable()


def test_a_lock_whose_file_was_removed_keeps_out_who_waited_for_it(tmp_path, waiting):
    with hold(tmp_path / "lock", "it"):
        _, entered = waiting()
        (tmp_path / "lock").unlink()
    assert entered.wait(10)
    assert holder(tmp_path / "lock") is not None  # not the lock on the file that is gone


def test_a_file_system_without_locks_is_refused_in_one_line(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setenv("ATTENTION_ZOO_SLOTS", str(tmp_path / "slots"))
    said = f"{os.strerror(errno.ENOLCK)}; must be a folder"
    with pytest.raises(ConfigError, match=rf"^results_dir='.+': {said}"):
        prepare_folder(str(tmp_path / "runs"))
    with pytest.raises(ConfigError, match=rf"^ATTENTION_ZOO_SLOTS=.+: {said}"):
        lock_folder()
