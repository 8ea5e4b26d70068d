"""Records as text: one line per finished cell, and the Markdown table at the end of a sweep."""

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from bench.common.errors import bounded, in_cell
from bench.records.record import Record, RecordError
from bench.records.statistics import Comparison, overtakings
from bench.records.summary import headline, quantities

COLUMNS = ("status", "bench", "attention", "n", "batch", "mask", "inputs", "result")
LONGEST_NAME = 100
# The settings that may differ between the points of a curve.
SIZES = ("seq_len", "batch_size")


def line(record: Record) -> str:
    """One line about a cell that has just ended."""
    return "  ".join(cell for cell in _row(record) if cell)


def table(records: Sequence[Record]) -> str:
    """A Markdown table with one line per cell."""
    rows = [COLUMNS, *(_row(record) for record in records)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def crossovers(records: Sequence[Record]) -> list[str]:
    """For each comparison over several lengths, a line with the length from which one mechanism overtakes another.

    In brackets stand the mask, the pass, the dtype and the batch, if the lines differ in them.
    """
    in_order = sorted(records, key=attrgetter("ended", "record_id"))
    overtaken = overtakings(each for record in in_order for each in _comparisons(record))
    curves = {(each.baseline, each.label, each.batch) for each in overtaken}
    pairs = {(each.baseline, each.label) for each in overtaken}
    varying = [len(set(words)) > 1 for words in zip(*(each.where for each in overtaken), strict=True)]
    lines = []
    for each in overtaken:
        at = f"at n = {each.crossover.length:.0f} [{each.crossover.low:.0f}, {each.crossover.high:.0f}]"
        words = [*itertools.compress(each.where, varying), *([each.batch] if len(curves) > len(pairs) else [])]
        which = f" ({', '.join(words)})" if words else ""
        lines.append(f"{bounded(each.faster)} overtakes {bounded(each.slower)} {at}{which}")
    return lines


def _comparisons(record: Record) -> Iterator[Comparison]:
    length, batch = (record.config[key] for key in SIZES)
    setting = json.dumps({key: value for key, value in record.config.items() if key not in SIZES}, sort_keys=True)
    where = _mask(record.config), str(record.config["bench"].get("measured_pass")), str(record.config.get("dtype"))
    with contextlib.suppress(RecordError):  # the table shows the error
        for each in quantities(record):
            if each.baseline is not None and each.attention is not None and each.raw is not None:
                yield Comparison(each.baseline, each.attention, length, batch, each.raw, setting, where)


def _row(record: Record) -> tuple[str, ...]:
    config = record.config
    names = (bounded(name, LONGEST_NAME) for name in (config["bench"]["name"], config["label"]))
    inputs = ": ".join(str(config["inputs"][key]) for key in ("name", "weights") if config["inputs"].get(key))
    words = (*names, *(str(config[key]) for key in SIZES), _mask(config), inputs, _result(record))
    return (record.status, *map(in_cell, words))


def _mask(config: Mapping[str, Any]) -> str:
    return "causal" if config.get("causal") else "not causal"


def _result(record: Record) -> str:
    if record.status != "ok":
        return record.reason or ""
    try:
        said = headline(record)
    except RecordError as error:
        return str(error)
    return f"{said} [disturbed by {'; '.join(record.disturbed)}]" if record.disturbed else said
