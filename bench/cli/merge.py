"""`python -m bench.merge FROM... INTO`: add the records of other results folders, from other machines say, to one."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.common.errors import ConfigError, Parser, bounded, named_path, one_line, say
from bench.measures.summary import Results
from bench.records import own
from bench.records.archive import Archive, ArchiveError
from bench.records.disk import read_file, write_atomically
from bench.records.record import RecordError
from bench.records.store import Store

DETAILS = """
A FROM is a results folder or an archive that `make pack` wrote; INTO may be new. What INTO has stays as it is: a
record of the same name with other contents is a conflict, which is named, as is what is no record; the exit code is 1
then. Several records of a cell are attempts: figures and sweeps take the newest that measured. A merge that was
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
    """Cells that had a record and got another, by how the names of their files begin."""

    def __str__(self) -> str:
        counts = {"were there": self.there, "in conflict": self.conflicts, "skipped": self.skipped}
        parts = [f"{self.added} records added", *(f"{count} {what}" for what, count in counts.items() if count)]
        if self.shared:
            parts.append(f"{len(self.shared)} cells have new records beside others")
        return ", ".join(parts)


def merge(sources: Sequence[Path], into: Path) -> Tally:
    """Add the records of results folders and archives to a results folder, in this order.

    Raises:
        ConfigError: one of them is no results folder or archive; nothing is written then.
        OSError: a disk is full, say.
    """
    opened = [(source, _open(source, into)) for source in sources]
    store, tally = Store(into), Tally()
    try:
        own.claim(into, own.RESULTS, "INTO")
        store.records_dir.mkdir(exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"INTO={str(into)!r}: {error.strerror}; must be a results folder or a new one") from None
    store.clear_leftovers()
    for source, records in opened:
        cells = {name[:16] for name in store.names()}
        for name in records.names():
            try:
                if _merge_record(source, records, name, store, tally) and name[:16] in cells:
                    tally.shared.add(name[:16])
            except RecordError as error:
                _skip(f"{source}: {name}", error, tally)
        for plan in source.glob(PLANS):
            # Two plans with one name have the same cells: the name is their hash.
            if not (copy := into / plan.relative_to(source)).exists():
                try:
                    data = read_file(plan)
                except RecordError as error:
                    _skip(str(plan), error, tally)
                else:
                    copy.parents[1].mkdir(exist_ok=True)
                    write_atomically(copy, data)
    return tally


def _merge_record(source: Path, records: Store, name: str, store: Store, tally: Tally) -> bool:
    """Whether it was added; raises `RecordError` if it is no record."""
    path = store.records_dir / name
    if not os.path.lexists(path):
        records.decode(name)
        store.copy(records, name)
        tally.added += 1
        return True
    data = records.read_record(name)
    try:
        same = read_file(path) == data
    except RecordError:
        same = False
    if same:
        tally.there += 1
    else:
        tally.conflicts += 1
        say(f"conflict: {bounded(f'{source}: {name}')}: differs from {path}, which stays")
    return False


def _skip(what: str, error: RecordError, tally: Tally) -> None:
    tally.skipped += 1
    say(f"{bounded(what)}: skipped, {one_line(error)}")


def _open(source: Path, into: Path) -> Store:
    """A source's records."""
    if source.is_file():
        try:
            return Archive(source)
        except ArchiveError as error:
            raise ConfigError(f"FROM={str(source)!r}: {one_line(error)}") from None
    results = Results(source)
    if not results.records_dir.is_dir():
        raise ConfigError(f"FROM={str(source)!r}: holds no records; must be a results folder or an archive of one")
    if into.exists() and source.samefile(into):
        raise ConfigError(f"FROM={str(source)!r}: is INTO itself")
    return results


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
