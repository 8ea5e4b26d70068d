"""What a GPU's times mean, on one whose kernels and launches take as long as they are told."""

import json
import os
import subprocess
import sys

import pytest
import torch
from cells import SleepingBench, config, said
from fake_gpu import CUDA, ENERGY, SAID, FakeGpu, FakeNvml

from bench import measures
from bench.execution.child import measure_cell
from bench.measures.device_state import LEAST_S, LONGEST_S, DeviceState, energy, others, reasons
from bench.measures.rounds import Replay, compared, in_three_ways, time_in_rounds
from bench.measures.timing import FIRST_HEAD_START_NS, HEAD_START, LONGEST_HEAD_START_NS, Pass, Stopwatch

US, MS = 1e3, 1e6


class Kernels(torch.nn.Module):
    """A mechanism that launches `kernels` of one kind, forward and backward alike; `waits` for them in between."""

    def __init__(self, gpu, kernels, host_ns, device_ns, waits=False):
        super().__init__()
        self.gpu, self.kernels, self.host_ns, self.device_ns, self.waits = gpu, kernels, host_ns, device_ns, waits

    def forward(self, query, key, value, padding=None):
        self.launch()
        out = query + key + value
        if out.requires_grad:
            out.register_hook(lambda gradient: self.launch())
        return out

    def launch(self):
        for number in range(self.kernels):
            self.gpu.launch(self.host_ns, self.device_ns)
            if self.waits and number == 0:
                self.gpu.wait()


@pytest.fixture
def gpu(monkeypatch):
    return FakeGpu().install(monkeypatch)


def one_pass(attention, name="forward"):
    return Pass(name, attention, (torch.zeros(1, 1, 2, 2),) * 3)


def sampled(stopwatch, measured, calls=4):
    stopwatch.calibrate(measured, 0, stopwatch.time(measured))
    return stopwatch.sample(measured, calls)


@pytest.mark.parametrize(("kernels", "device_ns"), [(1, 50 * US), (30, 2 * US), (1000, 50 * US)])
def test_a_sample_holds_no_time_of_the_host_and_an_eager_caller_sees_it(gpu, kernels, device_ns):
    measured = one_pass(Kernels(gpu, kernels, 10 * US, device_ns))
    stopwatch, host_ns = Stopwatch(CUDA), kernels * 10 * US
    assert sampled(stopwatch, measured) == pytest.approx(kernels * device_ns)
    launched = stopwatch.launched(measured)
    assert launched["host_ns"] == pytest.approx(host_ns) and launched["queued"] == 1
    assert launched["head_start_ns"] == pytest.approx(max(HEAD_START * host_ns, FIRST_HEAD_START_NS))
    assert gpu.slept[-1] == pytest.approx(launched["head_start_ns"])
    assert stopwatch.method == {"method": "cuda_event", "cache": "cold"}
    eager = Stopwatch(CUDA, eager=True)
    slept = len(gpu.slept)
    waited = max(host_ns + device_ns, 10 * US + kernels * device_ns)
    assert sampled(eager, measured) == pytest.approx(waited)
    assert eager.method == {"method": "perf_counter", "cache": "cold"}
    assert eager.launched(measured) == {} and len(gpu.slept) == slept


def test_what_the_queue_cannot_hide_is_said(gpu):
    """A loop of more launches than the longest sleep, and a call that waits for the device."""
    stopwatch = Stopwatch(CUDA)
    long = one_pass(Kernels(gpu, 100, 1 * MS, 2 * US))
    assert sampled(stopwatch, long) > 100 * 2 * US
    assert stopwatch.launched(long)["head_start_ns"] == LONGEST_HEAD_START_NS == max(gpu.slept)
    waiting = one_pass(Kernels(gpu, 3, 10 * US, 2 * US, waits=True))
    assert sampled(stopwatch, waiting) > 3 * 2 * US
    for measured in (long, waiting):
        assert stopwatch.launched(measured)["queued"] == 0


