"""The cells of bench=train: by task, each mechanism at its best learning rate, with medians over its seeds."""

import json
import logging
import math
import re
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import pandas as pd

from analysis.frame import LATER
from analysis.selection import compact, newest, require_ok, series, settle
from bench.records.statistics import mean_interval

# What identifies a trained model within a panel, apart from its learning rate and seed.
_MODEL = ["attention", "hyperparameters", "impl", "layers"]
PANEL = ["kind", "seq_len"]
"""Trained models are compared within one task and length."""
_MADE = ["kind", "task", "work", "settings", "series", "layers", "rate", "rates", "chosen_from"]
_MACHINE = ["device_name", "cpu_model"]
MOST_NAMED = 6
BUSY = 0.05
"""If other processes ran on its cores for a larger share of the time, a training's times are ignored."""
MOST_HOURS = 3
"""Times of cells further apart are not compared: a rented machine may by then be another, or have new neighbours."""
BENCHES = {"train_step": "each by itself", "compare_train_step": "in interleaved rounds"}
"""The benchmarks that time training steps, with words for how."""
TASK_OPTIONS = ("mask",)
"""Settings of a task that are options of the protocol, like those of `training`: the task is the same."""
_LOG = logging.getLogger(__name__)


def trained_cells(frame: pd.DataFrame, tasks: Collection[str] = ()) -> tuple[pd.DataFrame, list[str]]:
    """The comparable cells of bench=train (of these tasks), failed ones included, and sentences for the caption.

    Models that were trained on different CPUs compare; `timed` keeps one machine. For each mechanism, task and length
    only the best learning rate is kept: the one whose tested weights have the lowest validation loss (mean over seeds;
    a failed run counts as infinite, and where all rates have such runs, medians decide; not one with fewer seeds than
    another). New columns: `kind` (the task, its text, and its settings that differ in the frame), `task` (its settings,
    JSON), `work` (see `work`), `series`, `layers` of the model, the learning `rate`, the `rates` that it was chosen
    from, and `chosen_from`: how many of them are not clearly worse.
    """
    chosen = frame[(frame["bench"] == "train") & (frame["inputs"].isin(tasks) | (not tasks))]
    require_ok(chosen, "bench=train" + (f" with task={' or '.join(tasks)}" if tasks else ""))
    parts, notes = [], []
    for _, panel in _unpacked(chosen.drop_duplicates("cell_id")).groupby(PANEL):
        cells = _beside_attention(panel)
        # CPUs differ in how they round, which changes what a model learns less than its seed does.
        cells = cells.assign(**{name: cells[name].where(cells["device"] != "cpu", "any") for name in _MACHINE})
        settled, more = settle(cells, facets=("seed",)) if (cells["status"] == "ok").any() else (cells, [])
        parts.append(settled)
        notes += more
    cells = newest(pd.concat(parts), [*PANEL, *_MODEL, "rate", "seed"])
    cells = _tuned(cells, _ends(chosen))
    cells = pd.concat([own.assign(series=with_layers(own)) for _, own in cells.groupby("kind")])
    data = cells[["cell_id", *_MADE]].merge(chosen.drop(columns="settings"), on="cell_id")
    return compact(data), [*_notes(cells), *dict.fromkeys(notes)]


def _beside_attention(rows: pd.DataFrame) -> pd.DataFrame:
    """Give a control without attention (such as bag_of_tokens) the model settings of the panel's other rows.

    Otherwise `settle` would drop it for its different model. Its label is the name of its model.
    """
    names = {text: _part(json.loads(text), "model").get("name") for text in rows["settings"].unique()}
    own = rows["settings"].map(names) == rows["attention"]
    if not own.any() or own.all():
        return rows
    settings = rows["settings"]
    models = settings.map({one: json.dumps(json.loads(one).get("model"), sort_keys=True) for one in settings.unique()})
    common = json.loads(models[~own].mode()[0])
    replaced = {one: json.dumps(json.loads(one) | {"model": common}, sort_keys=True) for one in settings[own].unique()}
    layers = rows["layers"].where(~own, rows.loc[~own, "layers"].mode()[0])
    hyperparameters = rows["hyperparameters"].where(~own, _own_settings(rows[own]))
    settings = settings.where(~own, settings.map(replaced))
    return rows.assign(settings=settings, layers=layers, hyperparameters=hyperparameters)


def _own_settings(rows: pd.DataFrame) -> pd.Series:
    """As hyperparameters, what differs between the models of one such control: else they would be one series."""
    found = rows["hyperparameters"].copy()
    for _, alike in rows.groupby("attention"):
        told = [_part(json.loads(text), "model") for text in alike["settings"]]
        models = [own | {"layers": n} for own, n in zip(told, alike["layers"], strict=True)]
        keys = sorted({key for each in models for key in each})
        several = [key for key in keys if len({json.dumps(each.get(key), default=int) for each in models}) > 1]
        if several:
            found[alike.index] = [json.dumps({key: each.get(key) for key in several}, default=int) for each in models]
    return found


