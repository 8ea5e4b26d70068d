"""One cell at a time on a device, whoever started it; whoever dies makes room."""

import contextlib
import itertools
import os
import signal
import subprocess
import threading
import time
from collections import defaultdict
from datetime import datetime
from pathlib import Path

import psutil
import pytest
from command import ROOT, TINY, bench, command, environment, family

from bench.common.errors import ConfigError
from bench.execution import device_locks
from bench.execution.device_locks import hold_device, lock_folder, memory_share, needs_quiet, pin_to_free_cores
from bench.execution.locks import holder
from bench.plan.cell import Cell
from bench.records.store import Store

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


@pytest.mark.commands
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


@pytest.mark.commands
def test_who_waits_says_for_whom_and_ctrl_c_ends_the_wait(tmp_path):
    with hold_device("cpu", alone=True, what="something", say=print):
        process, line = start_and_read_who_is_waited_for(tmp_path)
        assert line.strip().endswith(f"latency v_mean n=32: waiting for something (process {os.getpid()})")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert Store(tmp_path).load() == []


@pytest.mark.commands
def test_waiting_is_no_part_of_the_measurement(tmp_path):
    with hold_device("cpu", alone=True, what="something", say=print):
        process, _ = start_and_read_who_is_waited_for(tmp_path)
        released = time.time()
    assert process.wait(120) == 0
    (record,) = Store(tmp_path).load()
    assert datetime.fromisoformat(record.started).timestamp() >= released
    assert min(record.host_state["before"]["load"]) >= 0


def held(device_id, **options):
    """The locks that a cell holds, by name: whether it is the only one that does."""
    with hold_device(device_id, **{"alone": False, "what": "it", **options}, say=print) as descriptors:
        names = [Path(os.readlink(f"/proc/self/fd/{each}")).name.removesuffix(".lock") for each in descriptors]
        return {name: holder(lock_folder() / f"{name}.lock") is not None for name in names}


@pytest.fixture
def own_slots(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTENTION_ZOO_SLOTS", str(tmp_path / "slots"))
    return tmp_path / "slots"


def test_a_cell_holds_its_device_and_one_that_must_be_alone_the_machine(own_slots):
    assert held("GPU-1") == {"machine": False, "GPU-1": True}
    assert held("MIG-2", part_of="GPU-1") == {"machine": False, "GPU-1": False, "MIG-2": True}
    assert held("cpu", cores=[11, 2]) == {"machine": False, "core-2": True, "core-11": True}
    assert held("cpu").keys() == {"machine", *(f"core-{core}" for core in os.sched_getaffinity(0))}
    assert held("GPU-1", alone=True) == held("cpu", alone=True) == {"machine": True}


def test_all_take_the_locks_in_one_order(own_slots):
    assert list(held("cpu", cores=[11, 2, 0])) == ["machine", "core-0", "core-2", "core-11"]
    assert list(held("MIG-2", part_of="GPU-1")) == ["machine", "GPU-1", "MIG-2"]


CPU = {"device_id": "cpu", "alone": False}
GPU = {"device_id": "GPU-1", "alone": False}
PAIRS = [
    ({**CPU, "cores": [0, 1]}, {**CPU, "cores": [1, 2]}, True),
    ({**CPU, "cores": [0, 1]}, {**CPU, "cores": [2, 3]}, False),
    ({**CPU, "cores": [0]}, {**CPU, "cores": [1], "alone": True}, True),
    (GPU, GPU, True),
    (GPU, {**GPU, "device_id": "GPU-2"}, False),
    (GPU, {**CPU, "cores": [0]}, False),
    (GPU, {**CPU, "alone": True}, True),
    (GPU, {"device_id": "MIG-1", "part_of": "GPU-1", "alone": False}, True),
    (
        {"device_id": "MIG-1", "part_of": "GPU-1", "alone": False},
        {"device_id": "MIG-2", "part_of": "GPU-1", "alone": False},
        False,
    ),
]


@pytest.mark.parametrize(("first", "second", "one_waits"), [*PAIRS, *((b, a, waits) for a, b, waits in PAIRS)])
def test_cells_exclude_each_other_where_they_would_disturb_each_other(own_slots, first, second, one_waits):
    entered = threading.Event()

    def enter():
        with hold_device(**second, what="second", say=print):
            entered.set()

    thread = threading.Thread(target=enter)
    with hold_device(**first, what="first", say=print):
        thread.start()
        assert entered.wait(0.2 if one_waits else 10) != one_waits
    assert entered.wait(10)
    thread.join()


@pytest.mark.parametrize(
    ("bench", "device", "quiet"),
    [
        ("latency", "cpu", True),
        ("latency", "cuda:0", False),
        ("compare", "cpu", True),
        ("compare", "cuda:1", True),
        ("compare_train_step", "cuda:0", True),
        ("train", "cpu", False),
        ("memory", "cpu", False),
    ],
)
def test_comparisons_and_times_of_a_processor_are_measured_alone(bench, device, quiet):
    assert needs_quiet(Cell({"bench": {"name": bench}, "device": device}, "0" * 64, 1.0)) == quiet


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs cores that processes can be bound to")
def test_who_sits_on_cores_keeps_others_from_choosing_them(own_slots, monkeypatch):
    bound = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2, 4, 7, 9})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: bound.append(set(cores)))
    monkeypatch.setattr("bench.execution.device_locks._last_cores", None)
    with pin_to_free_cores(2, "it") as first:
        with pin_to_free_cores(2, "it") as second, pin_to_free_cores(2, "it") as third:
            pass
        # The seat of before is free again, and so it is taken again.
        with monkeypatch.context() as patch:
            patch.setattr("bench.execution.device_locks._last_cores", second)
            with pin_to_free_cores(2, "it") as again:
                pass
    assert (first, second, third, again) == ((1, 2), (4, 7), (1, 2), (4, 7))
    assert bound[:2] == [{1, 2}, {4, 7}] and bound[-1] == {1, 2, 4, 7, 9}
    with pytest.raises(ConfigError, match=r"^it=6: must be at most 5"), pin_to_free_cores(6, "it"):
        pass


