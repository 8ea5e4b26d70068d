"""What runs are called, the lines of a plot that cells are on, and values as MLflow takes them."""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.common.errors import bounded
from bench.measures import flatten
from bench.records.record import Record
from bench.records.summary import features, traits

# Characters of a setting in a name, and of a value (MLflow takes 6000, which nobody reads).
MAX_SETTING, MAX_VALUE = 40, 500
# The settings of one.
Cell = Mapping[str, Any]


def step(record: Record) -> int:
    """The axis that the paper's figure has: the number of features for errors, else the length."""
    size = features(record) if traits(record)["axis"] == "features" else None
    return size or record.config["seq_len"]


def names(records: Iterable[Record]) -> dict[str, str]:
    """A name for each record, by its id: what it measures and, where others do too, what tells it apart from them."""
    by_title: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        d = features(record) if "features" in record.measurements else None
        size = f"n={record.config['seq_len']}" + (f" d={d}" if d else "")
        by_title[f"{record.config['label']} {size} {record.config['bench']['name']}"].append(record)
    found: dict[str, str] = {}
    for title, alike in by_title.items():
        configs = [{**flatten(record.config), "attempt": record.attempt} for record in alike]
        words = _apart(title, configs, [configs])
        often = Counter(words)
        for record, name in zip(alike, words, strict=True):
            found[record.record_id] = name if often[name] == 1 else f"{name} {record.record_id[:6]}"
    return found


def lines(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The ok records by the line of a plot that they are on: the mechanism, and what sets its lines apart."""
    by_label: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.status == "ok":
            by_label[record.config["label"]].append(record)
    found: dict[str, list[Record]] = defaultdict(list)
    for label, own in by_label.items():
        at_step: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
        for record in own:
            at_step[record.config["bench"]["name"], step(record)].append(_comparable(record))
        for record, line in zip(own, _apart(label, map(_comparable, own), at_step.values()), strict=True):
            found[line].append(record)
    return found


def _comparable(record: Record) -> dict[str, Any]:
    """The settings that can tell lines apart: no seed, and tokens for a batch size that follows the length."""
    config = flatten(record.config)
    config["tokens"] = config.pop("batch_size") * config["seq_len"]
    return {key: value for key, value in config.items() if not key.startswith("bench.") and key != "seed"}


def _apart(title: str, configs: Iterable[Cell], points: Iterable[Sequence[Cell]]) -> list[str]:
    """The title for each of some cells, with a few settings that tell apart all cells of a point: always the best."""
    mixed = [list({repr(sorted(cell.items())): cell for cell in cells}.values()) for cells in points]
    keys = sorted({key for cells in mixed for cell in cells for key in cell}, key=_plainness)
    axes: list[str] = []
    while mixed := [cells for cells in mixed if len(cells) > 1]:
        split = {key: [part for cells in mixed for part in _by(key, cells)] for key in keys}
        best = min(keys, key=lambda key: sum(math.comb(len(part), 2) for part in split[key]))
        axes.append(best)
        mixed = split[best]
    axes.sort()
    told = ([f"{key}={bounded(str(cell.get(key)), MAX_SETTING)}" for key in axes] for cell in configs)
    return [" ".join([title, *settings]) for settings in told]


def _plainness(key: str) -> tuple[int, bool, str]:
    """Of settings that tell the same apart, `causal` says more than what follows from it inside of a group."""
    return key.count("."), not key.endswith(".name"), key


def _by(key: str, cells: Iterable[Cell]) -> Iterable[list[Cell]]:
    """The cells in parts that have the same value."""
    parts: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        parts[repr(cell.get(key, ...))].append(cell)
    return parts.values()


def text(value: Any) -> str:
    """A value as a tag or a parameter holds it."""
    return bounded(str(value), MAX_VALUE)


def digest(records: Sequence[Record], figures: Sequence[Path], table: str) -> str:
    """Of what a summary shows, so that the same is not written again."""
    content = hashlib.sha256(repr([[record.record_id for record in records], table]).encode())
    for figure in figures:
        content.update(figure.name.encode() + figure.read_bytes())
    return content.hexdigest()


def milliseconds(iso: str) -> int:
    """Since 1970, as MLflow counts."""
    return round(datetime.fromisoformat(iso).replace(tzinfo=UTC).timestamp() * 1000)