def with_layers(data: pd.DataFrame) -> pd.Series:
    """The names of `analysis.selection.series`, with the number of layers if it differs."""
    names = series(data)
    return names + data["layers"].map(" layers={}".format) if data["layers"].nunique(dropna=False) > 1 else names


def over_seeds(data: pd.DataFrame, metric: str) -> pd.DataFrame:
    """One row for each panel and series: `value` is the median over seeds, `low` and `high` their range."""
    rows, keys = data[data["metric"] == metric], [*PANEL, "series"]
    values = rows.groupby(keys)["value"]
    spread = {"value": values.transform("median"), "low": values.transform("min"), "high": values.transform("max")}
    return rows.assign(**spread).drop_duplicates(keys)


def timed(data: pd.DataFrame, metric: str = "steps_per_second") -> pd.DataFrame:
    """The rows of a time (or speed): of each panel those of one machine that shared their cores with nobody.

    Of several machines the most frequent one is kept; times on others are logged.
    """
    quiet = data[(data["metric"] == metric) & ~(data["busy"] > BUSY)]
    machine = quiet["device_name"].fillna("")
    is_usual = machine == machine.groupby([quiet[key] for key in PANEL]).transform(lambda names: names.mode()[0])
    for (kind, n, name), rows in quiet[~is_usual].groupby([*PANEL, "device_name"]):
        count, why = rows["cell_id"].nunique(), "most ran on another machine"
        _LOG.info("left out the times of %d trainings on %s, since %s: %s, n = %s", count, name, why, kind, n)
    return quiet[is_usual]


def hours_apart(ended: pd.Series) -> float:
    """The time between the first and the last of these ends of cells; NaN if none is known."""
    at = pd.to_datetime(ended, utc=True, format="ISO8601", errors="coerce")
    return float((at.max() - at.min()).total_seconds()) / 3600


def with_settings(rows: pd.DataFrame, columns: dict[str, tuple[str, str]]) -> pd.DataFrame:
    """Move values from the JSON of `settings` into new columns, by part and key: `{"layers": ("model", "layers")}`."""
    settings = [json.loads(text) for text in rows["settings"]]
    taken = {}
    for column, (part, key) in columns.items():
        values = [_part(each, part).pop(key, None) for each in settings]
        taken[column] = [value if isinstance(value, int | float | str) else None for value in values]
    return rows.assign(**taken, settings=_json(settings))


