"""Files written wholly or not at all; where a link, a pipe or a device is in their place, it stays as it is."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from io import BufferedRandom, BufferedReader
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader (or a crash) sees all of it or nothing; an OSError names the file."""
    with replacing(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BufferedRandom]:
    """A file to write (and read), which becomes `path` when the block ends without an error, and is gone otherwise.

    Its folder is made, those above it are not: a results folder that is away comes back. What is at `path` and no
    regular file stays: OSError.
    """
    path.parent.mkdir(exist_ok=True)
    require_file(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "x+b") as file:
            # Says to whoever clears up that this is being written.
            with contextlib.suppress(OSError):
                lock(file.fileno(), exclusively=True)
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):  # half a file on a full disk is room for nothing else
            temporary.unlink()
        if isinstance(error, OSError) and not isinstance(error, ConnectionError):  # that of what is being written
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def unfinished(folder: Path, form: re.Pattern[str]) -> Iterator[Path]:
    """What writers that were killed left of files whose names have a form."""
    return files(folder, re.compile(rf"\.(?:{form.pattern})\.[0-9a-f]+\.tmp"))


def lock(descriptor: int, *, exclusively: bool) -> None:
    """A lock on a file or folder, which ends with its holder; raises OSError where it cannot be had at once."""
    import fcntl  # records are read where there is none, too

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if exclusively else fcntl.LOCK_SH)


def is_file(path: Path) -> bool:
    """Whether a path is a regular file itself: no link to one, nothing that may have no end."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def require_file(path: Path) -> None:
    """Raise OSError where something is at a path that is no regular file: it is neither opened nor written over."""
    if os.path.lexists(path) and not is_file(path):
        raise _irregular(path)


def _irregular(path: Path) -> OSError:
    return OSError(errno.EEXIST, "is no regular file, and stays as it is", str(path))


def open_file(path: Path) -> BufferedReader:
    """A regular file to read.

    Raises:
        OSError: it cannot be opened, or is a link or something that may have no end; nothing waits.
    """
    require_file(path)
    unfollowed = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | unfollowed)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise _irregular(path)


def files(folder: Path, form: re.Pattern[str]) -> Iterator[Path]:
    """The regular files of a folder whose names have a form, if it is a folder and no link to one."""
    return (entry for entry in entries(folder, form) if is_file(entry))


def folders(folder: Path, form: re.Pattern[str]) -> Iterator[Path]:
    """The folders in a folder whose names have a form; else as `files`."""
    return (entry for entry in entries(folder, form) if entry.is_dir() and not entry.is_symlink())


def entries(folder: Path, form: re.Pattern[str]) -> Iterator[Path]:
    """Whatever in a folder has a name of a form, in the order of names; else as `files`."""
    if folder.is_dir() and not folder.is_symlink():
        yield from (folder / name for name in sorted(os.listdir(folder)) if form.fullmatch(name))
