"""The state of a GPU by NVIDIA's management library (package nvidia-ml-py). Nothing here raises."""

import contextlib
import importlib
import time
from collections.abc import Callable, Collection
from typing import Any

import psutil
import torch

from bench.common.errors import one_line
from bench.measures.timing import Pass

# Least seconds between two changes of the energy counter, and seconds after which the measurement gives up.
LEAST_S, LONGEST_S = 0.5, 5.0

# Bits of nvmlDeviceGetCurrentClocksThrottleReasons: what limits the clocks.
THROTTLE_REASONS = (
    *("idle", "clocks set", "power cap", "hardware slowdown", "sync boost", "thermal slowdown"),
    *("hardware thermal slowdown", "power brake", "display clocks"),
)
QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sm_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "memory_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "power_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
    "temperature_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    "throttled": lambda nvml, gpu: reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
    "energy_j": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3,
    "processes": lambda nvml, gpu: len(nvml.nvmlDeviceGetComputeRunningProcesses(gpu)),
    "others": lambda nvml, gpu: others([each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)]),
    "hot_s": lambda nvml, gpu: (
        nvml.nvmlDeviceGetViolationStatus(gpu, nvml.NVML_PERF_POLICY_THERMAL).violationTime / 1e9
    ),
}


class DeviceState:
    """Clocks, power, temperature and energy of a GPU.

    `moments` has the stored states by name; only `missing`, with the reason, if the library fails; empty for a CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.moments: dict[str, Any] = {}
        self.nvml: Any = None
        if device.type == "cuda":
            try:
                nvml = importlib.import_module("pynvml")
                nvml.nvmlInit()
                # The library numbers GPUs in its own order, and includes GPUs that are hidden from this process.
                uuid = torch.cuda.get_device_properties(device).uuid
                self.nvml, self.gpu = nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            except Exception as error:
                self.moments = {"missing": f"{type(error).__name__}: {one_line(error)}"}

    def note(self, moment: str) -> None:
        """Store the device's present state for the record."""
        if self.nvml is not None:
            self.moments[moment] = self.read()

    def read(self) -> dict[str, Any]:
        """The device's present state; None for values that old drivers or MIG slices do not report.

        Returns:
            `{"sm_mhz", "memory_mhz", "power_w", "temperature_c", "throttled": [reason], "energy_j": since the driver
            was loaded, "processes": number that use it, with this one, "others": those that are neither this process
            nor its ancestors or descendants, "hot_s": seconds slowed down by heat since the driver was loaded}`.
        """
        return {name: self.ask(name) for name in QUESTIONS}

    def ask(self, name: str) -> Any:
        """One of the values of `read`."""
        with contextlib.suppress(Exception):
            return QUESTIONS[name](self.nvml, self.gpu)
        return None


def energy(device: torch.device, state: DeviceState, measured: Pass, calls: int) -> dict[str, Any] | None:
    """Energy of the whole board while it runs only this pass; nothing is subtracted. The L2 cache is warm.

    The counter is read after every `calls` calls of the pass.

    Returns:
        `{"joules", "calls", "seconds", "idle_w": power when the cell started}`; None if the device does not report it,
        and for `backward`, which cannot run alone.
    """
    ticks: list[tuple[float, float, int]] = []
    start, done = time.perf_counter(), 0
    while (now := time.perf_counter()) - start < LONGEST_S:
        if measured.name == "backward" or (joules := state.ask("energy_j")) is None:
            return None
        if not ticks or joules != ticks[-1][1]:
            ticks.append((now, joules, done))
        # The first value is skipped: the counter may have reached it before the first look.
        if len(ticks) > 2 and ticks[-1][0] - ticks[1][0] >= LEAST_S:
            seconds, used, ran = (last - first for first, last in zip(ticks[1], ticks[-1], strict=True))
            idle_w = state.moments.get("start", {}).get("power_w")
            return {"joules": used, "calls": ran, "seconds": seconds, "idle_w": idle_w}
        for _ in range(calls):
            measured.run_unprepared()
        torch.cuda.synchronize(device)
        done += calls
    return None


def reasons(bits: int) -> list[str]:
    """The names of the reasons in a bit mask."""
    return [name for bit, name in enumerate(THROTTLE_REASONS) if bits >> bit & 1]


def others(running: Collection[int]) -> int:
    """The number of processes on a GPU that are neither this one nor its ancestors or descendants.

    In a container the driver may report the host's process numbers. Then none matches, and one of them is this process.
    """
    this = psutil.Process()
    own = {each.pid for each in (this, *this.parents(), *this.children(recursive=True))}
    strangers = len(set(running) - own)
    return strangers if own & set(running) else max(0, strangers - 1)
