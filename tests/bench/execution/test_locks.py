"""Lock files: one holder at a time; whoever dies makes room; who holds one can be seen without waiting."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime

import pytest
from command import ROOT, environment, wait_for

from bench.common.errors import ConfigError
from bench.execution.device_locks import lock_folder
from bench.execution.locks import hold, holder
from bench.execution.results_folder import prepare_folder

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from bench.execution.locks import hold
with hold(Path(sys.argv[1]), "it", print) as held:
    heir = subprocess.Popen(["sleep", sys.argv[2]], pass_fds=(held,))
    print(heir.pid, flush=True)
    if sys.argv[3] == "stay":
        time.sleep(600)
"""


@pytest.mark.commands
@pytest.mark.parametrize("ends", ["killed", "well"])
def test_a_lock_is_free_when_its_holder_ends_well_or_what_a_killed_one_measured_is_gone(tmp_path, ends):
    path, began = tmp_path / "lock", time.monotonic()
    words = [str(path), *(["3", "stay"] if ends == "killed" else ["600", "go"])]
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, *words], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    )
    heir, said = int(process.stdout.readline()), []
    if ends == "killed":
        process.kill()
    process.wait()
    ended = time.monotonic()
    with hold(path, "it", said.append):
        assert ends == "well" or time.monotonic() - began > 3  # the heir slept that long
    if ends == "well":
        assert said == []
        os.kill(heir, signal.SIGKILL)
    elif time.monotonic() - ended > 1.5:
        assert said == [f"it: waiting for it (process {process.pid})"]


def test_those_who_share_a_lock_hold_it_together_and_keep_out_who_does_not(tmp_path):
    path, order, inside, most = tmp_path / "lock", [], [], []

    def hold_alone():
        with hold(path, "alone", print):
            order.append("alone")
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    alone = [threading.Thread(target=hold_alone) for _ in range(5)]
    with hold(path, "one", print, shared=True), hold(path, "another", print, shared=True):
        for thread in alone:
            thread.start()
        time.sleep(0.2)
        order.append("shared")
    for thread in alone:
        thread.join()
    assert order == ["shared", *["alone"] * 5] and most == [1] * 5


def test_who_holds_a_lock_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    path = tmp_path / "lock"
    assert holder(path) is None
    with hold(path, "something long" * 10, print):
        pass
    assert holder(path) is None
    with hold(path, "latency", print):
        found = holder(path)
        assert holder(path) == found  # nobody has taken it meanwhile
    started = datetime.fromisoformat(found.pop("started"))
    assert started.utcoffset().total_seconds() == 0 and abs((datetime.now(UTC) - started).total_seconds()) < 10
    job = {"scheduler": "slurm", "host": socket.gethostname(), "id": "12", "task": "3"}
    assert found == {"host": socket.gethostname(), "pid": os.getpid(), "what": "latency", "job": job}
    assert holder(path) is None
    with hold(path, "latency", print, shared=True):
        assert holder(path) is None


@pytest.fixture
def waiting(tmp_path, monkeypatch):
    """Starts somebody who waits for the lock and has said so; gives what was said, and events to enter and leave."""
    monkeypatch.setattr("bench.execution.locks.SILENT_S", 0.05)
    said, entered, leave = [], threading.Event(), threading.Event()

    def wait():
        with hold(tmp_path / "lock", "it", said.append):
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
    with hold(tmp_path / "lock", "it", print):
        (tmp_path / "lock").write_text(text)
        assert isinstance(holder(tmp_path / "lock"), dict)
        said, _ = waiting()
    assert said[0].startswith("it: waiting for ") and said[0].isprintable()


def test_a_lock_whose_file_was_removed_keeps_out_who_waited_for_it(tmp_path, waiting):
    with hold(tmp_path / "lock", "it", print):
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
