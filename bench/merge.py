"""`python -m bench.merge FROM... INTO`: add the records of other results folders, from other machines say, to one."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.common import signals
from bench.common.errors import ConfigError, Parser, bounded, named_path, one_line, say
from bench.records import own
from bench.records.archive import Archive
from bench.records.disk import read_file, write_atomically
from bench.records.record import RecordError
from bench.records.store import Store
from bench.records.summary import Results

DETAILS = """
A FROM is a results folder or an archive that `make pack` wrote; INTO may be new. What INTO has stays as it is: a
record of the same name with other contents is a conflict, which is named, as is what is no record; the exit code is 1
then. Several records of a cell are attempts: figures and sweeps take the newest that measured. A merge that was
interrupted goes on with the same command.

Records, their samples and the plans of sweeps are copied. Left behind: caches (inputs/), checkpoints and trained
weights (training/), and what is made from records again (MLflow's store, figures).
"""
PLANS = "sweeps/*/plan.json.gz"


# What becomes of records, in the words of the last line.
ADDED, THERE, CONFLICT, SKIPPED = "records added", "were there", "in conflict", "skipped"


def merge(sources: Sequence[Path], into: Path) -> Counter[str]:
    """Add the records of results folders and archives to a results folder, in this order, and count them.

    Where one of them is neither, that is a `ConfigError`, and nothing is written.
    """
    opened = [(source, _open(source, into)) for source in sources]
    store, tally = Store(into), Counter(dict.fromkeys((ADDED, THERE, CONFLICT, SKIPPED), 0))
    try:
        own.claim(into, own.RESULTS, "INTO")
        store.records_dir.mkdir(exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"INTO={str(into)!r}: {error.strerror}; must be a results folder or a new one") from None
    store.clear_leftovers()
    for source, records in opened:
        for name in records.names():
            with _skipped(f"{source}: {name}", tally):
                tally[_merge_record(source, records, name, store)] += 1
        for plan in source.glob(PLANS):
            # Two plans with one name have the same cells: the name is their hash.
            if not (copy := into / plan.relative_to(source)).exists():
                with _skipped(str(plan), tally):
                    data = read_file(plan)
                    copy.parents[1].mkdir(exist_ok=True)
                    write_atomically(copy, data)
    return tally


@contextmanager
def _skipped(what: str, tally: Counter[str]) -> Iterator[None]:
    """Name what is no record, and go on."""
    try:
        yield
    except RecordError as error:
        tally[SKIPPED] += 1
        say(f"{bounded(what)}: skipped, {one_line(error)}")


def _merge_record(source: Path, records: Store, name: str, store: Store) -> str:
    """What becomes of it; a `RecordError` where it is no record."""
    path = store.records_dir / name
    if not os.path.lexists(path):
        records.decode(name)
        store.copy(records, name)
        return ADDED
    data = records.read_record(name)
    with suppress(RecordError):
        if read_file(path) == data:
            return THERE
    say(f"conflict: {bounded(f'{source}: {name}')}: differs from {path}, which stays")
    return CONFLICT


def _open(source: Path, into: Path) -> Store:
    """A source's records."""
    if os.path.lexists(source) and not source.is_dir():
        return Archive(source)
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
    counts = ", ".join(f"{count} {what}" for what, count in tally.items() if count or what == ADDED)
    print(f"{options.into}: {counts}")
    return int(tally[CONFLICT] + tally[SKIPPED] > 0)


if __name__ == "__main__":
    sys.exit(signals.run(main))
