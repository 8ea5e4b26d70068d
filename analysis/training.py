"""The cells of bench=train: by task, each mechanism at its best learning rate, and what to say of its seeds."""

import json
import math
import re
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import pandas as pd

from analysis.selection import newest, require_ok, series, settle

# What makes a mechanism in a model, beside its learning rate and its seed.
_MODEL = ["attention", "hyperparameters", "impl", "layers"]
PANEL = ["kind", "seq_len"]
"""What trained models are compared within."""
MOST_NAMED = 6
BUSY = 0.05
"""The share of a training's time from which on others on its cores make its times meaningless."""
BENCHES = {"train_step": "each by itself", "compare_train_step": "in interleaved rounds"}
"""How steps of training are timed."""


def trained_cells(frame: pd.DataFrame, tasks: Collection[str] = ()) -> tuple[pd.DataFrame, list[str]]:
    """The cells of bench=train (of these tasks) that belong together, those that failed among them, and sentences.

    Of several learning rates, each mechanism of a task and length has the one with the lowest median of the validation
    loss over its seeds at the end, where a run that failed counts as infinite. New columns: `kind` (the task, its text,
    those of its settings that differ in the frame), `task` (its settings, JSON), `work`, `series`, `layers` of the
    model, `rate` of learning and `rates` that were tried.
    """
    chosen = frame[(frame["bench"] == "train") & (frame["inputs"].isin(tasks) | (not tasks))]
    require_ok(chosen, "bench=train" + (f" with task={' or '.join(tasks)}" if tasks else ""))
    parts, notes = [], []
    for _, panel in _unpacked(chosen).groupby(PANEL):
        rows = _beside_attention(panel)
        settled, more = settle(rows, facets=("seed",)) if (rows["status"] == "ok").any() else (rows, [])
        parts.append(settled)
        notes += more
    data = pd.concat(parts)
    cells = newest(data.drop_duplicates("cell_id"), [*PANEL, *_MODEL, "rate", "seed"])
    data = _tuned(data[data["cell_id"].isin(cells["cell_id"])])
    data = pd.concat([rows.assign(series=with_layers(rows)) for _, rows in data.groupby("kind")])
    return data, [*_notes(data), *dict.fromkeys(notes)]


