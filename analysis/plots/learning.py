"""How mechanisms learn a task: loss and right answers on the validation split over the steps of training."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.frame import MissingRecords, newest, series, settle
from analysis.plots import style

PANELS = (("validation_loss", "loss (nats)"), ("validation_example_accuracy", "examples wholly right (%)"))
_EXPLANATION = (
    "On the validation split. Thick lines: medians over seeds; thin ones: each seed. Right: examples of which every "
    "answer is right."
)


@style.literal
def figure(frame: pd.DataFrame) -> Figure:
    """A row of panels for every task and length: loss (nats, logarithmic) and whole examples right over steps.

    Of several learning rates each mechanism has the one with the lowest mean loss over its seeds at the end.

    Args:
        frame: from `analysis.frame.load`.

    Raises:
        MissingRecords: no cell of the benchmark ended ok.
    """
    data = frame[frame["bench"] == "train"]
    if not (data["status"] == "ok").any():
        raise MissingRecords("needs an ok record of bench=train")
    kinds, notes = [], []
    for (_, _), rows in data.groupby(["inputs", "seq_len"]):
        if (rows["status"] == "ok").any():
            tuned, chosen = _tuned(rows)
            kept, more = settle(tuned, facets=("seed",))
            notes += [*chosen, *more]
            kinds.append(kept)
    data = pd.concat(kinds)
    data, older = newest(data.assign(series=series(data)), ["series", "inputs", "seq_len", "seed", "metric"])
    properties = style.styles(data, data["series"])
    groups = list(data.groupby(["inputs", "seq_len"]))
    drawn, axes = style.panels(len(groups), len(PANELS), share_y=False)
    for row, ((task, seq_len), rows) in zip(axes, groups, strict=True):
        for panel, (metric, label) in zip(row, PANELS, strict=True):
            style.title(panel, f"{task.replace('_', ' ')}, n = {seq_len:,}")
            for name, of_series in rows.groupby("series"):
                _curves(panel, of_series, metric, properties[name], 100 if "accuracy" in metric else 1)
            panel.set_xlabel("step")
            panel.set_ylabel(label)
        style.log_axis(row[0].yaxis, PANELS[0][1])
        row[1].set_ylim(-3, 103)
    style.legend(drawn, properties)
    seeds = f"{data['seed'].nunique()} seeds." if data["seed"].nunique() > 1 else "One seed."
    sentences = [_EXPLANATION, seeds, style.conditions(data), *dict.fromkeys(notes), *older]
    style.caption(drawn, " ".join(filter(None, sentences)))
    return drawn


def _curves(panel: Axes, rows: pd.DataFrame, metric: str, properties: dict[str, object], factor: float) -> None:
    """The median of the curves of all seeds, and each of them."""
    curves = rows[rows["metric"] == metric].set_index("seed")["raw"]
    steps = rows[rows["metric"] == "validation_step"].set_index("seed")["raw"]
    if curves.empty:
        return
    length = min(map(len, curves))
    values = factor * np.stack([curve[:length] for curve in curves])
    at = steps.iloc[0][:length]
    line = {key: value for key, value in properties.items() if key != "marker"}
    panel.plot(at, np.median(values, 0), **line)  # type: ignore[arg-type]
    if len(values) > 1:
        panel.plot(at, values.T, color=line["color"], linewidth=0.5, alpha=0.4)


def _tuned(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The cells of each mechanism with its best learning rate, which is taken out of the settings; and a sentence."""
    settings = [json.loads(text) for text in rows["settings"]]
    rates = [each.get("training", {}).pop("learning_rate", math.nan) for each in settings]
    rows = rows.assign(rate=rates, settings=[json.dumps(each, sort_keys=True) for each in settings])
    if rows["rate"].nunique() < 2:
        return rows, []
    ends = rows[rows["metric"] == "validation_loss"].groupby(["attention", "rate"])["value"].mean()
    best = {attention: values.idxmin()[1] for attention, values in ends.groupby(level=0)}
    kept = rows[rows["rate"] == rows["attention"].map(best)]
    tried = ", ".join(f"{rate:g}" for rate in sorted(rows["rate"].unique()))
    return kept, [f"Learning rates: the best of {tried} by validation loss for each mechanism."]
