"""The locks of devices: never two cells on one of this machine, whoever started them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from bench import measures
from bench.common.errors import ConfigError
from bench.execution.filesystems import require_locks
from bench.execution.locks import hold, open_lock
from bench.plan.cell import Cell
from bench.plan.machine import is_gpu
from bench.records import own

# Not the folder for temporary files, which may differ between users and between jobs.
FOLDER = "/tmp/attention-zoo-slots"
# A child inherits each lock, and a message to the process that forks it takes 253 descriptors.
MOST_CORES = 240
_last: tuple[int, ...] | None = None  # seat of this process


def needs_quiet(cell: Cell) -> bool:
    """Whether a cell must be alone on its machine: comparisons, and whatever is timed on a processor.

    On different cores, too, cells share memory, caches and clocks. Timings of a GPU need that GPU only.
    """
    benchmark = measures.get(cell.config["bench"]["name"])
    return benchmark.compares or (benchmark.timed and not is_gpu(cell.config["device"]))


@contextlib.contextmanager
def hold_device(
    device_id: str,
    *,
    alone: bool,
    cores: Collection[int] | None = None,
    part_of: str | None = None,
    what: str,
    say: Callable[[str], None],
) -> Iterator[tuple[int, ...]]:
    """Hold a device for a cell.

    Args:
        device_id: `cpu`, or the UUID of a GPU or of a part of one.
        alone: whether nothing else may be measured on the whole machine meanwhile.
        cores: those that a CPU cell runs on; None: all that this process may use.
        part_of: the UUID of the GPU that the device is a part of (MIG).
        what: the cell's title, for those who wait.
        say: told for whom this waits.

    Yields:
        The locks' descriptors, which the cell's child inherits.

    Raises:
        ConfigError: the folder of the locks cannot be used.
    """
    folder = slots()
    with contextlib.ExitStack() as stack:
        yield tuple(
            stack.enter_context(hold(folder / f"{name}.lock", what, say, shared=shared))
            for name, shared in _locks(device_id, alone, cores, part_of)
        )


def share_of(cores: Collection[int] | None) -> float:
    """What part of this machine belongs to who runs on some of the cores that this process began with; None: all."""
    return 1.0 if cores is None else min(1.0, len(cores) / len(_AT_FIRST))


def core_sets(size: int, setting: str) -> list[tuple[int, ...]]:
    """The cores that this process may use, in sets of a size.

    Raises:
        ConfigError: there are fewer, or no way to choose them; `setting` named the size.
    """
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if size > len(usable):
        raise ConfigError(f"{setting}={size}: must be at most {len(usable)}, the cores that this process can choose")
    return [tuple(usable[start : start + size]) for start in range(0, len(usable) - size + 1, size)]


@contextlib.contextmanager
def seat(size: int, setting: str) -> Iterator[tuple[int, ...]]:
    """Run on a set of cores of this machine that nobody else sits on; on the first one where all are taken.

    It only chooses: what keeps others from a core is a device's lock.

    Raises:
        ConfigError: as `core_sets` and `slots`.
    """
    global _last
    before, sets = _usable(), core_sets(size, setting)
    with contextlib.ExitStack() as stack:
        # The same as before, if it is free: there is a server of children for it.
        for cores in sorted(sets, key=lambda cores: cores != _last):
            descriptor = open_lock(slots() / f"seat-{cores[0]}.lock")
            stack.callback(os.close, descriptor)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
        else:
            cores = sets[0]
        _last = cores
        stack.callback(os.sched_setaffinity, 0, before)
        os.sched_setaffinity(0, cores)
        yield cores


def slots() -> Path:
    """The folder of the devices' locks, for all users, sweeps and results folders.

    ATTENTION_ZOO_SLOTS names another one, for jobs that are known not to disturb each other.

    Raises:
        ConfigError: it cannot be used.
    """
    named = os.environ.get("ATTENTION_ZOO_SLOTS", FOLDER)
    folder = Path(named)
    try:
        if not named or folder.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "a link" if named else "empty")
        own.claim(folder, own.SLOTS, "ATTENTION_ZOO_SLOTS")
        require_locks(folder, f"ATTENTION_ZOO_SLOTS={folder}")
    except OSError as error:
        raise ConfigError(
            f"ATTENTION_ZOO_SLOTS={named}: {error.strerror}; must be a folder that every user may write to"
        ) from None
    return folder


def _locks(
    device_id: str, alone: bool, cores: Collection[int] | None, part_of: str | None
) -> Iterator[tuple[str, bool]]:
    """The locks of a cell, by name, and whether it shares them, in the one order that all take them in.

    Nothing keeps others out while one that must be alone waits: behind a training of hours, all other devices would
    stand idle. It waits for a moment in which nothing is measured, at the latest the end of the sweeps that run.
    """
    used = sorted(_usable() if cores is None else cores)
    if alone or (device_id == "cpu" and len(used) > MOST_CORES):
        yield "machine", False
        return
    yield "machine", True
    if device_id == "cpu":
        yield from ((f"core-{core}", False) for core in used)
        return
    if part_of is not None:
        yield part_of, True
    yield device_id, False


def _usable() -> Collection[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


# A worker keeps to some of them later.
_AT_FIRST = frozenset(_usable())
