"""Files that are written completely or not at all. Links, pipes and devices are never written over."""

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

with contextlib.suppress(ImportError):  # not on Windows, where records can still be read
    import fcntl

# The largest file that is read, in bytes, after decompression.
LARGEST = 2**26
# The first bytes of a gzip file.
_GZIP = b"\x1f\x8b"


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees all of it or nothing, even after a crash. An OSError names the file."""
    with replacing(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BufferedRandom]:
    """A temporary file to write and read. It becomes `path` if the block ends without an error, else it is removed.

    The parent folder is created, but none above it: a results folder that was unmounted may come back. Raises OSError
    if the file cannot be written, or if something else than a regular file is at `path`.
    """
    path.parent.mkdir(exist_ok=True)
    require_file(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with _created(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and not isinstance(error, ConnectionError):  # from a download
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def _created(path: Path) -> BufferedRandom:
    """A new file; its lock tells a sweep that removes leftovers that it is used. Removed before, it is made again."""
    while True:
        file = open(path, "x+b")  # noqa: SIM115
        with contextlib.suppress(OSError):
            lock(file.fileno(), exclusively=True)
        if path.exists():
            return file
        file.close()


def unfinished(folder: Path, form: re.Pattern[str]) -> Iterator[Path]:
    """The temporary files that killed processes left of files whose names match a pattern."""
    return files(folder, re.compile(rf"\.(?:{form.pattern})\.[0-9a-f]+\.tmp"))


def lock(descriptor: int, *, exclusively: bool) -> None:
    """Lock a file or folder until it is closed. Raises OSError if an exclusive lock is not free."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if exclusively else fcntl.LOCK_SH)


def is_file(path: Path) -> bool:
    """Whether a path is a regular file; links, pipes and devices are not."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def require_file(path: Path) -> None:
    """Raise OSError if a path exists and is not a regular file, so that it is neither opened nor written over."""
    if os.path.lexists(path) and not is_file(path):
        raise OSError(errno.EEXIST, "is no regular file, and stays as it is", str(path))


def files(folder: Path, form: re.Pattern[str]) -> Iterator[Path]:
    """The regular files in a folder whose names match a pattern; none if the folder is missing or a link."""
    return (entry for entry in entries(folder, form) if is_file(entry))


def folders(folder: Path, form: re.Pattern[str]) -> Iterator[Path]:
    """The folders in a folder whose names match a pattern, otherwise like `files`."""
    return (entry for entry in entries(folder, form) if entry.is_dir() and not entry.is_symlink())


def entries(folder: Path, form: re.Pattern[str]) -> Iterator[Path]:
    """Everything in a folder whose name matches a pattern, sorted by name, otherwise like `files`."""
    if folder.is_dir() and not folder.is_symlink():
        yield from (folder / name for name in sorted(os.listdir(folder)) if form.fullmatch(name))


def read_file(path: Path) -> bytes:
    """The contents of a regular file or a link to one; raises `RecordError` if it is unreadable or too large.

    Other kinds of files are not opened, since reading them may never end.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise RecordError("not a regular file")
        if status.st_size > LARGEST:
            raise RecordError(f"larger than {LARGEST >> 20} MiB")
        with open(path, "rb") as file:
            return file.read(status.st_size)  # reading a kernel file may never end
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}") from None


def decompress(data: bytes) -> bytes:
    """Decompress xz or gzip data; raises `RecordError` if it is invalid or larger than `LARGEST` when decompressed."""
    is_gzip = data.startswith(_GZIP)
    # A few bytes of xz may ask for a dictionary of gigabytes.
    unpacked = zlib.decompressobj(wbits=31) if is_gzip else lzma.LZMADecompressor(memlimit=4 * LARGEST)
    try:
        content = unpacked.decompress(data, LARGEST)
    except (zlib.error, lzma.LZMAError) as error:
        raise RecordError(f"not compressed: {error}") from None
    if not unpacked.eof:
        raise RecordError(f"torn, or larger than {LARGEST >> 20} MiB")
    return content