def _part(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """A part of the settings such as `model`; empty if a record from another version lacks it."""
    part = settings.get(name)
    return part if isinstance(part, dict) else {}


def _json(values: list[dict[str, Any]]) -> list[str]:
    return [json.dumps(each, sort_keys=True) for each in values]


def perplexity(losses: Any) -> Any:
    """exp(loss in nats); the loss is capped at 700, near where a float64 overflows."""
    return np.exp(np.minimum(losses, 700.0))


def panels(rows: pd.DataFrame) -> list[tuple[tuple[str, int], pd.DataFrame]]:
    """(task, length) and its rows, sorted; numbers within names are sorted as numbers."""
    parts = [((str(kind), int(n)), part) for (kind, n), part in rows.groupby(PANEL)]
    return sorted(parts, key=lambda part: ([t.zfill(9) for t in re.split(r"(\d+)", part[0][0])], part[0][1]))


def within(data: pd.DataFrame, keys: Iterable[tuple[str, int]]) -> pd.DataFrame:
    """All rows of the panels that a figure draws, so that its caption speaks of nothing else; `keys` as in `panels`."""
    shown = set(keys)
    return data[[key in shown for key in zip(data["kind"], data["seq_len"], strict=True)]]


def work(rows: pd.DataFrame) -> list[str]:
    """JSON of the settings that change the work of a training step, apart from the mechanism and columns of sizes."""
    works = []
    for settings in map(json.loads, rows["settings"]):
        training = {key: _part(settings, "training").get(key) for key in ("accumulate", "compile")}
        training["optimizer"] = _part(settings, "training").get("optimizer", LATER["optimizer"])
        works.append({key: settings.get(key) for key in ("model", "task")} | training)
    return _json(works)


def _notes(cells: pd.DataFrame) -> list[str]:
    """Caption sentences: the number of seeds, the runs that failed, the learning rates that were tried."""
    keys = [*PANEL, "series"]
    counts = cells[cells["status"] == "ok"].groupby(keys)["seed"].nunique()
    low, high = counts.min(), counts.max()
    notes = [f"{high} seed{'' if high == 1 else 's'}." if low == high else f"{low} to {high} seeds."]
    failed = cells[cells["status"] != "ok"].groupby([*keys, "status"]).size()
    runs = [f"{name}, {kind}, n = {n} ({count}: {status})" for (kind, n, name, status), count in failed.items()]
    more = [f"{len(runs) - MOST_NAMED} more"] if len(runs) > MOST_NAMED else []
    notes += [f"Runs that did not end: {'; '.join([*runs[:MOST_NAMED], *more])}."] if runs else []
    tried = cells["rates"].unique()
    if len(tried) > 1:
        best = "Learning rates: the best by mean validation loss of those tried, which are not as many for all."
        return [*notes, best]
    best = f"Learning rates: the best of {tried[0]} by mean validation loss for each mechanism."
    return [*notes, best] if "," in tried[0] else notes


def _unpacked(rows: pd.DataFrame) -> pd.DataFrame:
    """Move `work`, `kind`, `task`, `rate` and `layers` into columns, so that `settle` does not compare them."""
    # The seeds of a cell share what is unpacked. A broken record may hold anything, even a list.
    keys = ["inputs", "source", "settings"]
    groups = rows[keys].map(repr).groupby(keys, sort=False).ngroup()
    own = rows[~groups.duplicated()]
    columns = {"rate": ("training", "learning_rate"), "layers": ("model", "layers")}
    moved = with_settings(own, columns)
    settings = [json.loads(text) for text in moved["settings"]]
    tasks = [_part({"task": each.pop("task", None)}, "task") for each in settings]
    for each, task in zip(settings, tasks, strict=True):
        each |= {key: task.pop(key) for key in TASK_OPTIONS if key in task}
    rate = pd.to_numeric(moved["rate"], errors="coerce")
    made = {"work": work(own), "rate": rate, "layers": moved["layers"], "settings": _json(settings)}
    made |= {"task": _json(tasks), "kind": _kinds(own, tasks)}
    return rows.assign(**{name: pd.Series(values).to_numpy()[groups] for name, values in made.items()})


def _kinds(rows: pd.DataFrame, tasks: list[dict[str, Any]]) -> list[str]:
    """Each row's task, the text that was read, and the task's settings that differ, as one name."""
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


def _ends(rows: pd.DataFrame) -> pd.Series:
    """By cell the validation loss of the weights that are tested: the last one, or the least with checkpoint=best."""
    ends = rows[rows["metric"] == "validation_loss"].set_index("cell_id")
    are_best = [_part(json.loads(text), "training").get("checkpoint") == "best" for text in ends["settings"]]
    least = [np.nanmin(raw) if best else math.nan for raw, best in zip(ends["raw"], are_best, strict=True)]
    return ends["value"].where(~np.array(are_best, dtype=bool), least)


def _tuned(cells: pd.DataFrame, ends: pd.Series) -> pd.DataFrame:
    """Keep each mechanism's cells with its best learning rate; `rates` lists those that it was chosen from.

    The best has the least mean of `ends`, validation losses by cell, over seeds, as comparisons are of
    means; a run that failed has an infinite one, and where all rates have such runs, medians decide. A rate with fewer
    seeds than another is not chosen.
    """
    model = cells.groupby([*PANEL, *_MODEL], dropna=False).ngroup()
    cells = cells.assign(end=cells["cell_id"].map(ends).fillna(math.inf), model=model)
    by_rate = cells.groupby(["model", "rate"])["end"].agg(["count", "mean", "median"]).reset_index()
    whole = by_rate[by_rate["count"] == by_rate.groupby("model")["count"].transform("max")]
    best = whole.sort_values(["mean", "median"]).drop_duplicates("model").set_index("model")["rate"]
    tried = whole.groupby("model")["rate"].agg(lambda rates: ", ".join(f"{rate:g}" for rate in rates))
    several = cells["model"].map(by_rate["model"].value_counts()) > 1
    by_seed = cells.loc[several, ["model", "rate", "seed", "end"]].merge(whole[["model", "rate"]]).groupby("model")
    near = pd.Series({model: _near(own, best[model]) for model, own in by_seed}, dtype=int)
    cells = cells[~several | (cells["rate"] == cells["model"].map(best))]
    rates, count = cells["model"].map(tried).fillna(""), cells["model"].map(near).fillna(1).astype(int)
    return cells.assign(rates=rates, chosen_from=count).sort_values("model", kind="stable")


def _near(own: pd.DataFrame, best: float) -> int:
    """How many rates are not clearly worse than the best one: other seeds might have chosen each of them."""
    by_rate = own.set_index(["seed", "rate"])["end"].unstack()
    differences = by_rate.sub(by_rate[best], axis="index").to_numpy().T
    of_ended = [each[np.isfinite(each)] for each in differences]
    return max(1, sum(len(each) > 0 and not mean_interval(each).low > 0 for each in of_ended))
