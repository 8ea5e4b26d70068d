"""A GPU whose time is known, for machines without one: what the suite asks of `torch.cuda` and of NVML.

It has one queue. The host's clock goes on by what each launch takes of it, the device's by what each kernel takes, and
`FakeGpu.install` puts both behind `torch.cuda`, `time` and `pynvml`.
"""

import contextlib
import os
import sys
import time
import types
from types import SimpleNamespace

import torch

GHZ = 2.0
L2_BYTES = 1024
CUDA = torch.device("cuda")


class FakeGpu:
    """One device.

    Attributes:
        host: the host's clock, in ns.
        device: when the device will have done all that is queued, in ns.
        cold: of each launch whether it found an L2 cache that nothing had used since it was flushed.
    """

    uuid = "11111111-aaaa"

    def __init__(self):
        self.host, self.device, self.busy = 0.0, 0.0, 0.0
        self.flushed, self.cold, self.slept = False, [], []
        self.capturing, self.sync_debug_mode = None, 0

    def wait(self):
        """As a mechanism does that looks at a number on the device."""
        if self.sync_debug_mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        self.synchronize()

    def launch(self, host_ns, device_ns):
        """A kernel."""
        self.host += host_ns
        if self.capturing is None:
            self.cold.append(self.flushed)
            self.run(device_ns)
        else:
            self.capturing.append(device_ns)

    def run(self, ns):
        self.flushed = False
        self.device = max(self.device, self.host) + ns
        self.busy += ns

    def sleep(self, cycles):
        self.slept.append(cycles / GHZ)
        self.device = max(self.device, self.host) + cycles / GHZ

    def synchronize(self, device=None):
        assert self.capturing is None, "operation not permitted when stream is capturing"
        self.host = max(self.host, self.device)

    def install(self, monkeypatch):
        properties = SimpleNamespace(L2_cache_size=L2_BYTES, uuid=self.uuid)
        of_cuda = {
            "get_device_properties": lambda device=None: properties,
            "synchronize": self.synchronize,
            "_sleep": self.sleep,
            "get_sync_debug_mode": lambda: self.sync_debug_mode,
            "set_sync_debug_mode": lambda mode: setattr(self, "sync_debug_mode", mode),
            "Event": lambda enable_timing: Event(self),
            "Stream": Stream,
            "stream": lambda stream: stream,
            "current_stream": Stream,
            "CUDAGraph": lambda: Graph(self),
            "graph": lambda graph: graph,
        }
        for name, answer in of_cuda.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        monkeypatch.setattr(time, "perf_counter_ns", lambda: int(self.host))
        for name in ("perf_counter", "monotonic"):
            monkeypatch.setattr(time, name, lambda: self.host / 1e9)
        empty = torch.empty
        monkeypatch.setattr(
            torch, "empty", lambda *a, **kw: Flush(self) if kw.get("device") == CUDA else empty(*a, **kw)
        )
        return self


class Flush:
    def __init__(self, gpu):
        self.gpu = gpu

    def zero_(self):
        self.gpu.run(100)
        self.gpu.flushed = True


class Event:
    def __init__(self, gpu):
        self.gpu = gpu

    def record(self):
        self.at = max(self.gpu.device, self.gpu.host)

    def query(self):
        return self.at <= self.gpu.host

    def elapsed_time(self, end):
        return (end.at - self.at) / 1e6


class Stream(contextlib.nullcontext):
    def wait_stream(self, other):
        pass


class Graph:
    """Launches all that it holds at once."""

    launch_ns = 5e3

    def __init__(self, gpu):
        self.gpu, self.kernels = gpu, []

    def __enter__(self):
        self.gpu.capturing = self.kernels

    def __exit__(self, *error):
        self.gpu.capturing = None
        return False

    def replay(self):
        self.gpu.launch(self.launch_ns, sum(self.kernels))


ENERGY = "nvmlDeviceGetTotalEnergyConsumption"
SAID = {
    "nvmlInit": lambda: None,
    "nvmlDeviceGetClockInfo": lambda gpu, which: {1: 1980, 2: 2619}[which],
    "nvmlDeviceGetPowerUsage": lambda gpu: 71500,
    "nvmlDeviceGetTemperature": lambda gpu, sensor: 41,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: 0x4 | 0x20,
    # This process and another.
    "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [SimpleNamespace(pid=pid) for pid in (os.getpid(), 2**22 + 1)],
    "nvmlDeviceGetViolationStatus": lambda gpu, policy: SimpleNamespace(violationTime=25 * 10**8),
}


class FakeNvml(types.ModuleType):
    """It refuses what is in `silent`."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, NVML_PERF_POLICY_THERMAL = 1, 2, 0, 1

    def __init__(self, gpu, monkeypatch, silent=()):
        super().__init__("pynvml")
        self.gpu, self.silent, self.tick = gpu, silent, None
        own = {"nvmlDeviceGetHandleByUUID": {f"GPU-{gpu.uuid}": "handle"}.__getitem__}
        self.said = SAID | own | {ENERGY: self.energy_mj}
        monkeypatch.setitem(sys.modules, "pynvml", self)

    def __getattr__(self, name):
        if name in self.silent:
            raise RuntimeError("Not Supported")
        return self.said[name]

    def energy_mj(self, handle):
        """100 W, and 300 W more while it computes; looked at every 100 ms, in mJ."""
        tick = self.gpu.host // 1e8
        if tick != self.tick:
            self.tick, self.mj = tick, (100 * self.gpu.host + 300 * self.gpu.busy) / 1e6
        return int(self.mj)
