"""How mechanisms learn a task over the steps of training, and how many pairs they recall."""

import json
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis import controls
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import MissingRecords
from analysis.training import over_seeds, panels, trained_cells

LOSS = ("validation_loss", "loss (nats)")
RIGHT = ("validation_example_accuracy", "examples wholly right (%)")
# No model names every token of a text.
RIGHT_TOKENS = ("validation_token_accuracy", "tokens right (%)")
SUDDEN = ("induction_heads", "selective_copying")
SIDE_BY_SIDE = 3
"""Tasks and lengths, above which two stand beside each other."""
_SEEDS = "Thick lines: medians over seeds; thin ones: each seed."
_EXPLANATION = f"On the validation split. {_SEEDS} Right: examples of which every answer is right."
_RECALLED = (
    "Values named rightly when their keys come again, on the test split: medians over seeds, bars from the least "
    "to the greatest."
)


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """Loss and right answers over the steps of training: two panels for every task and length."""
    data, notes = trained_cells(frame)
    properties = style.of_series(data)
    groups = panels(data[data["status"] == "ok"])
    drawn, axes = layout.grid(2 * len(groups), 4 if len(groups) > SIDE_BY_SIDE else 2)
    for ((kind, seq_len), rows), *pair in zip(groups, axes[::2], axes[1::2], strict=True):
        right = RIGHT_TOKENS if (rows["inputs"] == "language_modelling").all() else RIGHT
        for panel, (metric, label) in zip(pair, (LOSS, right), strict=True):
            layout.title(panel, f"{kind}, n = {seq_len:,}")
            for name, of_series in rows.groupby("series"):
                marks.curves(panel, by_step(of_series, metric), properties[name])
            panel.set_xlabel("step")
            panel.set_ylabel(label)
        marks.value_axis(pair[0].yaxis, LOSS[1])
        pair[1].set_ylim(-3, 103)
    return layout.finish(drawn, properties, *controls.notes(data), _EXPLANATION, *notes, captions.conditions(data))


@layout.styled()
def sudden(frame: pd.DataFrame) -> Picture:
    """Copying and induction over the steps of training (PolySketchFormer, Figure 5).

    A row for every task and length, a panel for every mechanism. A run that failed is named where it would be.
    """
    data, notes = trained_cells(frame, SUDDEN)
    properties = style.of_series(data)
    groups = panels(data)
    drawn, axes = layout.panels(len(groups), len(properties), heights=[1.6] * len(groups), width=2.0)
    for panel, name in zip(axes[0], properties, strict=True):
        layout.title(panel, layout.shown(name))
    for row, ((kind, seq_len), rows) in zip(axes, groups, strict=True):
        for panel, (name, line) in zip(row, properties.items(), strict=True):
            _small(panel, rows[rows["series"] == name], line | {"marker": None})
        row[0].set_ylabel(f"{kind}\nn = {seq_len:,}\nright (%)", fontsize=7)
    for panel in axes[-1]:
        panel.set_xlabel("step")
    explanation = f"Examples of the validation split of which every answer is right. {_SEEDS}"
    return layout.finish(drawn, {}, *controls.notes(data), explanation, *notes, captions.conditions(data))


def by_step(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The curve of a metric: a row for each step at which it was evaluated, a column for each run."""
    values, steps = (rows[rows["metric"] == name].set_index("cell_id")["raw"] for name in (metric, "validation_step"))
    factor = 100 if "accuracy" in metric else 1
    return pd.DataFrame({cell: pd.Series(factor * raw, index=steps[cell]) for cell, raw in values.items()})


def _small(panel: Axes, rows: pd.DataFrame, line: dict[str, Any]) -> None:
    ok = rows[rows["status"] == "ok"]
    if len(ok):
        marks.curves(panel, by_step(ok, "validation_example_accuracy"), line)
    cells = rows.drop_duplicates("cell_id")
    failed = cells[cells["status"] != "ok"]["status"].value_counts()
    words = [f"{count} of {len(cells)}: {marks.STATUS.get(status, status)}" for status, count in failed.items()]
    look: dict[str, Any] = {"size": layout.SMALLEST, "color": "black", "bbox": marks.BOX, "gid": "gap"}
    for i, word in enumerate(words or ["not run"] * ok.empty):
        panel.annotate(word, (0.04, 0.86 - 0.12 * i), xycoords="axes fraction", **look)
    panel.set_ylim(-3, 103)


@layout.styled()
def recall(frame: pd.DataFrame) -> Picture:
    """Associative recall over the number of pairs, a panel for each length."""
    data, notes = trained_cells(frame, ["associative_recall"])
    tasks = [json.loads(text) for text in data["task"]]
    pairs = [task.pop("num_pairs", None) for task in tasks]
    others = [", ".join(f"{key}={value}" for key, value in task.items()) for task in tasks]
    data = data.assign(pairs=pairs, others=others)[[type(count) is int and count > 0 for count in pairs]]
    if data.empty:
        raise MissingRecords("needs an ok record of bench=train with task.num_pairs")
    properties = style.of_series(data)
    groups = list(data.groupby(["others", "seq_len"]))
    drawn, axes = layout.grid(len(groups))
    for panel, ((other, seq_len), rows) in zip(axes, groups, strict=True):
        layout.title(panel, f"n = {seq_len:,}" + (f", {other}" if data["others"].nunique() > 1 else ""))
        right = over_seeds(rows, "token_accuracy")
        marks.over_lengths(panel, right, rows, properties, 100, "pairs", "pairs of key and value")
        panel.set_ylim(-3, 103)
        panel.set_ylabel("right answers (%)")
    return layout.finish(drawn, properties, *controls.notes(data), _RECALLED, *notes, captions.conditions(data))