def test_every_call_finds_a_cold_cache(gpu):
    """Whichever way it is timed; in a backward pass that its forward pass has used."""
    measured = one_pass(Kernels(gpu, 1, 10 * US, 2 * US))
    for stopwatch in (Stopwatch(CUDA), Stopwatch(CUDA, eager=True)):
        stopwatch.time(measured)
        stopwatch.time(one_pass(measured.attention, "backward"))
    assert gpu.cold == [True, False, True] * 2
    gpu.cold.clear()
    in_three_ways(CUDA, measured, 5, 0.0)
    # Those that look at the host's time, and the two before a capture, do not matter.
    assert gpu.cold.count(True) == 3 * (2 + 5)


@pytest.mark.parametrize(
    ("name", "passes", "device_ns", "waits_for_the_host"),
    [("forward", 1, 2 * US, True), ("forward_backward", 2, 50 * US, False)],
)
def test_three_ways_of_a_call(gpu, name, passes, device_ns, waits_for_the_host, monkeypatch):
    order, sample = [], Stopwatch.sample

    def noted(stopwatch, measured, calls):
        order.append("replay" if isinstance(measured, Replay) else "eager" if stopwatch.eager else "queued")
        return sample(stopwatch, measured, calls)

    monkeypatch.setattr(Stopwatch, "sample", noted)
    measured = one_pass(Kernels(gpu, 20, 10 * US, device_ns), name)
    found = in_three_ways(CUDA, measured, 5, 0.0)
    alone = passes * 20 * device_ns
    assert list(found["ways"]) == ["queued", "eager", "replay"] and found["no_replay"] is None
    for way in ("queued", "replay"):
        assert found["ways"][way]["samples"] == pytest.approx([alone] * 5)
        assert found["ways"][way]["queued"] == 1 and found["ways"][way]["method"] == "cuda_event"
    assert min(found["ways"]["eager"]["samples"]) > alone
    assert found["replay_ns"] == pytest.approx(alone) and found["launch_bound"] == waits_for_the_host
    assert order == (["queued", "eager", "replay", "replay", "eager", "queued"] * 3)[: 5 * 3]


def test_a_capture_that_fails_costs_no_measurement(gpu, monkeypatch):
    measured = one_pass(Kernels(gpu, 3, 10 * US, 2 * US))

    def refused(graph):
        monkeypatch.setattr(gpu, "launch", gpu.synchronize)  # nothing works any more
        raise ValueError("capture")

    monkeypatch.setattr(torch.cuda, "graph", refused)
    found = in_three_ways(CUDA, measured, 5, 0.0)
    assert found["replay_ns"] is found["launch_bound"] is None and found["no_replay"].startswith("TypeError: ")
    assert "ways" not in found


def test_what_cannot_be_replayed_says_why(gpu):
    waiting = one_pass(Kernels(gpu, 3, 10 * US, 2 * US, waits=True))
    found = in_three_ways(CUDA, waiting, 5, 0.0)
    assert list(found["ways"]) == ["queued", "eager"] and found["replay_ns"] is None
    assert found["no_replay"] == "RuntimeError: called a synchronizing CUDA operation" and gpu.sync_debug_mode == 0
    backward = one_pass(Kernels(gpu, 3, 10 * US, 2 * US), "backward")
    found = in_three_ways(CUDA, backward, 5, 0.0)
    assert "forward pass" in found["no_replay"] and found["launch_bound"] is True
    assert in_three_ways(torch.device("cpu"), waiting, 5, 0.0) == {"replay_ns": None, "launch_bound": None}


def on_the_gpu(gpu, config):
    """A cell on the fake GPU; its tensors are not there."""
    context = SleepingBench(config, Kernels(gpu, 20, 10 * US, 100 * US))
    context.inputs = lambda: (torch.zeros(2, 2, 64, 8),) * 3
    return context


def cell(**changes):
    bench = {"name": "latency", "passes": ["forward"], "min_sample_ms": 0.0, "memory_limit": 1.0, **changes}
    return config(bench=bench, device="cuda")


def test_a_comparison_says_what_was_queued(gpu):
    passes = {label: one_pass(Kernels(gpu, kernels, 10 * US, 2 * US)) for label, kernels in (("a", 1), ("b", 9))}
    found = compared(time_in_rounds(on_the_gpu(gpu, cell()), {}, passes, 0.0))
    assert found["queued"] == {"a": 1, "b": 1}
    assert found["head_start_ns"] == pytest.approx({"a": FIRST_HEAD_START_NS, "b": HEAD_START * 90 * US})
    assert found["samples"]["b"] == pytest.approx([18 * US] * 5)


