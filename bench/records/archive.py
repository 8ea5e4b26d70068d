"""`python -m bench.records.archive pack|unpack`: a results folder's records in one file, to copy to another machine.

Unpacking an archive merges it, as `bench.merge` does with other results.
"""

import os
import re
import sys
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.common import signals
from bench.common.errors import ConfigError, Parser, bounded, named_path, one_line, say
from bench.records import own
from bench.records.disk import LARGEST, decompress, read_file, replacing, require_file, write_atomically
from bench.records.record import RecordError
from bench.records.store import SAMPLES, Store
from bench.records.summary import Results

PLANS = "sweeps/*/plan.json.gz"
# The outcomes for a record, as the last printed line names them.
ADDED, THERE, CONFLICT, SKIPPED = "records added", "were there", "in conflict", "skipped"
MEMBER = re.compile(rf"(records|samples)/{SAMPLES.pattern}")


class Archive(Store):
    """The record files of an archive, in memory; raises `ConfigError` if it is damaged or holds other files."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._files: dict[tuple[str, str], bytes] = {}
        try:
            require_file(path)
            with tarfile.open(path, "r:gz") as tar:
                for member in tar:
                    match = MEMBER.fullmatch(member.name)
                    content = tar.extractfile(member) if match and member.isreg() and member.size <= LARGEST else None
                    if match is None or content is None:
                        raise RecordError(f"{member.name[:200]!r} is not a record's file")
                    data = content.read()
                    self._files[match[1], match[2]] = decompress(data) if match[3] else data
        except FileExistsError:
            raise ConfigError(f"{path}: is no file; must be an archive that `make pack` wrote") from None
        except (tarfile.TarError, zlib.error, EOFError, OSError, RecordError) as error:
            raise ConfigError(f"{path}: {one_line(error)}") from None

    def names(self) -> list[str]:
        """As in `Store`."""
        return sorted(name for folder, name in self._files if folder == "records")

    def read_record(self, name: str) -> bytes:
        """As in `Store`."""
        return self._files["records", name]

    def read_samples(self, name: str) -> bytes:
        """As in `Store`."""
        if ("samples", name) not in self._files:
            raise RecordError("are not in the archive")
        return self._files["samples", name]


def pack(results_dir: Path, path: Path) -> int:
    """Write the records, and nothing else of the folder, into a compressed archive; returns their number.

    Files that are not records are named on stderr and left out. Raises ConfigError if something else is at the
    archive's path, and if the folder is not a results folder or lacks records that the archive has.
    """
    store, where = Store(results_dir), f"--results={str(results_dir)!r}"
    records = [record for record, _ in store.readable(store.names())]
    if not records and not own.is_marked(results_dir, own.RESULTS):  # a marked results folder may be empty
        raise ConfigError(f"{where}: holds no records; must be a results folder")
    if os.path.lexists(path):
        try:
            lost = {*Archive(path).names()} - {record.name for record in records}
        except ConfigError:
            raise ConfigError(f"{path}: is no archive of records, and stays as it is; must be a new name") from None
        if lost:
            raise ConfigError(f"{where}: lacks {len(lost)} records that {path} has; the archive must be a new name")
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = [samples for record in records if (samples := store.samples_file(record.name)).exists()]
    # For a link, pack the file that it points to.
    with replacing(path) as file, tarfile.open(fileobj=file, mode="w:gz", dereference=True) as tar:
        for each in (*samples, *records):
            tar.add(each, f"{each.parent.name}/{each.name}", filter=_anonymous)
    return len(records)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid, member.gid, member.uname, member.gname = 0, 0, "", ""
    return member


def merge(sources: Sequence[Path], into: Path) -> Counter[str]:
    """Add the records of results folders and archives to a results folder, in this order; returns the counts.

    Raises ConfigError, before anything is written, if a source is neither a results folder nor an archive.
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
            # Plans with the same name have the same cells: the name is the hash of the cells.
            if not (copy := into / plan.relative_to(source)).exists():
                with _skipped(str(plan), tally):
                    data = read_file(plan)
                    copy.parents[1].mkdir(exist_ok=True)
                    write_atomically(copy, data)
    return tally


@contextmanager
def _skipped(what: str, tally: Counter[str]) -> Iterator[None]:
    """Name a file that is not a record on stderr, and continue."""
    try:
        yield
    except RecordError as error:
        tally[SKIPPED] += 1
        say(f"{bounded(what)}: skipped, {one_line(error)}")


def _merge_record(source: Path, records: Store, name: str, store: Store) -> str:
    """Merge one record and return the outcome; raises `RecordError` if the file is not a record."""
    path = store.records_dir / name
    if os.path.lexists(path):
        theirs, ours = records.read_record(name), None
        with suppress(RecordError):
            ours = store.read_record(name)
        if ours != theirs:
            say(f"conflict: {bounded(f'{source}: {name}')}: differs from {path}, which stays")
            return CONFLICT
        with suppress(RecordError):  # else the samples were lost here
            store.decode(name)
            return THERE
    records.decode(name)
    store.copy(records, name)
    return ADDED


def _open(source: Path, into: Path) -> Store:
    """Open a source of records."""
    if os.path.lexists(source) and not source.is_dir():
        return Archive(source)
    results = Results(source)
    if not results.records_dir.is_dir():
        raise ConfigError(f"FROM={str(source)!r}: holds no records; must be a results folder or an archive of one")
    if into.exists() and source.samefile(into):
        raise ConfigError(f"FROM={str(source)!r}: is INTO itself")
    return results


def report(tally: Counter[str], into: Path) -> int:
    """Print the counts of a merge; returns the exit status."""
    counts = ", ".join(f"{count} {what}" for what, count in tally.items() if count or what == ADDED)
    print(f"{into}: {counts}")
    return int(tally[CONFLICT] + tally[SKIPPED] > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = Parser(prog="python -m bench.records.archive", description=__doc__)
    parser.add_argument("command", choices=("pack", "unpack"))
    parser.add_argument("archive", type=named_path, metavar="ARCHIVE")
    parser.add_argument("--results", type=named_path, default=Path("runs"), metavar="DIR", help="default: runs")
    options = parser.parse_args(arguments)
    try:
        if options.command == "unpack":
            return report(merge([options.archive], options.results), options.results)
        print(f"{options.archive}: {pack(options.results, options.archive)} records")
    except (ConfigError, OSError) as error:
        say(f"error: {one_line(error)}")
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(signals.run(main))
