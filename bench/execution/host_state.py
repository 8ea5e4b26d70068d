"""How busy, hot and limited the host is while a cell runs, and which of that makes a timing unreliable. Never raises.

It is read outside of the cell's process, before the cell begins and after it has ended.
"""

import os
import re
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Cores that other processes may use of the cell's own. On an idle machine they use less than 0.02; a neighbour that
# computes uses almost one.
OTHERS_CORES = 0.25
# The kernel counts in ticks of 10 ms on each core, so less than this cannot be told from zero. So on two
# cores cells shorter than half of it are never marked for it.
OTHERS_S = 0.1
# On a GPU the host launches kernels and prepares the backward pass: other processes may use all but these two cores.
THREADS_BESIDE_A_GPU = 2
# Share of the cell's CPU time. A virtual machine that has its cores to itself shows 0.1 %.
STOLEN_SHARE, STOLEN_S = 0.03, 0.05
# Share of the cell's duration, for causes that always slow a cell down.
SLOWED_SHARE = 0.01
# Only these are disturbances. A GPU that is idle, has clocks that somebody set, or reaches its power limit under load
# does so in every run; with these it is slower than in other runs.
SLOWDOWNS = ("hardware slowdown", "thermal slowdown", "hardware thermal slowdown", "power brake")
# Energy counters wrap around, unnoticed if that happens twice; no CPU draws more power than this.
MAX_WATTS = 1000.0

# Control groups of version 1 write a number near 2^63 for "no limit".
NO_LIMIT = 2**60
CPUSET_FILES = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
MEMORY_FILES = ("memory.max", "memory.limit_in_bytes")
CORES = r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*"
BUSY = (0, 1, 2, 5, 6)  # columns of /proc/stat: user, nice, system, irq, softirq; those of guests are in the first two
STOLEN = 7

# By the name of what is counted; a counter that appears or disappears in between is ignored.
Counters = dict[str, float]


@dataclass(frozen=True)
class Reading:
    """The host at one moment. Unknown values are None or missing."""

    at: float
    """Seconds of a monotonic clock."""
    own_s: float
    """CPU time of this thread, which waits for the cell."""
    state: dict[str, Any]
    """For the record: `load`, `governors`, `mhz` (minimum, median, maximum)."""
    limits: dict[str, Any]
    """For the record: `cores` that the cell may use, in the kernel's notation, and those of its `control_group`."""
    counters: dict[str, Counters] = field(default_factory=dict)
    """Since boot: `busy_s` and `stolen_s` of each core, `held_up_s` of each control group of the process, `waited_s`
    and `slowdowns`."""
    packages: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Energy of each CPU package in µJ, and the value at which the counter wraps around."""


def read(root: Path = Path("/")) -> Reading:
    """Read the host's state, for the cores of this thread; `root` may hold the files of another machine."""
    allowed = _first(root / "proc/thread-self/status", rf"^Cpus_allowed_list:\s*({CORES})$")
    cores = _cores(allowed) if allowed else frozenset()
    files = [root / f"sys/devices/system/cpu/cpu{core}" for core in sorted(cores)]
    loads = _all(root / "proc/loadavg", r"\A([\d.]+) ([\d.]+) ([\d.]+) ")
    ticks = {
        core: [int(column) / os.sysconf("SC_CLK_TCK") for column in columns.split()]
        for core, columns in _all(root / "proc/stat", rf"^cpu(\d+)((?: \d+){{{STOLEN + 1},}})")
        if int(core) in cores
    }
    waited = _number(root / "proc/pressure/cpu", r"^some .*total=(\d+)$")
    throttled = {file: _number(file) for folder in files for file in (folder / "thermal_throttle").glob("*_count")}
    return Reading(
        at=time.monotonic(),
        own_s=time.thread_time(),
        state={
            "load": [float(load) for load in loads[0]] if loads else None,
            "governors": sorted({text for file in files if (text := _first(file / "cpufreq/scaling_governor"))})
            or None,
            "mhz": _mhz(root, files, cores),
        },
        limits={"cores": allowed, "control_group": _control_group_limits(root)},
        counters={
            "busy_s": {core: sum(columns[column] for column in BUSY) for core, columns in ticks.items()},
            "stolen_s": {core: columns[STOLEN] for core, columns in ticks.items()},
            "held_up_s": _held_up_s(root),
            "waited_s": {} if waited is None else {"some": waited / 1e6},
            "slowdowns": {str(file): count for file, count in throttled.items() if count is not None},
        },
        packages=_packages(root),
    )