def _beside_attention(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of a panel, where a control that is a model without attention has the settings of the others' model.

    It is named by its model, and stands beside mechanisms: what it is made of is no condition under which these were
    trained.
    """
    settings = [json.loads(text) for text in rows["settings"]]
    own = pd.Series([_part(each, "model").get("name") for each in settings], rows.index) == rows["attention"]
    if not own.any() or own.all():
        return rows
    models = pd.Series([json.dumps(each.get("model"), sort_keys=True) for each in settings], rows.index)
    common = json.loads(models[~own].mode()[0])
    replaced = [each | {"model": common} if alone else each for each, alone in zip(settings, own, strict=True)]
    return rows.assign(settings=_json(replaced), layers=rows["layers"].where(~own, rows.loc[~own, "layers"].mode()[0]))


def with_layers(data: pd.DataFrame) -> pd.Series:
    """Names as of `analysis.frame.series`, with the number of layers where it differs."""
    names = series(data)
    return names + data["layers"].map(" layers={}".format) if data["layers"].nunique(dropna=False) > 1 else names


def over_seeds(data: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A row for each panel and series: `value` is the median over seeds, `low` and `high` the range."""
    rows, keys = data[data["metric"] == metric], [*PANEL, "series"]
    values = rows.groupby(keys)["value"]
    spread = {"value": values.transform("median"), "low": values.transform("min"), "high": values.transform("max")}
    return rows.assign(**spread).drop_duplicates(keys)


def timed(data: pd.DataFrame) -> pd.DataFrame:
    """Rows of the steps per second of training on cores that nothing else used: other times mean nothing."""
    return data[(data["metric"] == "steps_per_second") & ~(data["busy"] > BUSY)]


def with_settings(rows: pd.DataFrame, columns: dict[str, tuple[str, str]]) -> pd.DataFrame:
    """The rows with columns of what was set, taken out of `settings` by part and key: `("model", "layers")`."""
    settings = [json.loads(text) for text in rows["settings"]]
    taken = {}
    for column, (part, key) in columns.items():
        values = [_part(each, part).pop(key, None) for each in settings]
        taken[column] = [value if isinstance(value, int | float | str) else None for value in values]
    return rows.assign(**taken, settings=_json(settings))


def _part(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """A part of what was set, which a record from elsewhere need not have."""
    part = settings.get(name)
    return part if isinstance(part, dict) else {}


def _json(values: list[dict[str, Any]]) -> list[str]:
    return [json.dumps(each, sort_keys=True) for each in values]


def perplexity(losses: Any) -> Any:
    """Of losses in nats, as records have it: no float holds that of more."""
    return np.exp(np.minimum(losses, 700.0))


def panels(rows: pd.DataFrame) -> list[tuple[tuple[str, int], pd.DataFrame]]:
    """The rows of each task and length, and these two; numbers in names are in their own order."""
    parts = [((str(kind), int(n)), part) for (kind, n), part in rows.groupby(PANEL)]
    return sorted(parts, key=lambda part: ([t.zfill(9) for t in re.split(r"(\d+)", part[0][0])], part[0][1]))


def within(data: pd.DataFrame, keys: Iterable[tuple[str, int]]) -> pd.DataFrame:
    """All rows of the panels that a figure draws, so that its caption speaks of nothing else; `keys` as in `panels`."""
    shown = set(keys)
    return data[[key in shown for key in zip(data["kind"], data["seq_len"], strict=True)]]


def work(rows: pd.DataFrame) -> list[str]:
    """What a step of training does, apart from the mechanism and the sizes that have columns: JSON."""
    settings = [json.loads(text) for text in rows["settings"]]
    return _json(
        [
            {key: each.get(key) for key in ("model", "task")}
            | {key: _part(each, "training").get(key) for key in ("accumulate", "compile")}
            for each in settings
        ]
    )


def _notes(data: pd.DataFrame) -> list[str]:
    """How many seeds there are of each, which runs did not end ok, from which learning rates the best were taken."""
    keys, cells = [*PANEL, "series"], data.drop_duplicates("cell_id")
    counts = data[data["status"] == "ok"].groupby(keys)["seed"].nunique()
    low, high = counts.min(), counts.max()
    notes = [f"{high} seed{'' if high == 1 else 's'}." if low == high else f"{low} to {high} seeds."]
    failed = cells[cells["status"] != "ok"].groupby([*keys, "status"]).size()
    runs = [f"{name}, {kind}, n = {n} ({count}: {status})" for (kind, n, name, status), count in failed.items()]
    more = [f"{len(runs) - MOST_NAMED} more"] if len(runs) > MOST_NAMED else []
    notes += [f"Runs that did not end: {'; '.join([*runs[:MOST_NAMED], *more])}."] if runs else []
    tried = data["rates"].unique()
    if len(tried) > 1:
        return [*notes, "Learning rates: the best by validation loss of those tried, which are not as many for all."]
    best = f"Learning rates: the best of {tried[0]} by validation loss for each mechanism."
    return [*notes, best] if "," in tried[0] else notes


def _unpacked(rows: pd.DataFrame) -> pd.DataFrame:
    """With `kind`, `task`, `rate` and `layers`, which are no conditions any more."""
    rows = rows.assign(work=work(rows))
    rows = with_settings(rows, {"rate": ("training", "learning_rate"), "layers": ("model", "layers")})
    settings = [json.loads(text) for text in rows["settings"]]
    tasks = [_part({"task": each.pop("task", None)}, "task") for each in settings]
    rate = pd.to_numeric(rows["rate"], errors="coerce")
    return rows.assign(rate=rate, settings=_json(settings), task=_json(tasks), kind=_kinds(rows, tasks))


def _kinds(rows: pd.DataFrame, tasks: list[dict[str, Any]]) -> list[str]:
    """The name of each row's task, the text that was read, and those of its settings that differ."""
    values: dict[tuple[str, str], set[str]] = {}
    read: dict[str, str] = {}
    for name, task, source in zip(rows["inputs"], tasks, rows["source"], strict=True):
        for key, value in task.items():
            values.setdefault((name, key), set()).add(json.dumps(value))
        if "text" in task and isinstance(source, str):
            read.setdefault(str(task["text"]), source)
    kinds = []
    for name, task, source in zip(rows["inputs"], tasks, rows["source"], strict=True):
        names = [str(task["text"])] if "text" in task else []
        text = [source if isinstance(source, str) else read.get(name, name) for name in names]
        differing = [f"{k}={v}" for k, v in task.items() if len(values[name, k]) > 1 and k not in ("text", "fallback")]
        kinds.append(", ".join([str(name).replace("_", " "), *text, *differing]))
    return kinds


def _tuned(data: pd.DataFrame) -> pd.DataFrame:
    """The cells of each mechanism with its best learning rate, and what was tried."""
    ends = data[data["metric"] == "validation_loss"].set_index("cell_id")["value"]
    data = data.assign(end=data["cell_id"].map(ends).fillna(math.inf))
    best = []
    for _, rows in data.groupby([*PANEL, *_MODEL], dropna=False):
        by_rate = rows.drop_duplicates("cell_id").groupby("rate")["end"].median()
        own = rows if len(by_rate) < 2 else rows[rows["rate"] == by_rate.idxmin()]
        best.append(own.assign(rates=", ".join(f"{rate:g}" for rate in by_rate.index)))
    return pd.concat(best).drop(columns="end")
