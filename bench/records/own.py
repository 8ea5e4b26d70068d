"""The suite marks its folders with a file. In other folders it never removes a file or writes over one."""

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from bench.common.errors import ConfigError, bounded
from bench.records.disk import files, is_file, read_file, write_atomically
from bench.records.record import SCHEMA, RecordError

MARKER = ".attention-zoo"
# The file that tells a results folder from all others where several write to one server.
IDENTITY = "mlflow.folder"
RECORD = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}\.json")
CHECKPOINT = re.compile(r"step-[0-9]{10}\.pt")
# The files in the folder of a cell that trains.
TRAINED = re.compile(rf"{CHECKPOINT.pattern}|model\.safetensors|(tokenizer_)?config\.json|tokenizer\.json")


@dataclass(frozen=True)
class Kind:
    """A kind of folder.

    Attributes:
        what: the line in the marker file.
        names: patterns of the names that the suite writes in the folder itself.
        nested: those of its folders that contain folders of the suite, too.
        mode: permissions of a new folder; None: the default ones.
    """

    what: str
    names: tuple[str, ...]
    nested: tuple[str, ...] = ()
    mode: int | None = None


# All folders that a sweep writes to. One that goes missing is not made again, since its disk may come back.
FOLDERS = ("inputs", "locks", "records", "samples", "scratch", "sweeps", "training")
_DRAWN = ("figures", "tables")
RESULTS = Kind(
    "results of the attention zoo",
    (*FOLDERS, *_DRAWN, "hydra", "index.json", "mlartifacts", "mlflow.*", "mlflow-server.log"),
    nested=("scratch", "sweeps", "training"),
)
DRAWN = "figures and tables of the attention zoo"
# All users of a machine can lock its devices.
SLOTS = Kind("locks of devices, of the attention zoo", ("*.lock", ".probe"), mode=0o1777)


def drawn(names: Iterable[str]) -> Kind:
    """A folder for figures or tables of these names; it may also hold other users' files with other names."""
    return Kind(DRAWN, tuple(form for name in names for form in (f"{name}.*", f"{name}_*.*")))


def claim(folder: Path, kind: Kind, setting: str) -> None:
    """Create a folder if it is missing, and mark it as the suite's.

    Args:
        folder: a new one, one with the marker, or one without any file that matches the kind's names.
        kind: the kind of folder.
        setting: the setting that named the folder, for the message.

    Raises:
        ConfigError: it belongs to somebody else; nothing was written.
        OSError: it cannot be created, or is not a folder.
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
        if kind.mode is not None:
            (folder / MARKER).chmod(0o644)  # whatever the umask: other users look for it
        for name in _DRAWN if kind is RESULTS else ():  # older versions did not mark them
            if (folder / name).is_dir():
                mark(folder / name, drawn(()))


def check(folder: Path, kind: Kind, setting: str) -> None:
    """Check whether `claim` would accept a folder, without writing; raises like `claim`, a missing folder is fine."""
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
    """Whether a folder without a marker holds results, as older versions left them."""
    for file in files(folder / "records", RECORD):
        with contextlib.suppress(RecordError, ValueError, AttributeError, RecursionError):
            if json.loads(read_file(file)).get("schema") == SCHEMA:
                return True
    return False


def is_marked(folder: Path, kind: Kind) -> bool:
    """Whether a folder has the marker of its kind."""
    try:
        return is_file(folder / MARKER) and read_file(folder / MARKER) == f"{kind.what}\n".encode()
    except RecordError:
        return False


def mark(folder: Path, kind: Kind) -> None:
    """Write the marker into a folder."""
    write_atomically(folder / MARKER, f"{kind.what}\n".encode())


def identity(folder: Path) -> str:
    """What tells a results folder from all others, also after it has moved; made at the first call."""
    path = folder / IDENTITY
    if not is_file(path) or not re.fullmatch(rb"[0-9a-f]{16}\n", read_file(path)):
        write_atomically(path, f"{secrets.token_hex(8)}\n".encode())
    return read_file(path).decode().strip()
