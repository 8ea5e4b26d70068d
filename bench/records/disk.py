"""Files that are written as a whole or not at all. A link, a pipe or a device in the place of one stays as it is."""

import contextlib
import errno
import lzma
import os
import re
import secrets
import stat
import zlib
from collections.abc import Iterator
from io import BufferedRandom
from pathlib import Path

from bench.records.record import RecordError

with contextlib.suppress(ImportError):  # Windows has none, and records are read there too
    import fcntl

# The largest file that is read, in bytes, unpacked.
LARGEST = 2**26
# How a gzip file begins.
_GZIP = b"\x1f\x8b"


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees all of it or nothing, also after a crash. An OSError names the file."""
    with replacing(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BufferedRandom]:
    """A file to write and read. It becomes `path` when the block ends without an error, else it is removed.

    Its folder is made, but not the folders above: a results folder that was unmounted may come back. Raises OSError
    where it cannot be written, or something is at `path` that is no regular file.
    """
    path.parent.mkdir(exist_ok=True)
    require_file(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "x+b") as file:
            # The lock tells a sweep that clears up that somebody is writing this file.
            with contextlib.suppress(OSError):
                lock(file.fileno(), exclusively=True)
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and not isinstance(error, ConnectionError):  # the download's, not the file's
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def unfinished(folder: Path, form: re.Pattern[str]) -> Iterator[Path]:
    """The temporary files that killed writers left of files whose names have a form."""
    return files(folder, re.compile(rf"\.(?:{form.pattern})\.[0-9a-f]+\.tmp"))


def lock(descriptor: int, *, exclusively: bool) -> None:
    """Lock a file or folder until it is closed. Raises OSError where an exclusive lock cannot be had at once."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if exclusively else fcntl.LOCK_SH)


def is_file(path: Path) -> bool:
    """Whether a path is a regular file: no link to one, no pipe, no device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def require_file(path: Path) -> None:
    """Raise OSError where a path is something else than a regular file: it is neither opened nor written over."""
    if os.path.lexists(path) and not is_file(path):
        raise OSError(errno.EEXIST, "is no regular file, and stays as it is", str(path))


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


def read_file(path: Path) -> bytes:
    """The contents of a regular file or of a link to one; raises `RecordError` where it cannot be read or is too large.

    Nothing else is opened, for it may have no end.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise RecordError("not a regular file")
        if status.st_size > LARGEST:
            raise RecordError(f"larger than {LARGEST >> 20} MiB")
        with open(path, "rb") as file:
            return file.read(status.st_size)  # a file of the kernel's may have no end
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}") from None


def decompress(data: bytes) -> bytes:
    """Undo xz or gzip; raises `RecordError` where that cannot be, or gives more than `LARGEST`."""
    is_gzip = data.startswith(_GZIP)
    unpacked = zlib.decompressobj(wbits=31) if is_gzip else lzma.LZMADecompressor(memlimit=4 * LARGEST)
    try:
        content = unpacked.decompress(data, LARGEST)
    except (zlib.error, lzma.LZMAError) as error:
        raise RecordError(f"not compressed: {error}") from None
    if not unpacked.eof:
        raise RecordError(f"torn, or larger than {LARGEST >> 20} MiB")
    return content
