"""Several devices of one machine at once: who may measure what, what is alone, and how it ends."""

import dataclasses
import os
import signal
import subprocess
import threading
import time

import psutil
import pytest
from command import FAKES, ROOT, bench, command, environment, family, start, sweep_of, wait_for

from bench.cli import main as app
from bench.execution.executors import devices
from bench.execution.runner import Runner
from bench.plan.cell import Cell
from bench.plan.executors import Devices
from bench.records.store import Store

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
two_cores = pytest.mark.needs("two_cores")


def cell(number, device="cpu", benchmark="memory"):
    config = {"device": device, "bench": {"name": benchmark}, "label": str(number), "seq_len": 32}
    return Cell(config, f"{number:064x}", 1.0)


class Remembering:
    """Remembers how it was called."""

    on_progress = None  # nothing tells how far it is

    def __init__(self, on_start=lambda cell: None):
        self.calls, self.on_start = [], on_start

    def on_cell_start(self, cell):
        self.calls.append(("started", cell))
        self.on_start(cell)

    def on_cell_end(self, cell):
        self.calls.append(("ended", cell))


@dataclasses.dataclass(frozen=True)
class Pretended(Runner):
    """Measures nothing, but does as `deed(cell, started, stop)` says."""

    deed: object = None
    measured: list = dataclasses.field(default_factory=list)

    def measure(self, cell, options, *, on_start, cores):
        self.measured.append((cell, cores))
        self.deed(cell, on_start, options.stop)


def pretended(tmp_path, deed=lambda cell, started, stop: started()):
    return Pretended(Store(tmp_path), deed=deed)


ANY = {"cuda:0": {"cuda:0"}, "cuda:1": {"cuda:0", "cuda:1"}}


@pytest.mark.parametrize(
    ("visible", "asked", "workers"),
    [
        (None, ["cpu"], {}),
        (None, ["cuda:0"], ANY),
        (None, ["cuda:2"], {"cuda:2": {"cuda:2"}}),
        (None, ["cuda:0", "cuda:2", "cpu"], {**ANY, "cuda:2": {"cuda:2"}}),
        ("1,2", ["cuda:0"], {"cuda:0": {"cuda:0"}}),
        ("2,GPU-2222,0", ["cuda:1"], {"cuda:1": {"cuda:1"}}),
        ("GPU-2222,0", ["cuda:0"], ANY),
        ("MIG-4444,MIG-5555", ["cuda:1"], {"cuda:1": {"cuda:1"}}),
    ],
)
def test_a_cell_for_any_gpu_runs_on_those_like_the_first(driver, monkeypatch, visible, asked, workers):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = devices.gpu_workers([cell(number, device) for number, device in enumerate(asked)])
    assert {worker.device: set(worker.takes) for worker in found} == workers


def test_gpus_measure_together_and_records_say_which_one(driver, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    both = threading.Barrier(2, timeout=10)
    runner = pretended(tmp_path, lambda cell, started, stop: (started(), both.wait()))
    devices.run(Devices(), runner, [cell(number, "cuda:0", "latency") for number in range(4)], Remembering())
    measured = [each.config["device"] for each, _ in runner.measured]
    assert sorted(measured) == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]


@two_cores
def test_what_must_be_alone_comes_when_nothing_else_runs(tmp_path):
    running, most = set(), []

    def deed(each, started, stop):
        started()
        running.add(each.cell_id)
        time.sleep(0.05)
        most.append((each.config["bench"]["name"], len(running)))
        running.discard(each.cell_id)

    names = ["latency", "memory", "latency", "memory", "compare", "memory"]
    todo = [cell(number, benchmark=name) for number, name in enumerate(names)]
    callback = Remembering()
    runner = pretended(tmp_path, deed)
    devices.run(Devices(cores_per_worker=1), runner, todo, callback)
    assert [name for name, _ in most] == ["memory"] * 3 + ["latency", "latency", "compare"]
    assert max(count for name, count in most if name == "memory") == 2
    assert [count for name, count in most if name != "memory"] == [1, 1, 1]
    # One thread measures all of these, on one set of cores: it starts one server of children.
    assert {cores for each, cores in runner.measured if each.config["bench"]["name"] != "memory"} == {(CORES[0],)}
    for each in todo:
        assert [what for what, told in callback.calls if told is each] == ["started", "ended"]
    assert os.sched_getaffinity(0) == set(CORES)


