"""Locks of devices: two cells never run on one device of this machine at the same time, whoever started them."""

import contextlib
import errno
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from bench import measures
from bench.common.errors import ConfigError
from bench.execution.locks import hold, open_lock, try_lock
from bench.plan.cell import Cell
from bench.plan.machine import is_gpu
from bench.records import own

# Not the folder for temporary files, which may differ between users and jobs.
FOLDER = "/tmp/attention-zoo-slots"
_last_cores: tuple[int, ...] | None = None  # the last choice of `pin_to_free_cores`


def needs_quiet(cell: Cell) -> bool:
    """Whether a cell must run alone on its machine: comparisons, and everything timed on a CPU.

    Cells on different cores still share memory, caches and clocks. Timings on a GPU only need that GPU.
    """
    benchmark = measures.get(cell.config["bench"]["name"])
    return benchmark.compares or (benchmark.timed and not is_gpu(cell.config["device"]))


@contextlib.contextmanager
def hold_device(
    device_id: str, *, alone: bool, cores: Collection[int] | None = None, part_of: str | None = None, what: str
) -> Iterator[tuple[int, ...]]:
    """Hold a device for a cell; yields the locks' descriptors, which the cell's child inherits.

    Every process takes the locks in the same order. A cell that must run alone blocks nobody while it waits:
    otherwise all devices would stand idle behind a training of hours. It waits for a moment in which nothing is
    measured, which comes at the latest when the running sweeps end.

    Args:
        device_id: `cpu`, or the UUID of a GPU or of a MIG slice.
        alone: whether nothing else on the machine may be measured at the same time.
        cores: the cores of a CPU cell; None: all that this process may use.
        part_of: for a MIG slice, the UUID of its GPU.
        what: the cell's title, shown to processes that wait.
    """
    folder = lock_folder()
    locks = [("machine", not alone)]  # each with whether it is shared
    if not alone and device_id == "cpu":
        locks += [(f"core-{core}", False) for core in sorted(_usable() if cores is None else cores)]
    elif not alone:
        locks += [(device_id, False)] if part_of is None else [(part_of, True), (device_id, False)]
    with contextlib.ExitStack() as stack:
        yield tuple(stack.enter_context(hold(folder / f"{name}.lock", what, shared=shared)) for name, shared in locks)


def memory_share(cores: Collection[int] | None) -> float:
    """The share of this machine's memory for a cell on some of the cores that this process began with; None: all."""
    return 1.0 if cores is None else min(1.0, len(cores) / len(_ALL_CORES))


def core_sets(size: int, setting: str) -> list[tuple[int, ...]]:
    """The cores that this process may use, in sets of `size`.

    Raises `ConfigError`, with the setting's name, if there are too few cores or the system cannot choose cores.
    """
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if size > len(usable):
        raise ConfigError(f"{setting}={size}: must be at most {len(usable)}, the cores that this process can choose")
    return [tuple(usable[start : start + size]) for start in range(0, len(usable) - size + 1, size)]


@contextlib.contextmanager
def pin_to_free_cores(size: int, setting: str) -> Iterator[tuple[int, ...]]:
    """Run on a set of cores that no other process has chosen, or on the first set if all are taken.

    This only chooses; the device's lock keeps others off the cores. Raises like `core_sets` and `lock_folder`.
    """
    global _last_cores
    before, sets = _usable(), core_sets(size, setting)
    with contextlib.ExitStack() as stack:
        # Prefer the previous set, if it is free: a server of children already runs for it.
        for cores in sorted(sets, key=lambda cores: cores != _last_cores):
            if stack.enter_context(try_lock(open_lock(lock_folder() / f"seat-{cores[0]}.lock"))):
                break
        else:
            cores = sets[0]
        _last_cores = cores
        stack.callback(os.sched_setaffinity, 0, before)
        os.sched_setaffinity(0, cores)
        yield cores


def lock_folder() -> Path:
    """The folder of the device locks, shared by all users and sweeps; raises `ConfigError` if it cannot be used.

    ATTENTION_ZOO_SLOTS sets another folder, for jobs that are known not to disturb each other.
    """
    name = os.environ.get("ATTENTION_ZOO_SLOTS", FOLDER)
    folder = Path(name)
    try:
        if not name or folder.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "a link" if name else "empty")
        own.claim(folder, own.SLOTS, "ATTENTION_ZOO_SLOTS")
        with try_lock(open_lock(folder / ".probe")):  # fails on a file system without locks
            pass
    except OSError as error:
        allowed = "a folder that every user may write to"
        raise ConfigError(f"ATTENTION_ZOO_SLOTS={name}: {error.strerror}; must be {allowed}") from None
    return folder


def _usable() -> Collection[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


# The cores that this process began with; a worker later uses only some of them.
_ALL_CORES = frozenset(_usable())
