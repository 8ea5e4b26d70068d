"""Names of runs, and values in the form that MLflow accepts."""

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.common.errors import bounded
from bench.common.schema import flatten
from bench.records.record import Record
from bench.records.summary import features, traits

# Longest setting in a name, and longest value, in characters (MLflow accepts 6000, which nobody reads).
MAX_SETTING, MAX_VALUE = 40, 500
MOST_LISTED = 3
# Version of the runs' contents: runs of another version are written again.
FORMAT = "2"
# The settings of a cell.
Cell = Mapping[str, Any]


def step(record: Record) -> int:
    """The x value, as in the papers' figures: the number of features for errors, else the length."""
    size = features(record) if traits(record)["axis"] == "features" else None
    return size or record.config["seq_len"]


def names(records: Iterable[Record]) -> dict[str, str]:
    """A name for each record, by its id: what it compares or measures, and what distinguishes it from others."""
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
    """A title such as `performer over flash, n=4,096, causal`, or `flash, n=512, latency`."""
    config, bench = record.config, record.config["bench"]
    baseline, *others = dict.fromkeys(plain(cell["label"]) for cell in (config, *bench.get("against", ())))
    what = [f"{listed(others)} over {baseline}" if others else config["label"], f"n={config['seq_len']:,}"]
    if "features" in record.measurements and (size := features(record)):
        what.append(f"d={size}")
    what += ["causal"] * bool(config.get("causal"))
    what += ["training pass"] * (bench.get("measured_pass") == "forward_backward")
    return ", ".join([*what, *([] if bench["name"] == "compare" else [bench["name"]])])


def plain(label: str) -> str:
    """A label without the dtype and impl that a comparison adds: these are part of the condition."""
    return re.sub(r" (dtype|impl)=\S+", "", label)


def sweep_name(records: Sequence[Record]) -> str:
    """The name of a sweep: its experiment, with the size if one was set; else its mechanisms and benchmarks."""
    given = dict(override.partition("=")[::2] for record in records[:1] for override in record.overrides)
    if experiment := given.get("experiment"):
        return text(", ".join(filter(None, (experiment, given.get("size")))))
    labels = sorted({record.config["label"] for record in records})
    benches = sorted({record.config["bench"]["name"] for record in records})
    return text(f"{listed(labels)}: {', '.join(benches)}")


def listed(labels: Sequence[str]) -> str:
    """Up to three labels, and the number of the others."""
    more = len(labels) - MOST_LISTED
    return ", ".join(labels[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def apart(title: str, configs: Iterable[Cell], points: Iterable[Sequence[Cell]]) -> list[str]:
    """The title for each cell, with the few settings that best distinguish the cells of each point."""
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
    """A sort key: of settings that distinguish equally well, prefer top-level ones such as `causal`."""
    return key.count("."), not key.endswith(".name"), key


def _by(key: str, cells: Iterable[Cell]) -> Iterable[list[Cell]]:
    """The cells, grouped by their value of a setting."""
    parts: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        parts[repr(cell.get(key, ...))].append(cell)
    return parts.values()


def text(value: Any) -> str:
    """A value as text for a tag or a parameter."""
    return bounded(str(value), MAX_VALUE)


def plain_name(text: str) -> str:
    """A name that MLflow accepts: only its allowed characters, and nothing that reads as a path."""
    return re.sub(r"[^\w\-. ]", "_", text).strip(". ")[:200] or "_"


def key(name: str) -> str:
    """The key of a metric: MLflow's chart page has a section for each prefix, that is, for each metric."""
    return "/".join(map(plain_name, name.split(".", 1)))


def digest(records: Sequence[Record], figures: Sequence[Path] = (), table: str = "") -> str:
    """The hash of a summary's contents, so that the same summary is not written twice."""
    content = hashlib.sha256(repr([FORMAT, *[record.record_id for record in records], table]).encode())
    for figure in figures:
        content.update(figure.name.encode() + figure.read_bytes())
    return content.hexdigest()


def milliseconds(iso: str) -> int:
    """A time in milliseconds since 1970, as MLflow uses."""
    return round(datetime.fromisoformat(iso).replace(tzinfo=UTC).timestamp() * 1000)
