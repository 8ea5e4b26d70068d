"""One cell at a time on a device, whoever started it; whoever dies makes room."""

import contextlib
import os
import signal
import stat
import threading
import time
from datetime import datetime
from pathlib import Path

import psutil
import pytest
from command import FAKES, family, start, sweep_of, wait_for

from bench.common.errors import ConfigError
from bench.execution import device_locks
from bench.execution.device_locks import hold_device, lock_folder, memory_share, needs_quiet, pin_to_free_cores
from bench.execution.locks import holder
from bench.plan.cell import Cell
from bench.records.own import MARKER
from bench.records.store import Store


@pytest.mark.commands
def test_who_waits_says_for_whom_ctrl_c_ends_the_wait_and_it_is_no_part_of_the_measurement(tmp_path):
    with hold_device("cpu", alone=True, what="something"):
        waiting = [start(*sweep_of(tmp_path / letter, "v_mean")) for letter in "ab"]
        for process in waiting:
            while "waiting" not in (line := process.stderr.readline()):
                assert process.poll() is None
            assert line.strip().endswith(f"latency v_mean n=32: waiting for something (process {os.getpid()})")
        waiting[0].send_signal(signal.SIGINT)
        assert waiting[0].wait(30) == 130 and Store(tmp_path / "a" / "runs").load() == []
        released = time.time()
    assert waiting[1].wait(120) == 0
    (record,) = Store(tmp_path / "b" / "runs").load()
    assert datetime.fromisoformat(record.started).timestamp() >= released
    assert min(record.host_state["before"]["load"]) >= 0


@pytest.fixture
def own_slots(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTENTION_ZOO_SLOTS", str(tmp_path / "slots"))
    return tmp_path / "slots"


def held(device_id, **options):
    """The locks that a cell takes, in turn: whether it is the only one that holds them."""
    with hold_device(device_id, **{"alone": False, "what": "it", **options}) as descriptors:
        names = [Path(os.readlink(f"/proc/self/fd/{each}")).name.removesuffix(".lock") for each in descriptors]
        return [(name, holder(lock_folder() / f"{name}.lock") is not None) for name in names]


def test_a_cell_holds_its_device_and_one_that_must_be_alone_the_machine(own_slots):
    assert held("GPU-1") == [("machine", False), ("GPU-1", True)]
    assert held("MIG-2", part_of="GPU-1") == [("machine", False), ("GPU-1", False), ("MIG-2", True)]
    assert held("cpu", cores=[11, 2]) == [("machine", False), ("core-2", True), ("core-11", True)]
    assert {name for name, _ in held("cpu")} == {"machine", *(f"core-{core}" for core in os.sched_getaffinity(0))}
    assert held("GPU-1", alone=True) == held("cpu", alone=True) == [("machine", True)]
    # Every user may wait.
    assert {path.stat().st_mode & 0o777 for path in own_slots.glob("*.lock")} == {0o666}
    assert own_slots.stat().st_mode & 0o7777 == 0o1777


def cpu(*cores, alone=False):
    return {"device_id": "cpu", "cores": cores, "alone": alone}


def of_gpu(device_id, **options):
    return {"device_id": device_id, "alone": False, **options}


ALL = {"device_id": "cpu", "alone": True}
PAIRS = [
    (cpu(0, 1), cpu(1, 2), True),
    (cpu(0, 1), cpu(2, 3), False),
    (cpu(0), cpu(1, alone=True), True),
    (of_gpu("GPU-1"), of_gpu("GPU-1"), True),
    (of_gpu("GPU-1"), of_gpu("GPU-2"), False),
    (of_gpu("GPU-1"), cpu(0), False),
    (of_gpu("GPU-1"), ALL, True),
    (of_gpu("GPU-1"), of_gpu("MIG-1", part_of="GPU-1"), True),
    (of_gpu("MIG-1", part_of="GPU-1"), of_gpu("MIG-2", part_of="GPU-1"), False),
]


@pytest.mark.parametrize(("first", "second", "one_waits"), [*PAIRS, *((b, a, waits) for a, b, waits in PAIRS)])
def test_cells_exclude_each_other_where_they_would_disturb_each_other(own_slots, first, second, one_waits):
    entered = threading.Event()

    def enter():
        with hold_device(**second, what="second"):
            entered.set()

    thread = threading.Thread(target=enter)
    with hold_device(**first, what="first"):
        thread.start()
        assert entered.wait(0.1 if one_waits else 10) != one_waits
    assert entered.wait(10)
    thread.join()


def test_comparisons_and_times_of_a_processor_are_measured_alone():
    alone = ["latency cpu", "compare cpu", "compare cuda:1", "compare_train_step cuda:0"]
    for name in (*alone, "latency cuda:0", "train cpu", "memory cpu"):
        bench, device = name.split()
        assert needs_quiet(Cell({"bench": {"name": bench}, "device": device}, "0" * 64, 1.0)) == (name in alone), name


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs cores that processes can be bound to")
def test_who_sits_on_cores_keeps_others_from_choosing_them(own_slots, monkeypatch):
    bound = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2, 4, 7, 9})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: bound.append(set(cores)))
    monkeypatch.setattr(device_locks, "_last_cores", None)
    with pin_to_free_cores(2, "it") as first:
        with pin_to_free_cores(2, "it") as second, pin_to_free_cores(2, "it") as third:
            pass
        # The seat of before is free again, and so it is taken again.
        monkeypatch.setattr(device_locks, "_last_cores", second)
        with pin_to_free_cores(2, "it") as again:
            pass
    assert (first, second, third, again) == ((1, 2), (4, 7), (1, 2), (4, 7))
    assert bound[:2] == [{1, 2}, {4, 7}] and bound[-1] == {1, 2, 4, 7, 9}
    with pytest.raises(ConfigError, match=r"^it=6: must be at most 5"), pin_to_free_cores(6, "it"):
        pass
    monkeypatch.setattr(device_locks, "_ALL_CORES", frozenset({3, 4, 7, 8}))
    assert [memory_share(cores) for cores in (None, (3,), (4, 7), (3, 4, 7, 8), range(8))] == [1, 0.25, 0.5, 1, 1]