def test_a_record_has_three_times_the_energy_and_the_state_before_and_after(gpu, monkeypatch, tmp_path):
    FakeNvml(gpu, monkeypatch)
    monkeypatch.setattr("bench.execution.child.CellContext", lambda config, *_: on_the_gpu(gpu, config))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "fake")
    result = measure_cell(cell(beside=["ways", "energy"]), tmp_path, tmp_path / "progress")
    json.dumps(result["measurements"], allow_nan=False)
    number = said("latency", result["measurements"])
    assert number["latency"].value == number["replay"].value == pytest.approx(2 * MS)
    assert number["eager"].value == pytest.approx(2.01 * MS)
    assert number["power"].value == pytest.approx(400, rel=0.02) and number["idle_power"].value == 71.5
    assert number["energy_per_token"].value == pytest.approx(400 * 2e-3 / 128, rel=0.02)
    words = measures.get("latency").headline(list(number.values()))
    assert words.startswith("forward 2 ms (eager 2.01 ms, replay 2 ms, energy 62")
    assert result["status"] == "ok" and list(result["device_state"]) == ["start", "before", "after"]
    energies = [moment["energy_j"] for moment in result["device_state"].values()]
    assert energies == sorted(energies) and energies[1] < energies[2]


KNOWN = {"power_w": 71.5, "temperature_c": 41}
CLOCKS = {"sm_mhz": 1980, "memory_mhz": 2619, "throttled": ["power cap", "thermal slowdown"]}
OTHERS = {"energy_j": 0.0, "processes": 2, "others": 1, "hot_s": 2.5}


def test_the_state_of_the_device(gpu, monkeypatch):
    FakeNvml(gpu, monkeypatch)
    state = DeviceState(CUDA)
    state.note("start")
    assert state.moments == {"start": KNOWN | CLOCKS | OTHERS}
    answers = {"nvmlInit", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature"}
    FakeNvml(gpu, monkeypatch, SAID.keys() - answers | {ENERGY})
    assert DeviceState(CUDA).read() == KNOWN | dict.fromkeys(CLOCKS | OTHERS)
    assert reasons(0) == [] and reasons(0x1 | 0x80 | 0x8000) == ["idle", "power brake"]


def test_other_processes_on_a_gpu_are_not_those_of_the_cell():
    own, stranger = os.getpid(), 2**22 + 1
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert others([]) == 0
        assert others([own, os.getppid(), child.pid]) == 0
        assert others([own, stranger, stranger + 1]) == 2
        # As the host numbers the processes of a container: one of them is this one.
        assert others([stranger]) == 0 and others([stranger, stranger + 1]) == 1
    finally:
        child.communicate()


def test_without_nvml_the_record_says_what_is_missing(gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    state, cpu = DeviceState(CUDA), DeviceState(torch.device("cpu"))
    state.note("start"), cpu.note("start")
    assert list(state.moments) == ["missing"] and "pynvml" in state.moments["missing"] and cpu.moments == {}
    assert energy(CUDA, state, one_pass(Kernels(gpu, 1, 10 * US, 2 * US)), 1) is None
    FakeNvml(gpu, monkeypatch, ("nvmlInit",))
    assert DeviceState(CUDA).moments == {"missing": "RuntimeError: Not Supported"}


def test_energy_is_none_where_the_device_does_not_say(gpu, monkeypatch):
    measured = one_pass(Kernels(gpu, 1, 10 * US, 2 * MS))
    nvml = FakeNvml(gpu, monkeypatch, (ENERGY,))
    assert energy(CUDA, DeviceState(CUDA), measured, 1) is None
    nvml.silent = ()
    assert energy(CUDA, DeviceState(CUDA), one_pass(measured.attention, "backward"), 1) is None
    used = energy(CUDA, DeviceState(CUDA), measured, 5)
    assert LEAST_S <= used["seconds"] < LEAST_S + 0.2 and used["idle_w"] is None
    assert used["joules"] / used["calls"] == pytest.approx(0.8, rel=0.03)
    start = gpu.host
    monkeypatch.setattr(nvml, ENERGY, lambda handle: 17)
    assert energy(CUDA, DeviceState(CUDA), measured, 5) is None
    assert (gpu.host - start) / 1e9 == pytest.approx(LONGEST_S, rel=0.01)
