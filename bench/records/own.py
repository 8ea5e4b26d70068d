"""Folders that the suite has made bear its marker. Nowhere else does it remove a file or write over one."""

import contextlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from bench.common.errors import ConfigError, bounded
from bench.records.disk import files, is_file, read_file, write_atomically
from bench.records.record import SCHEMA, RecordError

MARKER = ".attention-zoo"
RECORD = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}\.json")
CHECKPOINT = re.compile(r"step-[0-9]{10}\.pt")
# What the folder of a cell that trains holds.
TRAINED = re.compile(rf"{CHECKPOINT.pattern}|model\.safetensors|config\.json")


@dataclass(frozen=True)
class Kind:
    """A kind of folders.

    Attributes:
        what: the line in its marker.
        names: patterns of what the suite writes at its top.
        nested: which of these hold folders of the suite's, too.
        mode: permissions of a folder that is made; None: the usual ones.
    """

    what: str
    names: tuple[str, ...]
    nested: tuple[str, ...] = ()
    mode: int | None = None


# All that a sweep writes to later. A folder that is missing then is not made again: its disk may come back.
FOLDERS = ("inputs", "locks", "records", "samples", "scratch", "sweeps", "training")
_DRAWN = ("figures", "tables")
RESULTS = Kind(
    "results of the attention zoo",
    (*FOLDERS, *_DRAWN, "hydra", "index.json", "mlartifacts", "mlflow.*", "mlflow-server.log"),
    nested=("scratch", "sweeps", "training"),
)
DRAWN = "figures and tables of the attention zoo"
# All users of a machine may hold the locks of its devices.
SLOTS = Kind("locks of devices, of the attention zoo", ("*.lock", ".probe"), mode=0o1777)


def drawn(names: Iterable[str]) -> Kind:
    """A folder for figures or tables of these names; it may hold files of other names that are somebody else's."""
    return Kind(DRAWN, tuple(form for name in names for form in (f"{name}.*", f"{name}_*.*")))


def claim(folder: Path, kind: Kind, setting: str) -> None:
    """Make a folder the suite's: it is made if it is missing, and gets the marker.

    Args:
        folder: a new one, one with the marker, or one that holds nothing of the kind's names.
        kind: what it is to be.
        setting: what named it, for the message.

    Raises:
        ConfigError: it is somebody else's; nothing is written then.
        OSError: it cannot be made, or is no folder.
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
        for name in _DRAWN if kind is RESULTS else ():  # older versions left no marker in them
            if (folder / name).is_dir():
                mark(folder / name, drawn(()))


def check(folder: Path, kind: Kind, setting: str) -> None:
    """Whether `claim` would take a folder, without writing; raises as it does, but not for a missing folder."""
    named = f"{setting}={bounded(str(folder))!r}"
    for parent in folder.absolute().parents:
        if folder.absolute().relative_to(parent).parts[0] in FOLDERS and is_marked(parent, RESULTS):
            raise ConfigError(f"{named}: is part of the results in {bounded(str(parent))}; must be a folder elsewhere")
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise ConfigError(f"{named}: is no folder, and stays as it is; must be a folder, or the name of a new one")
    taken = [name for name in sorted(os.listdir(folder)) if any(fnmatchcase(name, form) for form in kind.names)]
    nested = [path for name in kind.nested if (folder / name).is_dir() for path in (folder / name).iterdir()]
    for path in (*(folder / name for name in taken), *nested):
        if path.is_symlink():
            place = bounded(str(path.relative_to(folder)))
            raise ConfigError(f"{named}: {place} is a link; must be a folder in which nothing is elsewhere")
    foreign = [*taken, *([MARKER] if os.path.lexists(folder / MARKER) else [])]
    if foreign and not is_marked(folder, kind) and not (kind is RESULTS and _holds_records(folder)):
        raise ConfigError(
            f"{named}: holds {bounded(foreign[0])}, which is not the suite's; must be a new folder,"
            f" one that the suite made, or one with nothing of that name"
        )


def _holds_records(folder: Path) -> bool:
    """Whether a folder without a marker is one of results, as older versions left them."""
    for file in files(folder / "records", RECORD):
        with contextlib.suppress(RecordError, ValueError, AttributeError, RecursionError):
            if json.loads(read_file(file)).get("schema") == SCHEMA:
                return True
    return False


def is_marked(folder: Path, kind: Kind) -> bool:
    """Whether a folder bears the marker of its kind."""
    try:
        return is_file(folder / MARKER) and read_file(folder / MARKER) == f"{kind.what}\n".encode()
    except RecordError:
        return False


def mark(folder: Path, kind: Kind) -> None:
    """Leave the marker in a folder that the suite has just made, or may take."""
    write_atomically(folder / MARKER, f"{kind.what}\n".encode())