def between(before: Reading, after: Reading, cell_s: float | None) -> dict[str, Any]:
    """The record's entry about the host, from readings before and after a cell, and the cell's CPU time, if known.

    Returns:
        `{"before", "after", "limits", "during"}`; `during` is about the cell's cores, in seconds: the duration
        `seconds`; CPU time `own_s`, `others_s` and `stolen_s` (by the hypervisor); `held_up_s` (throttled by the
        control group); `waited_s`, in which anything waited for a core. `slowdowns` counts those for heat, and
        `packages_j` is the energy of the CPU packages.
    """
    seconds, own = after.at - before.at, after.own_s - before.own_s
    grown = {name: _grown(before.counters.get(name, {}), after.counters.get(name, {})) for name in after.counters}
    busy = grown.pop("busy_s", None)
    others = None if busy is None or cell_s is None else max(0.0, busy - cell_s - own)
    joules = _joules(before.packages, after.packages, seconds)
    during = {"seconds": seconds, "own_s": cell_s, "others_s": others, **grown, "packages_j": joules}
    known = {name: round(value, 4) for name, value in during.items() if value is not None}
    return {"before": before.state, "after": after.state, "limits": before.limits, "during": known}


def disturbances(host: Mapping[str, Any], device_state: Mapping[str, Any]) -> list[str]:
    """Why a cell's times may differ from those on a quiet machine: texts `cause` or `cause: how much`.

    `host` is the result of `between`, `device_state` the record's, empty for a CPU. Values may be missing.
    """
    cores, during = len(_cores(host["limits"]["cores"] or "0")), host["during"]
    seconds, own = during["seconds"], during.get("own_s", 0.0)
    others, stolen, held_up = (during.get(name, 0.0) for name in ("others_s", "stolen_s", "held_up_s"))
    allowed = max(OTHERS_CORES, cores - THREADS_BESIDE_A_GPU if device_state else 0.0)
    found = []
    if others > max(allowed * seconds, OTHERS_S):
        found.append(f"other processes: {others / seconds:.2g} cores")
    if stolen > max(STOLEN_SHARE * own, STOLEN_S):
        found.append(f"the hypervisor: {stolen:.2g} s")
    if held_up > SLOWED_SHARE * seconds:
        found.append(f"held up by its control group: {held_up:.2g} s")
    if (slowdowns := during.get("slowdowns", 0)) > 0:
        found.append(f"a hot processor: {slowdowns} slowdowns")
    return found + _of_gpu(device_state, seconds)


def _of_gpu(device_state: Mapping[str, Any], seconds: float) -> list[str]:
    moments = [device_state.get(moment, {}) for moment in ("before", "after")]
    slow = sorted({why for one in moments for why in one.get("throttled") or () if why in SLOWDOWNS})
    found = [f"a slow GPU: {', '.join(slow)}"] if slow else []
    counters = [{"hot": seconds} for one in moments if (seconds := one.get("hot_s")) is not None]
    hot = _grown(*counters) if len(counters) == 2 else None
    if not slow and hot is not None and hot > SLOWED_SHARE * seconds:
        found.append(f"a slow GPU: hot for {hot:.2g} s")
    others = max(one.get("others") or 0 for one in moments)
    return [*found, f"other processes on the GPU: {others}"] if others else found


def _first(file: Path, pattern: str = r"(\S+)") -> str | None:
    """The first match of a pattern's group in a file; None if there is none."""
    return next(iter(_all(file, pattern)), None)


def _all(file: Path, pattern: str) -> list[Any]:
    try:
        return re.findall(pattern, file.read_text(), re.MULTILINE)
    except (OSError, ValueError):
        return []


def _number(file: Path, pattern: str = r"\A(-?\d+)$") -> int | None:
    return None if (text := _first(file, pattern)) is None else int(text)


