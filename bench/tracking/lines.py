"""What runs are called, and values as MLflow takes them."""

import hashlib
import math
import re
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
MOST_LISTED = 3
# Of what a run holds: those of another are written anew.
FORMAT = "2"
# The settings of one.
Cell = Mapping[str, Any]


def step(record: Record) -> int:
    """The axis that the paper's figure has: the number of features for errors, else the length."""
    size = features(record) if traits(record)["axis"] == "features" else None
    return size or record.config["seq_len"]


def names(records: Iterable[Record]) -> dict[str, str]:
    """A name for each record, by its id: what it compares or measures, and what tells it apart from others."""
    by_title: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_title[_title(record)].append(record)
    found: dict[str, str] = {}
    for title, alike in by_title.items():
        configs = [{**flatten(record.config), "attempt": record.attempt} for record in alike]
        words = apart(title, configs, [configs])
        often = Counter(words)
        for record, name in zip(alike, words, strict=True):
            found[record.record_id] = name if often[name] == 1 else f"{name} {record.record_id[:6]}"
    return found


def _title(record: Record) -> str:
    """Such as `performer over flash, n=4,096, causal`, or `flash, n=512, latency`."""
    config, bench = record.config, record.config["bench"]
    baseline, *others = dict.fromkeys(plain(cell["label"]) for cell in (config, *bench.get("against", ())))
    what = [f"{listed(others)} over {baseline}" if others else config["label"], f"n={config['seq_len']:,}"]
    if "features" in record.measurements and (size := features(record)):
        what.append(f"d={size}")
    what += ["causal"] * bool(config.get("causal"))
    what += ["training pass"] * (bench.get("measured_pass") == "forward_backward")
    return ", ".join([*what, *([] if bench["name"] == "compare" else [bench["name"]])])


def plain(label: str) -> str:
    """A label without what a comparison adds to it: that is a part of the condition."""
    return re.sub(r" (dtype|impl)=\S+", "", label)


def sweep_name(records: Sequence[Record]) -> str:
    """What a sweep is called: its experiment, with the size if one was asked for; else what it measures of what."""
    given = dict(override.partition("=")[::2] for record in records[:1] for override in record.overrides)
    if experiment := given.get("experiment"):
        return text(", ".join(filter(None, (experiment, given.get("size")))))
    labels = sorted({record.config["label"] for record in records})
    benches = sorted({record.config["bench"]["name"] for record in records})
    return text(f"{listed(labels)}: {', '.join(benches)}")


def listed(labels: Sequence[str]) -> str:
    """Up to three of them, and how many more."""
    more = len(labels) - MOST_LISTED
    return ", ".join(labels[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def apart(title: str, configs: Iterable[Cell], points: Iterable[Sequence[Cell]]) -> list[str]:
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
    return [", ".join([title, *settings]) for settings in told]


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


def plain_name(text: str) -> str:
    """A name that MLflow takes: no characters but its own, nothing that reads as a path."""
    return re.sub(r"[^\w\-. ]", "_", text).strip(". ")[:200] or "_"


def key(name: str) -> str:
    """Of a metric: the charts page opens a section per prefix, one for each quantity."""
    return "/".join(map(plain_name, name.split(".", 1)))


def digest(records: Sequence[Record], figures: Sequence[Path] = (), table: str = "") -> str:
    """Of what a summary shows, so that the same is not written again."""
    content = hashlib.sha256(repr([FORMAT, *[record.record_id for record in records], table]).encode())
    for figure in figures:
        content.update(figure.name.encode() + figure.read_bytes())
    return content.hexdigest()


def milliseconds(iso: str) -> int:
    """Since 1970, as MLflow counts."""
    return round(datetime.fromisoformat(iso).replace(tzinfo=UTC).timestamp() * 1000)
