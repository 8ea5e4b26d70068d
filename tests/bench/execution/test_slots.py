"""One cell at a time on a device, whoever started it; whoever dies makes room."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from datetime import datetime

import pytest
from command import ROOT, TINY, bench, command, environment

from bench.errors import ConfigError
from bench.execution.slots import hold, slot
from bench.records.store import Store

pytestmark = pytest.mark.commands

FAKES = {"ATTENTION_ZOO_PLUGINS": "fake_mechanisms"}
LOGGED = ["attention=v_mean", "attention.name=fake_logged", "tracking=none", *TINY]


def spans(log):
    """From the first to the last sign of life of each process that measured."""
    times = defaultdict(list)
    for line in log.read_text().splitlines():
        pid, moment = line.split()
        times[pid].append(float(moment))
    return sorted((min(moments), max(moments)) for moments in times.values())


def assert_one_at_a_time(log, count):
    measured = spans(log)
    assert len(measured) == count
    assert all(before[1] < after[0] for before, after in itertools.pairwise(measured))


def test_two_sweeps_with_folders_of_their_own_take_turns(tmp_path):
    log = tmp_path / "log"
    env = environment(FAKE_LOG=str(log), **FAKES)
    both = [
        subprocess.Popen(
            command(*LOGGED, f"seed={seeds}", f"results_dir={tmp_path / seeds[0]}"),
            cwd=ROOT,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for seeds in ("0,1", "2,3")
    ]
    assert [process.wait(200) for process in both] == [0, 0]
    assert_one_at_a_time(log, 4)


def test_sweeps_in_threads_of_one_process_take_turns(tmp_path):
    log = tmp_path / "log"
    code = """
import sys, threading
from bench import api
from bench.execution.sweep import run_sweep
sweeps = []
api._run = lambda sweep: sweeps.append(sweep)
for seed in ("0", "1", "2"):
    api.run([*sys.argv[2:], f"seed={seed}", f"results_dir={sys.argv[1]}/{seed}"])
threads = [threading.Thread(target=run_sweep, args=(sweep,)) for sweep in sweeps]
for thread in threads:
    thread.start()
"""
    arguments = [sys.executable, "-c", code, str(tmp_path), *LOGGED]
    env = environment(FAKE_LOG=str(log), **FAKES)
    result = subprocess.run(arguments, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0 and "Traceback" not in result.stderr, result.stderr
    assert [record.status for seed in "012" for record in Store(tmp_path / seed).load()] == ["ok"] * 3
    assert_one_at_a_time(log, 3)


def start_and_read_who_is_waited_for(results):
    arguments = command("attention=v_mean", "tracking=none", f"results_dir={results}", *TINY)
    process = subprocess.Popen(
        arguments,
        cwd=ROOT,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts in the background ignores Ctrl-C, these tests perhaps too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while "waiting" not in (line := process.stderr.readline()):
        assert process.poll() is None
    return process, line


def test_who_waits_says_for_whom_and_ctrl_c_ends_the_wait(tmp_path):
    with hold(slot("cpu"), "cpu", print):
        process, line = start_and_read_who_is_waited_for(tmp_path)
        assert line.strip().endswith(f"cpu: waiting for process {os.getpid()}")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert Store(tmp_path).load() == []


def test_waiting_is_no_part_of_the_measurement(tmp_path):
    with hold(slot("cpu"), "cpu", print):
        process, _ = start_and_read_who_is_waited_for(tmp_path)
        released = time.time()
    assert process.wait(120) == 0
    (record,) = Store(tmp_path).load()
    assert datetime.fromisoformat(record.started).timestamp() >= released
    assert record.machine["load_1m"] >= 0


HOLDER = """
import subprocess, sys, time
from pathlib import Path
from bench.execution.slots import hold
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


def test_a_killed_holder_makes_room_when_what_it_measured_is_gone(tmp_path):
    path = tmp_path / "lock"
    began = time.monotonic()
    holder, _ = start_holder(path, "3", "stay")
    said = []
    holder.kill()
    holder.wait()
    killed = time.monotonic()
    with hold(path, "it", said.append):
        assert time.monotonic() - began > 3  # the heir slept that long
    if time.monotonic() - killed > 1.5:
        assert said == [f"it: waiting for process {holder.pid}"]


def test_a_holder_that_ends_well_leaves_nothing_held(tmp_path):
    holder, heir = start_holder(tmp_path / "lock", "600", "go")
    holder.wait()
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


def test_every_user_may_wait(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTENTION_ZOO_SLOTS", str(tmp_path / "slots"))
    path = slot("GPU-1234")
    assert path.stat().st_mode & 0o777 == 0o666
    assert path.parent.stat().st_mode & 0o7777 == 0o1777


def test_a_lock_is_not_followed_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTENTION_ZOO_SLOTS", str(tmp_path))
    (tmp_path / "cpu.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(ConfigError, match="ATTENTION_ZOO_SLOTS"):
        slot("cpu")


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path):
    result = bench(
        "attention=v_mean", "tracking=none", f"results_dir={tmp_path}", *TINY, ATTENTION_ZOO_SLOTS="/proc/nowhere"
    )
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("error: ATTENTION_ZOO_SLOTS=/proc/nowhere: ")