def _control_group_limits(root: Path) -> dict[str, Any]:
    """The tightest limits of this process's control group and its ancestors; None where there is no limit.

    `cpus` is CPU time per wall time (2.0: two full cores), `cores` a list such as `0-3`.
    """
    cores = [_first(folder / name) for folder in _groups(root, "cpuset") for name in CPUSET_FILES]
    memory = [_number(folder / name) for folder in _groups(root, "memory") for name in MEMORY_FILES]
    return {
        "cpus": min(filter(None, map(_cpu_limit, _groups(root, "cpu"))), default=None),
        "memory_bytes": min((limit for limit in memory if limit and limit < NO_LIMIT), default=None),
        "cores": next(filter(None, cores), None),
    }


def _held_up_s(root: Path) -> Counters:
    """Seconds for which each of these control groups was throttled so far because its quota was used up."""
    seconds = {}
    for file in (folder / "cpu.stat" for folder in _groups(root, "cpu")):
        for name, per_second in (("throttled_usec", 1e6), ("throttled_time", 1e9)):  # cgroup versions 2 and 1
            if (count := _number(file, rf"^{name} (\d+)$")) is not None:
                seconds[str(file.parent)] = count / per_second
    return seconds


def _groups(root: Path, controller: str) -> list[Path]:
    """The folder of this process's control group (version 1 or 2), then those of its ancestors."""
    lines = _all(root / "proc/self/cgroup", r"^\d+:([^:]*):(.*)$")
    groups = {name: path for names, path in lines for name in names.split(",")}
    top = root / "sys/fs/cgroup" / (controller if controller in groups else "")
    folder = top / groups.get(controller, groups.get("", "")).lstrip("/")
    # A container sees its own group at the top, while the listed path is the host's.
    folder = folder if os.path.isdir(folder) and ".." not in folder.parts else top
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(top))] if lines else []


def _cpu_limit(folder: Path) -> float | None:
    if limits := _all(folder / "cpu.max", r"\A(\d+) (\d+)$"):
        quota, period = map(int, limits[0])
    else:
        quota, period = _number(folder / "cpu.cfs_quota_us") or 0, _number(folder / "cpu.cfs_period_us") or 0
    return quota / period if quota > 0 and period > 0 else None


def _grown(before: Counters, after: Counters) -> float | None:
    both = before.keys() & after.keys()
    return sum(after[name] - before[name] for name in both) if both else None


def _cores(ranges: str) -> frozenset[int]:
    """`0-2,8` -> 0, 1, 2, 8."""
    ends = [part.partition("-") for part in ranges.split(",")]
    return frozenset(core for first, _, last in ends for core in range(int(first), int(last or first) + 1))


def _mhz(root: Path, files: list[Path], cores: frozenset[int]) -> list[float] | None:
    clocks = [number / 1e3 for file in files if (number := _number(file / "cpufreq/scaling_cur_freq"))]
    if not clocks:  # a virtual machine may still list them here
        told = _all(root / "proc/cpuinfo", r"^processor\s*: (\d+)$(?s:.*?)^cpu MHz\s*: ([\d.]+)$")
        clocks = [float(mhz) for core, mhz in told if int(core) in cores]
    return [min(clocks), statistics.median(clocks), max(clocks)] if clocks else None


def _packages(root: Path) -> dict[str, tuple[int, int]]:
    packages = {}
    for folder in sorted((root / "sys/class/powercap").glob("intel-rapl:*")):
        # Parts of a package, such as its cores, are listed beside it.
        if (_first(folder / "name") or "").startswith("package"):
            energy, largest = _number(folder / "energy_uj"), _number(folder / "max_energy_range_uj")
            if energy and largest:  # usually readable by root only
                packages[folder.name] = energy, largest
    return packages


def _joules(
    before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]], seconds: float
) -> float | None:
    if not before or before.keys() != after.keys():
        return None
    if any(seconds * MAX_WATTS > largest / 1e6 for _, largest in before.values()):
        return None
    return sum((after[name][0] - energy) % largest for name, (energy, largest) in before.items()) / 1e6
