"""What other rooms still call by its old name: delete when they call the store."""

from collections.abc import Iterable

from bench.records.record import Record
from bench.records.store import Store

Entry = Record


def of_cells(store: Store, cell_ids: Iterable[str]) -> list[Record]:
    """As `Store.of_cells`."""
    return store.of_cells(cell_ids)


def read(store: Store, wanted: Iterable[Record]) -> list[Record]:
    """The records, in this order."""
    return list(wanted)
