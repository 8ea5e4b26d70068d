"""Recall over memory: right answers over the bytes of the decoding state."""

import pandas as pd

from analysis.controls import notes as diagnosed
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import MissingRecords
from analysis.training import PANEL, over_seeds, panels, trained_cells

TASKS = ("associative_recall", "noisy_recall", "fuzzy_recall", "compression", "memorisation")
_EXPLANATION = (
    "Upper left is better. Right: answers of the test split, medians over seeds, bars from the least to the greatest. "
    "State: what the attention of all layers keeps in decoding after n tokens of one sequence, padding and spare room "
    "included, but not the last tokens of a short convolution; what does not decode is left out."
)


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """Right answers over bytes of the decoding state: one panel for each recall task and length.

    One point for each mechanism; controls (their state is a window, one token or a mean) are grey.
    """
    data, notes = trained_cells(frame, TASKS)
    points = _points(data)
    if points.empty:
        raise MissingRecords("needs ok records of bench=train with state_bytes")
    shown = data[data["series"].isin(points["series"])]
    properties = style.of_series(shown)
    numbers, legend = marks.numbered(properties)
    groups = panels(points)
    drawn, axes = layout.grid(len(groups))
    for panel, ((kind, seq_len), rows) in zip(axes, groups, strict=True):
        layout.title(panel, f"{kind}, n = {seq_len:,}")
        marks.points(panel, rows, "state", properties, capsize=2)
        marks.log_axis(panel.xaxis, "decoding state (KiB)")
        panel.set_ylim(-3, 103)
        panel.set_ylabel("right answers (%)")
        marks.beside(panel, rows, "state", rows["series"].map(numbers))
    grey = "Grey: controls." if points["control"].any() else ""
    return layout.finish(drawn, legend, *diagnosed(shown), _EXPLANATION, grey, *notes, captions.conditions(shown))


def _points(data: pd.DataFrame) -> pd.DataFrame:
    """Right answers in percent (`value`, `low`, `high`), and the `state` in KiB, which is equal for all seeds."""
    right = over_seeds(data, "token_accuracy")
    right[["value", "low", "high"]] *= 100
    states = over_seeds(data, "state_bytes")[[*PANEL, "series", "value"]].rename(columns={"value": "state"})
    states["state"] /= 2**10
    points = right.merge(states, on=[*PANEL, "series"])
    return points.assign(state_low=points["state"], state_high=points["state"])