@two_cores
def test_one_that_cannot_save_ends_the_sweep_and_interrupts_the_others(tmp_path):
    is_beside, interrupted = threading.Event(), threading.Event()

    def deed(each, started, stop):
        started()
        if each.config["label"] == "0":
            assert is_beside.wait(10)
            raise OSError(28, "No space left on device")
        is_beside.set()
        assert stop.wait(10)
        interrupted.set()
        raise KeyboardInterrupt

    callback = Remembering()
    with pytest.raises(OSError, match="No space left"):
        devices.run(Devices(cores_per_worker=1), pretended(tmp_path, deed), [cell(0), cell(1), cell(2)], callback)
    assert interrupted.is_set()
    assert [each.config["label"] for what, each in callback.calls if what == "ended"] == ["0", "1"]


@two_cores
def test_an_interrupt_waits_for_nobody_who_waits_for_a_lock(tmp_path):
    lock = threading.Event()
    begun = []

    def deed(each, started, stop):
        if each.config["label"] == "1":
            lock.wait(30)
            started()
            begun.append(each)
        else:
            started()

    def interrupt(each):
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        devices.run(Devices(cores_per_worker=1), pretended(tmp_path, deed), [cell(0), cell(1)], Remembering(interrupt))
    assert time.monotonic() - began < 5
    lock.set()
    time.sleep(0.1)
    assert begun == []  # a notebook lives on, and its thread gets the lock at last


TOGETHER = ["hydra/launcher=devices", "hydra.launcher.cores_per_worker=1", "hydra.launcher.timings_alone=false"]


def places(folder):
    """Of each cell: its beginning and end, its cores, OMP_NUM_THREADS and its threads."""
    return sorted(path.read_text().split() for path in folder.glob("log.*"))


@two_cores
@pytest.mark.commands
def test_two_workers_measure_at_once_each_on_a_core_of_its_own(tmp_path):
    typed = [*sweep_of(tmp_path, "fake_placed_beside"), "seed=range(6)", *TOGETHER]
    result = bench(*typed, FAKE_LOG=str(tmp_path / "log"), **FAKES)
    assert result.returncode == 0, result.stderr
    found = places(tmp_path)
    assert len(found) == 6 and {tuple(each[3:]) for each in found} == {("1", "1")}
    assert {each[2] for each in found} == {str(core) for core in CORES[: len({each[2] for each in found})]}
    assert len({each[2] for each in found}) == min(len(CORES), 6)
    records = Store(tmp_path / "runs").load()
    assert all(record.machine["beside_others"] and record.machine["cpu_count"] == 1 for record in records)
    assert all(record.disturbed[-1] == "other cells, as asked" for record in records)
    # However many there are, together they may take what one alone may.
    share = psutil.virtual_memory().available / len(CORES)
    assert all(record.numerics["memory_limit_bytes"] < 1.5 * share for record in records)


@two_cores
@pytest.mark.commands
def test_a_cell_of_one_core_is_that_of_a_process_with_one_core(tmp_path, monkeypatch, capsys):
    typed = sweep_of(tmp_path, "v_mean")
    assert app.run([*typed, *TOGETHER]) == 0
    bound = subprocess.run(
        ["taskset", "-c", str(CORES[-1]), *command(*typed)],
        cwd=ROOT, env=environment(OMP_NUM_THREADS="1"), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert bound.returncode == 0 and "1 done already" in bound.stderr
    monkeypatch.setenv("OMP_NUM_THREADS", str(len(CORES)))
    assert app.run(typed) == 0 and capsys.readouterr().err.count("0 done already") == 2
    assert len(Store(tmp_path / "runs").load()) == 2


@two_cores
@pytest.mark.commands
def test_ctrl_c_interrupts_all_that_is_measured(tmp_path):
    typed = [*sweep_of(tmp_path, "fake_grandchild"), "seed=0,1", *TOGETHER]
    process = start(*typed, ATTENTION_ZOO_TEST=str(tmp_path), **FAKES)
    wait_for(lambda: [each.name() for each in family(str(tmp_path))].count("sleep") == 2)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130 and stderr.splitlines()[-1].startswith("interrupted: ")
    assert "Traceback" not in stderr and time.monotonic() - began < 15
    assert [record.status for record in Store(tmp_path / "runs").load()] == ["interrupted"] * 2
    wait_for(lambda: not family(str(tmp_path)), 5)
