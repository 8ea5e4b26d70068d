"""`python -m bench.merge FROM... INTO`: add the records of other results folders, from other machines say, to one."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.common import signals
from bench.common.errors import ConfigError, Parser, bounded, named_path, one_line, say
from bench.measures.summary import quantities
from bench.records import own
from bench.records.archive import ArchiveError, Read, contents
from bench.records.disk import write_atomically
from bench.records.files import decode, read_file
from bench.records.record import RecordError
from bench.records.store import Store

DETAILS = """
A FROM is a results folder or an archive that `make pack` wrote; INTO may be new. What INTO has stays as it is: a
record of the same name with other contents is a conflict, which is named, as is what is no record; the exit code is 1
then. Several records of a cell are attempts, of which figures and sweeps take the newest that measured. What was
interrupted goes on with the same command.

Records, their samples and the plans of sweeps are copied. Left behind: caches (inputs/), checkpoints and trained
weights (training/), and what is made from records again (MLflow's store, figures).
"""
PLANS = "sweeps/*/plan.json.gz"


@dataclass
class Tally:
    """What became of the records of the folders that were merged."""

    added: int = 0
    there: int = 0
    conflicts: int = 0
    skipped: int = 0
    shared: set[str] = field(default_factory=set)
    """Cells that had a record and got another, by what the names of their files begin with."""

    def __str__(self) -> str:
        counts = {"were there": self.there, "in conflict": self.conflicts, "skipped": self.skipped}
        told = [f"{self.added} records added", *(f"{count} {what}" for what, count in counts.items() if count)]
        if self.shared:
            told.append(f"{len(self.shared)} cells have new records beside others")
        return ", ".join(told)


def merge(sources: Sequence[Path], into: Path) -> Tally:
    """Add the records of results folders and archives to a results folder, in this order.

    Raises:
        ConfigError: one of them cannot be what it is said to be; nothing is written then.
        OSError: a disk is full, say.
    """
    opened = [(source, _open(source, into)) for source in sources]
    store, tally = Store(into), Tally()
    try:
        there = set(store.names())
        own.claim(into, own.RESULTS, "INTO")
        store.records_dir.mkdir(exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"INTO={str(into)!r}: {error.strerror}; must be a results folder or a new one") from None
    store.clear_leftovers()
    for source, records in opened:
        before = {name[:16] for name in there}
        for name, read, read_samples in records:
            with _named(f"{source}: {name}", tally):
                _merge_record(store, name, read, read_samples, tally)
                if name not in there:
                    there.add(name)
                    tally.shared |= before & {name[:16]}
        for plan in source.glob(PLANS):
            # Two plans with one name have the same cells: the name is their hash.
            if not (copy := into / plan.relative_to(source)).exists():
                with _named(str(plan), tally):
                    copy.parents[1].mkdir(exist_ok=True)
                    write_atomically(copy, read_file(plan))
    return tally


def _merge_record(store: Store, name: str, read: Read, read_samples: Read, tally: Tally) -> None:
    """Raises `RecordError` if it is none."""
    data, path = read(), store.records_dir / name
    if not os.path.lexists(path):
        samples = None

        def kept() -> bytes:
            nonlocal samples
            samples = read_samples()
            return samples

        quantities(decode(name, data, kept))
        with store.writing():
            store.keep(name, data, samples)
        tally.added += 1
    elif _same(path, data):
        tally.there += 1
    else:
        raise _Conflict(f"differs from {path}, which stays")


class _Conflict(Exception):
    """A record of the same name has other contents."""


def _same(path: Path, data: bytes) -> bool:
    with contextlib.suppress(RecordError):
        return read_file(path) == data
    return False


@contextlib.contextmanager
def _named(what: str, tally: Tally) -> Iterator[None]:
    """Name what is no record, or in conflict, and go on."""
    try:
        yield
    except _Conflict as error:
        tally.conflicts += 1
        say(f"conflict: {bounded(what)}: {error}")
    except RecordError as error:
        tally.skipped += 1
        say(f"{bounded(what)}: skipped, {one_line(error)}")


def _open(source: Path, into: Path) -> Iterator[tuple[str, Read, Read]]:
    """The names of a source's records, and how to read each and its samples."""
    if source.is_file():
        try:
            return contents(source)
        except ArchiveError as error:
            raise ConfigError(f"FROM={str(source)!r}: {one_line(error)}") from None
    store = Store(source)
    if not store.records_dir.is_dir():
        raise ConfigError(f"FROM={str(source)!r}: holds no records; must be a results folder or an archive of one")
    if into.exists() and source.samefile(into):
        raise ConfigError(f"FROM={str(source)!r}: is INTO itself")
    return (
        (name, partial(read_file, store.records_dir / name), partial(read_file, store.samples_dir / name))
        for name in store.names()
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Merge; returns the exit status."""
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="python -m bench.merge", description=__doc__, epilog=DETAILS, formatter_class=form)
    parser.add_argument("sources", type=named_path, nargs="+", metavar="FROM")
    parser.add_argument("into", type=named_path, metavar="INTO")
    options = parser.parse_args(arguments)
    try:
        tally = merge(options.sources, options.into)
    except (ConfigError, OSError) as error:
        say(f"error: {one_line(error)}")
        return 2 if isinstance(error, ConfigError) else 1
    print(f"{options.into}: {tally}")
    return int(tally.conflicts + tally.skipped > 0)


if __name__ == "__main__":
    sys.exit(signals.run(main))
