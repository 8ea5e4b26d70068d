"""`python -m bench.records.archive pack|unpack`: the records of a results folder as one file, to bring them home."""

from __future__ import annotations

import functools
import gzip
import io
import os
import re
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.common import signals
from bench.common.errors import ConfigError, Parser, named_path, one_line
from bench.records import own
from bench.records.disk import require_file, write_atomically
from bench.records.files import LARGEST, decode
from bench.records.own import RECORD
from bench.records.record import RecordError
from bench.records.store import Store

Read = Callable[[], bytes]
# Of an archive, unpacked: it is held in memory.
LARGEST_ARCHIVE = 2**30
MEMBER = re.compile(rf"(records|samples)/({RECORD.pattern})")


_TOO_LARGE = f"its records are larger than {LARGEST_ARCHIVE >> 20:,} MiB"


class ArchiveError(ValueError):
    """An archive that holds something else than records; the message names it."""


def pack(results_dir: Path, archive: Path) -> int:
    """Write the records, and nothing else of the folder, into a compressed archive; returns how many.

    A file that is no record is named on stderr and left out.

    Raises:
        ArchiveError: something else is at the archive's path.
        ConfigError: the folder is not one of results, lacks records that an earlier archive of that name has, or they
            are more than `LARGEST_ARCHIVE`.
    """
    earlier = _own_records(archive) if os.path.lexists(archive) else set()
    buffer, store = io.BytesIO(), Store(results_dir)
    records = [path for path, _ in store.readable(store.names())]
    made = own.is_marked(results_dir, own.RESULTS) or any((results_dir / name).is_dir() for name in own.FOLDERS)
    # One that a sweep has made, or is to make, may have none yet.
    if not records and not made and results_dir.is_dir() and any(results_dir.iterdir()):
        raise ConfigError(f"--results={str(results_dir)!r}: holds no records; must be a results folder")
    if lost := len(earlier - {path.name for path in records}):
        where = f"--results={str(results_dir)!r}"
        raise ConfigError(f"{where}: lacks {lost} records that {archive} has, which stays as it is; must be a new name")
    samples = [path for path in (store.samples_dir / record.name for record in records) if path.exists()]
    if sum(tarfile.BLOCKSIZE + path.stat().st_size for path in (*records, *samples)) > LARGEST_ARCHIVE:
        raise ConfigError(f"--results={str(results_dir)!r}: {_TOO_LARGE}; `python -m bench.merge` takes folders")
    # What a link leads to, and not the link.
    with tarfile.open(fileobj=buffer, mode="w:gz", dereference=True) as tar:
        for path in (*samples, *records):
            tar.add(path, f"{path.parent.name}/{path.name}", filter=_anonymous)
    archive.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(archive, buffer.getvalue())
    return len(records)


def _own_records(archive: Path) -> set[str]:
    """The names of the records in an earlier archive, which alone may be written over."""
    try:
        require_file(archive)
        return set(_members(archive)["records"])
    except (OSError, ArchiveError):
        raise ArchiveError(f"{archive}: is no archive of records, and stays as it is; must be a new name") from None


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack(archive: Path, results_dir: Path) -> tuple[int, int]:
    """Add an archive's records to a results folder; those that are there stay as they are.

    Returns:
        How many were added, and how many were there.

    Raises:
        ArchiveError: a member is not a record, or not where records lie, or all are more than `LARGEST_ARCHIVE`;
            nothing is written then.
    """
    files = _members(archive)
    for name, data in files["records"].items():
        try:
            decode(name, data, functools.partial(_content, files["samples"], name))
        except RecordError as error:
            raise ArchiveError(f"{archive}: {name}: {error}") from None
    own.claim(results_dir, own.RESULTS, "--results")
    store = Store(results_dir)
    missing = [name for name in files["records"] if not (store.records_dir / name).exists()]
    with store.writing():
        for name in missing:
            store.keep(name, files["records"][name], files["samples"].get(name))
    return len(missing), len(files["records"]) - len(missing)


def contents(archive: Path) -> Iterator[tuple[str, Read, Read]]:
    """The names of an archive's records, each with what gives its contents and those of its samples.

    Raises:
        ArchiveError: a member is not a record's file.
    """
    files = _members(archive)
    read, read_samples = (
        functools.partial(functools.partial, _content, files[kind]) for kind in ("records", "samples")
    )
    return ((name, read(name), read_samples(name)) for name in sorted(files["records"]))


def _members(archive: Path) -> dict[str, dict[str, bytes]]:
    """The contents of an archive's files, by folder and name."""
    files: dict[str, dict[str, bytes]] = {"samples": {}, "records": {}}
    try:
        if not archive.is_file():
            raise ArchiveError(f"{archive}: is no file; must be an archive that `make pack` wrote")
        with gzip.open(archive) as stream, _stream(_Bounded(stream, archive)) as tar:
            for member in tar:
                match = MEMBER.fullmatch(member.name)
                content = tar.extractfile(member) if match and member.isreg() and member.size <= LARGEST else None
                if match is None or content is None:
                    raise ArchiveError(f"{archive}: {member.name[:200]!r} is not a record's file")
                files[match[1]][match[2]] = content.read()
    except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise ArchiveError(f"{archive}: {error}") from None
    return files


def _stream(content: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=content, mode="r|")  # it needs nothing but `read`


class _Bounded:
    """What a compressed file holds, as far as that is bounded, whatever its headers say."""

    def __init__(self, stream: gzip.GzipFile, archive: Path) -> None:
        self._stream, self._archive, self._left = stream, archive, LARGEST_ARCHIVE

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise ArchiveError(f"{self._archive}: {_TOO_LARGE}")
        return data


def _content(files: dict[str, bytes], name: str) -> bytes:
    if name not in files:
        raise RecordError("are not in the archive")
    return files[name]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = Parser(prog="python -m bench.records.archive", description=__doc__)
    parser.add_argument("command", choices=("pack", "unpack"))
    parser.add_argument("archive", type=named_path, metavar="ARCHIVE")
    parser.add_argument("--results", type=named_path, default=Path("runs"), metavar="DIR", help="default: runs")
    options = parser.parse_args(arguments)
    try:
        if options.command == "pack":
            print(f"{options.archive}: {pack(options.results, options.archive)} records")
        else:
            added, present = unpack(options.archive, options.results)
            print(f"{options.results}: {added} records added, {present} were there")
    except ArchiveError as error:
        print(f"error: ARCHIVE={one_line(error)}", file=sys.stderr)
        return 2
    except (ConfigError, OSError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(signals.run(main))
