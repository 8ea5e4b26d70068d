"""What NVIDIA's management library (package nvidia-ml-py) says of a GPU. Nothing here raises."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Collection
from typing import Any

import psutil
import torch

from bench.common.errors import one_line
from bench.measures.timing import Pass

# How long the energy of a call is looked at, from one change of the counter to another, and after which time no more.
LEAST_S, LONGEST_S = 0.5, 5.0

# Bits of nvmlDeviceGetCurrentClocksThrottleReasons: why the clocks are not higher.
THROTTLE_REASONS = {
    0x1: "idle",
    0x2: "clocks set",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}


class DeviceState:
    """Clocks, power, temperature and energy of a GPU.

    Attributes:
        missing: None, or why nothing is known.
        moments: what was noted by its name; `missing` alone where nothing is known, nothing for a CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.missing: str | None = None if device.type == "cuda" else "not a GPU"
        self.moments: dict[str, Any] = {}
        if self.missing is None:
            try:
                self._nvml = importlib.import_module("pynvml")
                self._nvml.nvmlInit()
                # It counts the GPUs in an order of its own, those too that this process does not see.
                uuid = torch.cuda.get_device_properties(device).uuid
                self._gpu = self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            except Exception as error:
                self.missing = f"{type(error).__name__}: {one_line(error)}"
                self.moments = {"missing": self.missing}

    def note(self, moment: str) -> None:
        """Remember for the record how the device is now."""
        if self.missing is None:
            self.moments[moment] = self.read()

    def read(self) -> dict[str, Any]:
        """How the device is now; None where it does not say.

        Returns:
            `{"sm_mhz", "memory_mhz", "power_w", "temperature_c", "throttled": [reason], "energy_j": since the driver
            was loaded, "processes": that compute on it, this one among them, "others": those that are neither this
            one nor above or below it, "hot_s": for how long heat has slowed it down since the driver was loaded}`.
        """
        nvml, gpu = self._nvml, self._gpu
        running = _answer(lambda: [each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)])
        return {
            "sm_mhz": _answer(lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
            "memory_mhz": _answer(lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)),
            "power_w": _answer(lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3),
            "temperature_c": _answer(lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
            "throttled": _answer(lambda: reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))),
            "energy_j": self.energy_j(),
            "processes": None if running is None else len(running),
            "others": _answer(lambda: others(running)),
            "hot_s": _answer(
                lambda: nvml.nvmlDeviceGetViolationStatus(gpu, nvml.NVML_PERF_POLICY_THERMAL).violationTime / 1e9
            ),
        }

    def energy_j(self) -> float | None:
        """What the whole board has taken since the driver was loaded, in joules."""
        if self.missing is not None:
            return None
        return _answer(lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu) / 1e3)


def energy(device: torch.device, state: DeviceState, measured: Pass, calls: int) -> dict[str, Any] | None:
    """What the whole board takes while it does nothing but this pass; nothing is subtracted. The L2 cache is warm.

    Args:
        device: of the pass.
        state: of the device.
        measured: the pass; not `backward`, which is never alone.
        calls: between two looks at the counter.

    Returns:
        `{"joules", "calls", "seconds", "idle_w": the power when the cell started}`; None where the device does not say.
    """
    if measured.name == "backward" or state.energy_j() is None:
        return None
    ticks: list[tuple[float, float, int]] = []
    start, done = time.perf_counter(), 0
    while (now := time.perf_counter()) - start < LONGEST_S:
        joules = state.energy_j()
        if joules is None:
            return None
        if not ticks or joules != ticks[-1][1]:
            ticks.append((now, joules, done))
        # When the counter came to its first number nobody saw.
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
    """The names of the reasons in a mask."""
    return [name for bit, name in THROTTLE_REASONS.items() if bits & bit]


def others(running: Collection[int]) -> int:
    """How many of the processes that compute on a GPU are neither this one nor above or below it.

    In a container the driver may number them as the host does. Then none is known, and one of them is this one.
    """
    this = psutil.Process()
    own = {each.pid for each in (this, *this.parents(), *this.children(recursive=True))}
    strangers = len(set(running) - own)
    return strangers if own & set(running) else max(0, strangers - 1)


def _answer(ask: Callable[[], Any]) -> Any:
    """The answer, None where there is none: old drivers and parts of a GPU do not know all of it."""
    try:
        return ask()
    except Exception:
        return None
