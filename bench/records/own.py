"""Folders that the suite has made, which bear its marker: nowhere else is anything removed or written over."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from bench.common.errors import ConfigError, bounded
from bench.records.disk import files, is_file, write_atomically
from bench.records.files import decode, read_file
from bench.records.record import RecordError

MARKER = ".attention-zoo"
RECORD = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}\.json")
CHECKPOINT = re.compile(r"step-[0-9]{10}\.pt")
# What the folder of a cell that trains holds.
TRAINED = re.compile(rf"{CHECKPOINT.pattern}|model\.safetensors|config\.json")


def _never(folder: Path) -> bool:
    return False


@dataclass(frozen=True)
class Kind:
    """A kind of folders.

    Attributes:
        what: the line that its marker holds.
        names: patterns of what the suite writes at its top.
        nested: those that hold folders of the suite's, too.
        drawn: those for figures and tables, which older versions have left without a marker.
        known: whether a folder is the suite's though it bears no marker, as older versions left none.
        mode: permissions of a folder that is made; None: those of any other.
    """

    what: str
    names: tuple[str, ...]
    nested: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    known: Callable[[Path], bool] = _never
    mode: int | None = None


def _holds_records(folder: Path) -> bool:
    return any(_is_record(file) for file in files(folder / "records", RECORD))


def _is_record(file: Path) -> bool:
    try:
        decode(file.name, read_file(file), lambda: read_file(file.parents[1] / "samples" / file.name))
    except RecordError:
        return False
    return True


def _holds_signed_locks(folder: Path) -> bool:
    return any(_is_signed(file) for file in files(folder, re.compile(r".*\.lock")))


def _is_signed(file: Path) -> bool:
    try:
        return {"host", "pid", "what"} <= json.loads(read_file(file)).keys()
    except (RecordError, ValueError, AttributeError, RecursionError):
        return False


# All that a sweep writes to later; what is not there any more is not made again, it comes back.
FOLDERS = ("inputs", "locks", "records", "samples", "scratch", "sweeps", "training")
_DRAWN = ("figures", "tables")
RESULTS = Kind(
    "results of the attention zoo",
    (*FOLDERS, *_DRAWN, "hydra", "index.json", "mlartifacts", "mlflow.*", "mlflow-server.log"),
    nested=("scratch", "sweeps", "training"),
    drawn=_DRAWN,
    known=_holds_records,
)
DRAWN = "figures and tables of the attention zoo"
# All users of a machine may hold the locks of its devices.
SLOTS = Kind("locks of devices, of the attention zoo", ("*.lock", ".probe"), known=_holds_signed_locks, mode=0o1777)


def drawn(names: Iterable[str]) -> Kind:
    """Of a folder for figures or tables of these names; one with other files in it can be taken, too."""
    return Kind(DRAWN, tuple(form for name in names for form in (f"{name}.*", f"{name}_*.*")))


def claim(folder: Path, kind: Kind, setting: str) -> None:
    """Make a folder the suite's, for good: it is made if it is not there, and gets the marker.

    Args:
        folder: to be new, to bear the marker, or to hold nothing under the kind's names.
        kind: what it is to be.
        setting: what named it.

    Raises:
        ConfigError: it is somebody else's; nothing is written then.
        OSError: it cannot be made, or is none.
    """
    check(folder, kind, setting)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        if not folder.is_dir():
            raise
    else:
        if kind.mode is not None:
            folder.chmod(kind.mode)
    if not is_marked(folder, kind):
        mark(folder, kind)
        for name in kind.drawn:
            if (folder / name).is_dir():
                write_atomically(folder / name / MARKER, f"{DRAWN}\n".encode())


def check(folder: Path, kind: Kind, setting: str) -> None:
    """See whether `claim` would take a folder, without writing; raises as it does, but for folders that are missing."""
    named = f"{setting}={bounded(str(folder))!r}"
    for parent in folder.absolute().parents:
        if folder.absolute().relative_to(parent).parts[0] in FOLDERS and is_marked(parent, RESULTS):
            raise ConfigError(f"{named}: is part of the results in {bounded(str(parent))}; must be a folder elsewhere")
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise ConfigError(f"{named}: is no folder, and stays as it is; must be a folder, or the name of a new one")
    taken = [name for name in sorted(os.listdir(folder)) if any(fnmatchcase(name, form) for form in kind.names)]
    for path in (*(folder / name for name in taken), *_nested(folder, kind)):
        if path.is_symlink():
            place = bounded(str(path.relative_to(folder)))
            raise ConfigError(f"{named}: {place} is a link; must be a folder in which nothing is elsewhere")
    foreign = [*taken, *([MARKER] if os.path.lexists(folder / MARKER) else [])]
    if foreign and not is_marked(folder, kind) and not kind.known(folder):
        raise ConfigError(
            f"{named}: holds {bounded(foreign[0])}, which is not the suite's; must be a new folder,"
            f" one that the suite made, or one with nothing of that name"
        )


def _nested(folder: Path, kind: Kind) -> Iterator[Path]:
    for name in kind.nested:
        if (folder / name).is_dir():
            yield from (folder / name).iterdir()


def is_marked(folder: Path, kind: Kind) -> bool:
    """Whether a folder bears the marker of its kind."""
    return is_file(folder / MARKER) and _says(folder / MARKER, kind)


def mark(folder: Path, kind: Kind) -> None:
    """Leave the marker in a folder that the suite has just made, or may take."""
    write_atomically(folder / MARKER, f"{kind.what}\n".encode())


def _says(marker: Path, kind: Kind) -> bool:
    try:
        return read_file(marker) == f"{kind.what}\n".encode()
    except RecordError:
        return False
