"""The locks of devices: never two cells on one of this machine, whoever started them."""

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from bench import measures
from bench.common.errors import ConfigError
from bench.execution.locks import hold, open_lock, try_lock
from bench.plan.cell import Cell
from bench.plan.machine import is_gpu
from bench.records import own

# Not the folder for temporary files, which may differ between users and between jobs.
FOLDER = "/tmp/attention-zoo-slots"
_last_cores: tuple[int, ...] | None = None  # those that `pin_to_free_cores` chose


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
    """Hold a device for a cell; yields the locks' descriptors, which the cell's child inherits.

    All take the locks in one order. A cell that must be alone keeps nobody out while it waits: behind a training of
    hours, all other devices would stand idle. It waits for a moment in which nothing is measured, at the latest the
    end of the sweeps that run.

    Args:
        device_id: `cpu`, or the UUID of a GPU or of a part of one.
        alone: whether nothing else may be measured on the whole machine meanwhile.
        cores: those that a CPU cell runs on; None: all that this process may use.
        part_of: the UUID of the GPU that the device is a part of (MIG).
        what: the cell's title, for those who wait.
        say: told for whom this waits.
    """
    folder = lock_folder()
    locks = [("machine", not alone)]  # and whether each is shared
    if not alone and device_id == "cpu":
        locks += [(f"core-{core}", False) for core in sorted(_usable() if cores is None else cores)]
    elif not alone:
        locks += [(device_id, False)] if part_of is None else [(part_of, True), (device_id, False)]
    with contextlib.ExitStack() as stack:
        yield tuple(
            stack.enter_context(hold(folder / f"{name}.lock", what, say, shared=shared)) for name, shared in locks
        )


def memory_share(cores: Collection[int] | None) -> float:
    """What part of this machine's memory is for a cell on some of the cores that this process began with; None: all."""
    return 1.0 if cores is None else min(1.0, len(cores) / len(_ALL_CORES))


def core_sets(size: int, setting: str) -> list[tuple[int, ...]]:
    """The cores that this process may use, in sets of a size.

    Raises `ConfigError`, with the setting, where there are fewer or no way to choose them.
    """
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if size > len(usable):
        raise ConfigError(f"{setting}={size}: must be at most {len(usable)}, the cores that this process can choose")
    return [tuple(usable[start : start + size]) for start in range(0, len(usable) - size + 1, size)]


@contextlib.contextmanager
def pin_to_free_cores(size: int, setting: str) -> Iterator[tuple[int, ...]]:
    """Run on a set of cores of this machine that no other process has chosen; on the first one where all are taken.

    It only chooses: what keeps others from a core is a device's lock. Raises as `core_sets` and `lock_folder`.
    """
    global _last_cores
    before, sets = _usable(), core_sets(size, setting)
    with contextlib.ExitStack() as stack:
        # The same as before, if it is free: there is a server of children for it.
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
    """The folder of the devices' locks, for all users, sweeps and results folders; `ConfigError` where it is no use.

    ATTENTION_ZOO_SLOTS names another one, for jobs that are known not to disturb each other.
    """
    name = os.environ.get("ATTENTION_ZOO_SLOTS", FOLDER)
    folder = Path(name)
    try:
        if not name or folder.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "a link" if name else "empty")
        own.claim(folder, own.SLOTS, "ATTENTION_ZOO_SLOTS")
        with try_lock(open_lock(folder / ".probe")):  # a file system without locks is refused
            pass
    except OSError as error:
        raise ConfigError(
            f"ATTENTION_ZOO_SLOTS={name}: {error.strerror}; must be a folder that every user may write to"
        ) from None
    return folder


def _usable() -> Collection[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


# Those that this process began with; a worker keeps to some of them later.
_ALL_CORES = frozenset(_usable())
