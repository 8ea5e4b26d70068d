"""Associative recall: how many pairs a mechanism remembers, at which length."""

from __future__ import annotations

import json

import pandas as pd

from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import MissingRecords
from analysis.training import over_seeds, trained_cells

_EXPLANATION = (
    "Values named rightly when their keys come again, on the test split: medians over seeds, bars from the least "
    "to the greatest."
)


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
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
    return layout.finish(drawn, properties, _EXPLANATION, *notes, captions.conditions(data))
