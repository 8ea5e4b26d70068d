"""Whether locks on the files of a folder keep others out: not on every file system, and not always on every node."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from pathlib import Path

from bench.common.errors import ConfigError
from bench.execution.locks import open_lock

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
MOUNTS = Path("/proc/self/mountinfo")
# NFS, Lustre and SMB, when they are told that locks are each node's own business; SSHFS has no others.
ON_ONE_NODE = re.compile(r"nolock|local_lock=(?:flock|all)|localflock|nobrl")
OF_ONE_NODE = ("fuse.sshfs",)


def require_locks(folder: Path, setting: str, *, shared: bool = False) -> None:
    """See that a lock on a file in a folder keeps others from it.

    Args:
        folder: an existing one, to which this process may write.
        setting: what named the folder, for the error.
        shared: whether the others are on other nodes, too.

    Raises:
        ConfigError: it does not.
        OSError: no file can be made there.
    """
    wrong = _without_effect(folder) or (shared and _on_one_node(folder))
    if wrong:
        raise ConfigError(f"{setting}: {wrong}; must be on a file system that locks files")


def _without_effect(folder: Path) -> str | None:
    # It stays there: one who tries at the same moment finds it locked, which is as good an answer.
    mine, other = (open_lock(folder / ".probe") for _ in range(2))
    try:
        fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return f"its file system does not lock files (flock: {error.strerror})"
    finally:
        os.close(mine)
        os.close(other)
    return "its file system only pretends to lock files (flock: two held one lock)"


def _on_one_node(folder: Path) -> str | None:
    """Why locks there are unknown to other nodes, as far as the mount says."""
    kind, options = _mount(folder)
    if kind in OF_ONE_NODE:
        return f"its file system locks files for one node only ({kind})"
    local = next(filter(ON_ONE_NODE.fullmatch, options), None)
    return local and f"its file system locks files for one node only (mounted with {local})"


def _mount(folder: Path) -> tuple[str, list[str]]:
    """The type of the file system that a folder is on, and the options it was mounted with; see proc(5)."""
    mounts: dict[Path, tuple[str, list[str]]] = {}
    for line in MOUNTS.read_text().splitlines() if MOUNTS.exists() else ():
        mounted, _, system = line.partition(" - ")
        point, options = mounted.split()[4:6]
        kind, _, more = system.split(" ", 2)
        mounts[Path(_unescaped(point))] = kind, [*options.split(","), *more.split(",")]  # later ones hide earlier
    place = folder.resolve()
    return next((mounts[point] for point in (place, *place.parents) if point in mounts), ("", []))


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
