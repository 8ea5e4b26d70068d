"""What decoding costs: time per token and size of the state over context length."""

from __future__ import annotations

import pandas as pd

from analysis import intervals
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import select

# Metric, title, label, and factor from the frame's unit to that of the label.
PANELS = (
    ("decode_latency", "time", "time per token (µs)", 1e-3),
    ("state_bytes", "state", "state (MiB)", 2**-20),
)
_EXPLANATION = (
    "Left: time of a step, which takes one token of each sequence; medians, bars {}. Right: all tensors of the state "
    "of the whole batch."
)


@layout.styled
def figure(frame: pd.DataFrame) -> Picture:
    """Time per token in µs and bytes of the state in MiB, both over context length, a line per series."""
    data, notes = select(frame, "decode", ["seq_len", "metric"])
    properties = style.of_series(data)
    drawn, axes = layout.panels(1, len(PANELS), share_y=False)
    for panel, (metric, title, label, scale) in zip(axes[0], PANELS, strict=True):
        layout.title(panel, title)
        marks.over_lengths(panel, data[data["metric"] == metric], data, properties, scale)
        marks.log_axis(panel.yaxis, label)
    text = [_EXPLANATION.format(intervals.bars(data)), captions.conditions(data), captions.functions(data)]
    return layout.finish(drawn, properties, *text, *notes)
