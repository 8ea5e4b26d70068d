"""Records as text: one line per finished cell, and the Markdown table at the end of a sweep."""

import contextlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from bench.common.errors import bounded, in_cell
from bench.common.schema import flatten
from bench.records.record import Record, RecordError
from bench.records.statistics import Comparison, Crossover, overtakings
from bench.records.summary import headline, quantities

COLUMNS = ("status", "bench", "attention", "n", "batch", "mask", "inputs", "settings", "result")
LONGEST_NAME = 100
# The settings that may differ between the points of a curve.
SIZES = ("seq_len", "batch_size")


def line(record: Record, apart: str = "") -> str:
    """One line about a cell that has just ended; `apart` is what `settings_apart` says of it."""
    return "  ".join(cell for cell in _row(record, apart) if cell)


def table(records: Sequence[Record]) -> str:
    """A Markdown table with one line per cell; where lines would name the same, also the settings that differ."""
    aparts = settings_apart([record.config for record in records])
    rows = [COLUMNS, *(_row(record, apart) for record, apart in zip(records, aparts, strict=True))]
    if not any(aparts):
        place = COLUMNS.index("settings")
        rows = [(*row[:place], *row[place + 1 :]) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    lines = [f"| {' | '.join(row)} |" for row in padded]
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
        words = [*itertools.compress(each.where, varying), *([each.batch] if len(curves) > len(pairs) else [])]
        which = f" ({', '.join(words)})" if words else ""
        lines.append(_overtaking(bounded(each.faster), bounded(each.slower), each.crossover) + which)
    return lines


def _overtaking(faster: str, slower: str, at: Crossover) -> str:
    if at.low == 0 and math.isinf(at.high):
        return f"{faster} may overtake {slower} near n = {at.length:.0f}, be ahead from the start, or never: undecided"
    return f"{faster} overtakes {slower} at n = {at.length:.0f} [{at.low:.0f}, {at.high:.0f}]"


def _comparisons(record: Record) -> Iterator[Comparison]:
    length, batch = (record.config[key] for key in SIZES)
    setting = json.dumps({key: value for key, value in record.config.items() if key not in SIZES}, sort_keys=True)
    where = _mask(record.config), str(record.config["bench"].get("measured_pass")), str(record.config.get("dtype"))
    with contextlib.suppress(RecordError):  # the table shows the error
        for each in quantities(record):
            if each.baseline is not None and each.attention is not None and each.raw is not None:
                yield Comparison(each.baseline, each.attention, length, batch, each.raw, setting, where)


def settings_apart(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each cell, what tells it from the others that have its name: `training.learning_rate=0.01, seed=1`.

    A name is what every line says: benchmark, mechanism, sizes, mask, inputs. A name's only cell has no text.
    """
    alike: dict[tuple[str, ...], list[int]] = {}
    for place, config in enumerate(configs):
        alike.setdefault(_names(config), []).append(place)
    apart = [""] * len(configs)
    for places in (places for places in alike.values() if len(places) > 1):
        flat = (flatten(_labelled(configs[place])).items() for place in places)
        settings = [
            {key: value if isinstance(value, str) else json.dumps(value) for key, value in each} for each in flat
        ]
        keys = dict.fromkeys(itertools.chain(*settings))
        differing = [key for key in keys if len({own.get(key) for own in settings}) > 1]
        # Another model has other settings: its name says it all.
        groups = tuple(key.removesuffix("name") for key in differing if key.endswith(".name"))
        telling = [key for key in differing if key.endswith(".name") or not key.startswith(groups)]
        # A benchmark's size is the mechanism's, too: the first of the same name and values is enough.
        values = {(key.split(".")[-1], *(own.get(key) for own in settings)): key for key in reversed(telling)}
        telling = [key for key in telling if key in values.values()]
        for place, own in zip(places, settings, strict=True):
            words = (f"{key.removesuffix('.name')}={own[key]}" for key in telling if key in own)
            apart[place] = ", ".join(words)
    return apart


def _labelled(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with the labels of a comparison's other mechanisms, which say their settings, instead of these."""
    labels = [other["label"] for other in config["bench"].get("against", ())]
    return {**config, "bench": {**config["bench"], "against": labels}} if labels else config


def _row(record: Record, apart: str) -> tuple[str, ...]:
    return (record.status, *map(in_cell, (*_names(record.config), apart, _result(record))))


def _names(config: Mapping[str, Any]) -> tuple[str, ...]:
    names = (bounded(name, LONGEST_NAME) for name in (config["bench"]["name"], config["label"]))
    inputs = ": ".join(str(config["inputs"][key]) for key in ("name", "weights") if config["inputs"].get(key))
    return *names, *(str(config[key]) for key in SIZES), _mask(config), inputs


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