def test_a_lock_is_not_followed_elsewhere(own_slots):
    for link in (own_slots / "machine.lock", own_slots):
        lock_folder()
        if link == own_slots:
            own_slots.rename(own_slots.with_name("elsewhere"))
        link.symlink_to(own_slots.with_name("precious"))
        with pytest.raises(ConfigError, match="link"), hold_device("cpu", alone=True, what="it"):
            pass
        link.unlink()
    assert not own_slots.with_name("precious").exists()


@pytest.mark.commands
def test_what_a_killed_sweep_measured_keeps_its_device_until_it_is_gone(tmp_path, own_slots):
    sweep = start(*sweep_of(tmp_path, "fake_hang"), ATTENTION_ZOO_TEST=str(tmp_path), **FAKES)
    lock = own_slots / "machine.lock"
    try:
        wait_for(lambda: holder(lock) and below(sweep.pid, 2))
        ((server,), (child,)) = (below(sweep.pid, depth) for depth in (1, 2))
        for each in (server, child):
            each.suspend()
        sweep.kill()
        sweep.wait()
        server.kill()
        wait_for(lambda: len(family(str(tmp_path))) == 1)
        assert holder(lock)["pid"] == sweep.pid
        child.kill()
        wait_for(lambda: holder(lock) is None)
    finally:
        for each in family(str(tmp_path)):
            each.kill()


def below(pid, depth):
    """The children of a process, or the children of these: servers, and what they forked."""
    children = psutil.Process(pid).children()
    with contextlib.suppress(psutil.NoSuchProcess):  # whom the sweep asked something
        return children if depth == 1 else [each for child in children for each in child.children()]
    return []


def test_every_user_may_measure_whatever_the_umask_of_the_first(own_slots):
    before = os.umask(0o077)
    try:
        lock_folder()
    finally:
        os.umask(before)
    assert stat.S_IMODE((own_slots / MARKER).stat().st_mode) & 0o044 == 0o044, "others see whose it is"
