"""The control group (version 1 or 2) of this process: what it may take, and for how long it was held up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# What version 1 says for no limit is a number near 2^63.
NO_LIMIT = 2**60


def limits(root: Path) -> dict[str, Any]:
    """The tightest of the group and those that it is in; None where there is none.

    Args:
        root: `/`, or a folder with the files of another machine.

    Returns:
        `{"cpus": processors' worth of time, "memory_bytes", "cores": such as `0-3`}`.
    """
    return {
        "cpus": min(_numbers(root, "cpu", _cpus), default=None),
        "memory_bytes": min(_numbers(root, "memory", _memory), default=None),
        "cores": next(iter(_numbers(root, "cpuset", _cores)), None),
    }


def held_up_s(root: Path) -> dict[str, float]:
    """For how long the group, and each that it is in, had to wait so far because its time was used up."""
    return dict(_numbers(root, "cpu", lambda folder: (str(folder), _held_up(folder))))


def folders(root: Path, controller: str) -> Iterator[Path]:
    """The folder of this process's group for a controller (`cpu`, `memory`, `cpuset`), then those of its ancestors."""
    groups = dict(_groups((root / "proc/self/cgroup").read_text()))
    group = groups.get(controller, groups.get(""))
    for line in (root / "proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        _, _, _, mounted, point, *_ = before.split()
        kind, _, options = after.split(" ", 2)
        wanted = kind == "cgroup" and controller in options.split(",") if controller in groups else kind == "cgroup2"
        if wanted and group is not None:
            top = root / point.lstrip("/")
            # In a container the mount may begin at the container's group, of which the path is still the whole.
            own = top / group.removeprefix(mounted if mounted != "/" else "").lstrip("/")
            own = own if own.is_dir() and ".." not in own.parts else top
            yield from (own, *(folder for folder in own.parents if folder.is_relative_to(top)))
            return


def _groups(text: str) -> Iterator[tuple[str, str]]:
    """Controllers of version 1, and the empty name for version 2, with the path of the group."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        yield from ((controller, path) for controller in controllers.split(","))


def _numbers(root: Path, controller: str, ask: Callable[[Path], Any]) -> Iterator[Any]:
    """What each folder says of itself; nothing is said where a file is missing or not as expected."""
    try:
        found = list(folders(root, controller))
    except (OSError, ValueError):
        return
    for folder in found:
        try:
            answer = ask(folder)
        except (OSError, ValueError, KeyError, ZeroDivisionError):
            continue
        if answer is not None:
            yield answer


def _cpus(folder: Path) -> float | None:
    if (file := folder / "cpu.max").exists():
        quota, period = file.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    quota_us = int((folder / "cpu.cfs_quota_us").read_text())
    return None if quota_us < 0 else quota_us / int((folder / "cpu.cfs_period_us").read_text())


def _memory(folder: Path) -> int | None:
    file = folder / "memory.max"
    text = (file if file.exists() else folder / "memory.limit_in_bytes").read_text().strip()
    return None if text == "max" or int(text) >= NO_LIMIT else int(text)


def _cores(folder: Path) -> str | None:
    for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
        if (file := folder / name).exists():
            return file.read_text().strip() or None
    return None


def _held_up(folder: Path) -> float:
    told = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
    return int(told["throttled_usec"]) / 1e6 if "throttled_usec" in told else int(told["throttled_time"]) / 1e9
