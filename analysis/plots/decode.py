"""What decoding costs: time per token and size of the state over context length."""

from __future__ import annotations

import pandas as pd

from analysis import intervals
from analysis.frame import MissingRecords, newest, series, settle
from analysis.plots import looks, page, style
from analysis.plots.page import Picture

# Metric, title, label, and factor from the frame's unit to that of the label.
PANELS = (
    ("decode_latency", "time", "time per token (µs)", 1e-3),
    ("state_bytes", "state", "state (MiB)", 2**-20),
)
_EXPLANATION = (
    "Left: time of a step, which takes one token of each sequence; medians, bars {}. Right: all tensors of the state "
    "of the whole batch."
)


@style.literal
def figure(frame: pd.DataFrame) -> Picture:
    """Time per token in µs and bytes of the state in MiB, both over context length, a line per series.

    A cell that ran out of memory or is unsupported is marked above the panels at its length.

    Args:
        frame: from `analysis.frame.load`.

    Raises:
        MissingRecords: no cell of the benchmark ended ok.
    """
    data = frame[frame["bench"] == "decode"]
    if not (data["status"] == "ok").any():
        raise MissingRecords("needs an ok record of bench=decode")
    data, notes = settle(data)
    data, older = newest(data.assign(series=series(data)), ["series", "seq_len", "metric"])
    properties = looks.styles(data, data["series"])

    drawn, axes = page.panels(1, len(PANELS), share_y=False)
    for panel, (metric, title, label, scale) in zip(axes[0], PANELS, strict=True):
        page.title(panel, title)
        for of_series, rows in data[data["metric"] == metric].groupby("series"):
            style.errorbar(panel, rows, "seq_len", properties[of_series], scale)
        style.gaps(panel, data, "seq_len", properties)
        style.length_axis(panel, data["seq_len"])
        style.log_axis(panel.yaxis, label)
    page.legend(drawn, properties)
    explanation = _EXPLANATION.format(intervals.bars(data))
    sentences = [explanation, style.conditions(data), style.functions(data), *notes, *older]
    page.caption(drawn, " ".join(filter(None, sentences)))
    return drawn
