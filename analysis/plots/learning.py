"""Learning curves: loss and accuracy over the steps of training, and how many pairs mechanisms recall."""

import json
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis import controls
from analysis.plots import captions, layout, marks, style
from analysis.plots.controls import NAMED, ROW, bar, names_of_rows, word
from analysis.plots.layout import Picture
from analysis.selection import MissingRecords
from analysis.training import over_seeds, panels, trained_cells, within

LOSS = ("validation_loss", "loss (nats)")
RIGHT = ("validation_example_accuracy", "examples wholly right (%)")
# For text, accuracy counts single tokens, since no model predicts every token of an example.
RIGHT_TOKENS = ("validation_token_accuracy", "tokens right (%)")
SUDDEN = ("induction_heads", "selective_copying")
FOR_A_LINE = 3
"""Fewest numbers of pairs for a line over them; fewer get a panel each."""
SIDE_BY_SIDE = 3
"""With more tasks and lengths than this, two of them are placed beside each other."""
_SEEDS = "Thick lines: medians over seeds; thin ones: each seed."
_EXPLANATION = f"On the validation split. {_SEEDS}"
_RIGHT = "Wholly right: every answer of the example is."
_RECALLED = (
    "Values named rightly when their keys come again, on the test split: medians over seeds, bars from the least "
    "to the greatest."
)


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """Loss and right answers over the steps of training: two panels for each task and length."""
    data, notes = trained_cells(frame)
    groups = panels(data[data["status"] == "ok"])
    data = within(data, [key for key, _ in groups])
    properties = style.of_series(data)
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
    text = [*controls.notes(data), _EXPLANATION, _RIGHT if (data["inputs"] != "language_modelling").any() else ""]
    return layout.finish(drawn, properties, *text, *notes, captions.conditions(data))


@layout.styled()
def sudden(frame: pd.DataFrame) -> Picture:
    """Copying and induction over the steps of training (PolySketchFormer, Figure 5, of copying).

    One row for each task and length, one panel for each mechanism. Failed runs are named in the panel.
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
    """The curves of a metric: one row for each evaluated step, one column for each run."""
    raw = pd.Series(rows["raw"].to_numpy(), rows["cell_id"])
    values, steps = (raw[(rows["metric"] == name).to_numpy()] for name in (metric, "validation_step"))
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
    for i, text in enumerate(words or ["not run"] * ok.empty):
        panel.annotate(text, (0.04, 0.86 - 0.12 * i), xycoords="axes fraction", **look)
    panel.set_ylim(-3, 103)


@layout.styled()
def recall(frame: pd.DataFrame) -> Picture:
    """Associative recall over the number of pairs; one panel for each length.

    With fewer than `FOR_A_LINE` numbers of pairs, each has its own panel with one row for each mechanism.
    """
    data, notes = trained_cells(frame, ["associative_recall"])
    tasks = [json.loads(text) for text in data["task"]]
    pairs = [task.pop("num_pairs", None) for task in tasks]
    keys = dict.fromkeys(key for task in tasks for key in task)
    varying = [key for key in keys if len({repr(task.get(key)) for task in tasks}) > 1]
    others = [", ".join(f"{key}={task.get(key)}" for key in varying) for task in tasks]
    data = data.assign(pairs=pairs, others=others)[[type(count) is int and count > 0 for count in pairs]]
    if data.empty:
        raise MissingRecords("needs an ok record of bench=train with task.num_pairs")
    properties, groups = style.of_series(data), list(data.groupby(["seq_len", "others"]))
    is_line = max(cells["pairs"].nunique() for _, cells in groups) >= FOR_A_LINE
    if not is_line:
        groups = list(data.groupby(["seq_len", "others", "pairs"]))
    heights = [0.7 + 1.6 * ROW * len(properties)] * -(-len(groups) // layout.beside(len(groups), NAMED))
    of_rows: dict[str, Any] = {"columns": len(groups), "share_y": True, "heights": heights, "least": NAMED}
    drawn, axes = layout.grid(len(groups), **({} if is_line else of_rows))
    for panel, ((seq_len, other, *one), cells) in zip(axes, groups, strict=True):
        words = [f"n = {seq_len:,}", *(f"{count} pairs" for count in one)]
        layout.title(panel, ", ".join(filter(None, [*words, other])))
        right = over_seeds(cells, "token_accuracy")
        if is_line:
            marks.over_lengths(panel, right, cells, properties, 100, "pairs", "pairs of key and value")
            panel.set_ylim(-3, 103)
            panel.set_ylabel("right answers (%)")
        else:
            _draw_rows(panel, right, cells, properties)
    text = [*controls.notes(data), _RECALLED if is_line else f"{_RECALLED} Small dots: each seed."]
    return layout.finish(drawn, properties if is_line else {}, *text, *notes, captions.conditions(data))


def _draw_rows(panel: Axes, right: pd.DataFrame, cells: pd.DataFrame, properties: dict[str, dict[str, Any]]) -> None:
    order = list(properties)
    names_of_rows(panel, [layout.wrapped(layout.shown(name), 1.6, layout.SMALLEST) for name in order])
    for row in right.itertuples():
        at, look = order.index(row.series), properties[row.series]
        bar(panel, 100 * row.value, 100 * row.low, 100 * row.high, at, look)
        of_series = cells[(cells["series"] == row.series) & (cells["metric"] == "token_accuracy")]
        seeds = {"color": look["color"], "alpha": 0.6, "linestyle": "none", "marker": ".", "markersize": 4}
        panel.plot(100 * of_series["value"], [at + 0.28] * len(of_series), label=look["label"], gid="seed", **seeds)
    missing = set(cells["series"]) - set(right["series"])
    for name in missing:
        status = cells.loc[cells["series"] == name, "status"].iloc[0]
        word(panel, marks.STATUS.get(status, status), order.index(name))
    panel.set_xlim(-3, 103)
    panel.set_xlabel("right answers (%)")