def test_every_user_may_wait(own_slots):
    with hold_device("GPU-1234", alone=False, what="it", say=print):
        pass
    assert {path.stat().st_mode & 0o777 for path in own_slots.glob("*.lock")} == {0o666}
    assert own_slots.stat().st_mode & 0o7777 == 0o1777


def test_a_lock_is_not_followed_elsewhere(own_slots):
    for link in (own_slots / "machine.lock", own_slots):
        lock_folder()
        if link == own_slots:
            own_slots.rename(own_slots.with_name("elsewhere"))
        link.symlink_to(own_slots.with_name("precious"))
        with pytest.raises(ConfigError, match="link"), hold_device("cpu", alone=True, what="it", say=print):
            pass
        link.unlink()
    assert not own_slots.with_name("precious").exists()


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.commands
def test_what_a_killed_sweep_measured_keeps_its_device_until_it_is_gone(tmp_path, own_slots):
    env = environment(ATTENTION_ZOO_TEST=str(tmp_path), **FAKES)
    arguments = ["attention=v_mean", "attention.name=fake_hang", "tracking=none", f"results_dir={tmp_path / 'runs'}"]
    with open(tmp_path / "stderr", "w") as stderr:
        sweep = subprocess.Popen(command(*arguments, *TINY), cwd=ROOT, env=env, stderr=stderr)
    lock = own_slots / "machine.lock"
    try:
        wait_until(lambda: holder(lock) and below(sweep.pid, 2))
        ((server,), (child,)) = (below(sweep.pid, depth) for depth in (1, 2))
        for each in (server, child):
            each.suspend()
        sweep.kill()
        sweep.wait()
        server.kill()
        wait_until(lambda: len(family(str(tmp_path))) == 1)
        assert holder(lock)["pid"] == sweep.pid
        child.kill()
        wait_until(lambda: holder(lock) is None)
    finally:
        for each in family(str(tmp_path)):
            each.kill()


def below(pid, depth):
    """The children of a process, or the children of these: servers, and what they forked."""
    children = psutil.Process(pid).children()
    with contextlib.suppress(psutil.NoSuchProcess):  # whom the sweep asked something
        return children if depth == 1 else [each for child in children for each in child.children()]
    return []


@pytest.mark.commands
def test_a_folder_that_cannot_be_used_is_one_line(tmp_path):
    result = bench(
        "attention=v_mean", "tracking=none", f"results_dir={tmp_path}", *TINY, ATTENTION_ZOO_SLOTS="/proc/nowhere"
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()  # before the sweep is announced
    assert line.startswith("error: ATTENTION_ZOO_SLOTS=/proc/nowhere: ") and not list(tmp_path.glob("records"))


@pytest.mark.needs("two_cores")
@pytest.mark.commands
def test_cells_side_by_side_share_the_memory(tmp_path):
    """However many there are, together they may take what one alone may."""
    tiny = [word for word in TINY if not word.startswith("bench.")]
    typed = [*tiny, "bench=memory", "bench.passes=[forward]", "tracking=none", "device=cpu"]
    limits = {}
    for launcher in ("cells", "devices"):
        more = ["hydra.launcher.cores_per_worker=1"] if launcher == "devices" else []
        done = bench(*typed, f"hydra/launcher={launcher}", *more, f"results_dir={tmp_path / launcher}")
        assert done.returncode == 0, done.stderr
        (record,) = Store(tmp_path / launcher).load()
        limits[launcher] = record.numerics["memory_limit_bytes"]
    cores = len(os.sched_getaffinity(0))
    # What is free changes from one to the other.
    assert limits["devices"] * cores == pytest.approx(limits["cells"], rel=0.2)


def test_who_runs_on_some_cores_has_their_share(monkeypatch):
    monkeypatch.setattr(device_locks, "_ALL_CORES", frozenset({3, 4, 7, 8}))
    assert [memory_share(cores) for cores in (None, (3,), (4, 7), (3, 4, 7, 8), range(8))] == [1, 0.25, 0.5, 1, 1]
