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
from command import ROOT, environment

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


def start_holder(path, *words):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), *words],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, int(process.stdout.readline())


@pytest.mark.commands
def test_a_killed_holder_makes_room_when_what_it_measured_is_gone(tmp_path):
    path = tmp_path / "lock"
    began = time.monotonic()
    process, _ = start_holder(path, "3", "stay")
    said = []
    process.kill()
    process.wait()
    killed = time.monotonic()
    with hold(path, "it", said.append):
        assert time.monotonic() - began > 3  # the heir slept that long
    if time.monotonic() - killed > 1.5:
        assert said == [f"it: waiting for it (process {process.pid})"]


@pytest.mark.commands
def test_a_holder_that_ends_well_leaves_nothing_held(tmp_path):
    process, heir = start_holder(tmp_path / "lock", "600", "go")
    process.wait()
    said = []
    try:
        with hold(tmp_path / "lock", "it", said.append):
            assert said == []
    finally:
        os.kill(heir, signal.SIGKILL)


def test_threads_exclude_each_other(tmp_path):
    inside, most = [], []

    def work():
        with hold(tmp_path / "lock", "it", print):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 5


def test_those_who_share_a_lock_hold_it_together_and_keep_out_who_does_not(tmp_path):
    path, order = tmp_path / "lock", []

    def hold_alone():
        with hold(path, "alone", print):
            order.append("alone")

    alone = threading.Thread(target=hold_alone)
    with hold(path, "one", print, shared=True), hold(path, "another", print, shared=True):
        alone.start()
        time.sleep(0.2)
        order.append("shared")
    alone.join()
    assert order == ["shared", "alone"]


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
    assert started.tzinfo is UTC or started.utcoffset().total_seconds() == 0
    assert abs((datetime.now(UTC) - started).total_seconds()) < 10
    assert found == {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "what": "latency",
        "job": {"scheduler": "slurm", "host": socket.gethostname(), "id": "12", "task": "3"},
    }
    assert holder(path) is None
    with hold(path, "latency", print, shared=True):
        assert holder(path) is None


@pytest.mark.parametrize("text", ["", "1234", "{", "[" * 4000, '{"pid": null}', json.dumps({"what": "\x1b[31m\n"})])
def test_whatever_stands_in_a_lock_file_is_one_line(tmp_path, text, monkeypatch):
    monkeypatch.setattr("bench.execution.locks.SILENT_S", 0.05)
    path, said = tmp_path / "lock", []

    def wait():
        with hold(path, "it", said.append):
            pass

    with hold(path, "it", print):
        path.write_text(text)
        assert isinstance(holder(path), dict)
        waiting = threading.Thread(target=wait)
        waiting.start()
        while not said:
            time.sleep(0.01)
    waiting.join()
    assert said[0].startswith("it: waiting for ") and said[0].isprintable()


def test_a_lock_whose_file_was_removed_keeps_out_who_waited_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.execution.locks.SILENT_S", 0.05)
    path, said, entered, leave = tmp_path / "lock", [], threading.Event(), threading.Event()

    def wait():
        with hold(path, "it", said.append):
            entered.set()
            leave.wait(10)

    with hold(path, "it", print):
        waiting = threading.Thread(target=wait)
        waiting.start()
        while not said:
            time.sleep(0.01)
        path.unlink()
    assert entered.wait(10)
    assert holder(path) is not None  # not the lock on the file that is gone
    leave.set()
    waiting.join()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_refused_in_one_line(tmp_path, monkeypatch, number):
    def refuse(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setenv("ATTENTION_ZOO_SLOTS", str(tmp_path / "slots"))
    with pytest.raises(ConfigError, match=rf"^results_dir='.+': {os.strerror(number)}; must be a folder"):
        prepare_folder(str(tmp_path / "runs"))
    with pytest.raises(ConfigError, match=rf"^ATTENTION_ZOO_SLOTS=.+: {os.strerror(number)}; must be a folder"):
        lock_folder()
