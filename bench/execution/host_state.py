"""How busy, hot and limited the host is while a cell runs, and what of that spoils a time. Nothing here raises.

It is read outside of the cell's process, before it is told to begin and after it has ended.
"""

import os
import re
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What others may take of the cores that a cell runs on, in cores. On an idle machine they take less than 0.02; a
# neighbour that computes takes most of one.
OTHERS_CORES = 0.25
# The kernel counts in ticks of 10 ms on each core: less than this is not told from none, and so cells that are shorter
# than half of it are never marked for it.
OTHERS_S = 0.1
# On a GPU the host only launches kernels and prepares the backward pass: others may have what these two threads leave.
THREADS_BESIDE_A_GPU = 2
# Of the time that the cell computed. A virtual machine that has its cores to itself is at 0.1 %.
STOLEN_SHARE, STOLEN_S = 0.03, 0.05
# Of the time of the cell, for what is not seldom but always a disturbance.
SLOWED_SHARE = 0.01
# A GPU that is idle, has clocks that somebody set, or reaches its power limit under load runs as it always does: with
# these it is slower than it can be, and another time it is not.
SLOWDOWNS = ("hardware slowdown", "thermal slowdown", "hardware thermal slowdown", "power brake")
# A counter of energy starts again at zero, unseen if that happens twice; no processor takes more.
MAX_WATTS = 1000.0

# What control groups of version 1 say for no limit is a number near 2^63.
NO_LIMIT = 2**60
CPUSET_FILES = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
MEMORY_FILES = ("memory.max", "memory.limit_in_bytes")
CORES = r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*"
BUSY = (0, 1, 2, 5, 6)  # columns of /proc/stat: user, nice, system, irq, softirq; those of guests are in the first two
STOLEN = 7

# By what they count for: what appears or disappears meanwhile counts for nothing.
Counters = dict[str, float]


@dataclass(frozen=True)
class Reading:
    """The host at one moment. What it does not say is None or left out."""

    at: float
    """Seconds, of a clock that nobody sets."""
    own_s: float
    """What this thread, which waits for the cell, has computed."""
    state: dict[str, Any]
    """For the record: `load`, `governors`, `mhz` (least, median, greatest)."""
    limits: dict[str, Any]
    """For the record: `cores` that the cell may use, as the kernel writes them, and those of its `control_group`."""
    counters: dict[str, Counters] = field(default_factory=dict)
    """Since the machine started: `busy_s` and `stolen_s` of each core, `held_up_s` of each control group that the
    process is in, `waited_s` and `slowdowns`."""
    packages: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Energy in µJ of each processor, and where it starts again at zero."""


def read(root: Path = Path("/")) -> Reading:
    """The host now, for the cores that this thread may use; `root` may hold the files of another machine."""
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
    """What a record says of the host, by readings of when a cell began and had ended, and what it computed, if known.

    Returns:
        `{"before", "after", "limits", "during"}`; `during` is of the cell's cores, in seconds: `seconds` it took,
        `own_s`, `others_s` and `stolen_s` (by the hypervisor) of computing, `held_up_s` by the control group,
        `waited_s` in which anything waited for a core; `slowdowns` for heat, and `packages_j`, the energy of the
        processors.
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
    """Why the times of a cell may not be those of a quiet machine: texts `what` or `what: how much`.

    `host` is what `between` gave, `device_state` the record's, empty for a CPU. A machine may say nothing.
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
    """What the group of a pattern first finds in a file; None where there is no such."""
    return next(iter(_all(file, pattern)), None)


def _all(file: Path, pattern: str) -> list[Any]:
    try:
        return re.findall(pattern, file.read_text(), re.MULTILINE)
    except (OSError, ValueError):
        return []


def _number(file: Path, pattern: str = r"\A(-?\d+)$") -> int | None:
    return None if (text := _first(file, pattern)) is None else int(text)


def _control_group_limits(root: Path) -> dict[str, Any]:
    """The tightest limits of this process's control group and those that it is in; None where there is none.

    `cpus` are processors' worth of time, `cores` such as `0-3`.
    """
    cores = [_first(folder / name) for folder in _groups(root, "cpuset") for name in CPUSET_FILES]
    memory = [_number(folder / name) for folder in _groups(root, "memory") for name in MEMORY_FILES]
    return {
        "cpus": min(filter(None, map(_cpu_limit, _groups(root, "cpu"))), default=None),
        "memory_bytes": min((limit for limit in memory if limit and limit < NO_LIMIT), default=None),
        "cores": next(filter(None, cores), None),
    }


def _held_up_s(root: Path) -> Counters:
    """For how long each of these control groups had to wait so far because its time was used up."""
    seconds = {}
    for file in (folder / "cpu.stat" for folder in _groups(root, "cpu")):
        for name, per_second in (("throttled_usec", 1e6), ("throttled_time", 1e9)):  # of versions 2 and 1
            if (count := _number(file, rf"^{name} (\d+)$")) is not None:
                seconds[str(file.parent)] = count / per_second
    return seconds


def _groups(root: Path, controller: str) -> list[Path]:
    """The folder of this process's control group (version 1 or 2), then those of its ancestors."""
    lines = _all(root / "proc/self/cgroup", r"^\d+:([^:]*):(.*)$")
    groups = {name: path for names, path in lines for name in names.split(",")}
    top = root / "sys/fs/cgroup" / (controller if controller in groups else "")
    folder = top / groups.get(controller, groups.get("", "")).lstrip("/")
    # A container sees its own group at the top, of which the path is still that of the host.
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
    if not clocks:  # a virtual machine may still say
        told = _all(root / "proc/cpuinfo", r"^processor\s*: (\d+)$(?s:.*?)^cpu MHz\s*: ([\d.]+)$")
        clocks = [float(mhz) for core, mhz in told if int(core) in cores]
    return [min(clocks), statistics.median(clocks), max(clocks)] if clocks else None


def _packages(root: Path) -> dict[str, tuple[int, int]]:
    packages = {}
    for folder in sorted((root / "sys/class/powercap").glob("intel-rapl:*")):
        # Its parts, such as the cores, are listed beside it.
        if (_first(folder / "name") or "").startswith("package"):
            energy, largest = _number(folder / "energy_uj"), _number(folder / "max_energy_range_uj")
            if energy and largest:  # for root only, as a rule
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
