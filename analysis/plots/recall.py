"""Associative recall: how many pairs a mechanism keeps, at which length."""

from __future__ import annotations

import json

import pandas as pd

from analysis.frame import MissingRecords
from analysis.learned import learned, over_seeds
from analysis.plots import looks, page, style
from analysis.plots.page import Picture


@style.literal
def figure(frame: pd.DataFrame) -> Picture:
    """Right answers over the number of pairs, a panel for each length.

    Args:
        frame: from `analysis.frame.load`.

    Raises:
        MissingRecords: recall was not learned.
    """
    data, notes = learned(frame, ["associative_recall"])
    tasks = [json.loads(text) for text in data["task"]]
    pairs = [task.pop("num_pairs", None) for task in tasks]
    others = [", ".join(f"{key}={value}" for key, value in task.items()) for task in tasks]
    data = data.assign(pairs=pairs, others=others)[[type(count) is int and count > 0 for count in pairs]]
    if data.empty:
        raise MissingRecords("needs an ok record of bench=train with task.num_pairs")
    properties = looks.styles(data, data["series"])
    groups = list(data.groupby(["others", "seq_len"]))
    drawn, axes = page.grid(len(groups))
    for panel, ((other, seq_len), rows) in zip(axes, groups, strict=True):
        page.title(panel, f"n = {seq_len:,}" + (f", {other}" if data["others"].nunique() > 1 else ""))
        for name, of_series in over_seeds(rows, "token_accuracy").groupby("series"):
            style.errorbar(panel, of_series, "pairs", properties[name], 100)
        style.gaps(panel, rows, "pairs", properties)
        style.length_axis(panel, rows["pairs"], "pairs of key and value")
        panel.set_ylim(-3, 103)
        panel.set_ylabel("right answers (%)")
    page.legend(drawn, properties)
    explanation = (
        "Values named rightly when their keys come again, on the test split: medians over seeds, bars from the least "
        "to the greatest."
    )
    page.caption(drawn, " ".join([explanation, *notes, style.conditions(data)]))
    return drawn
