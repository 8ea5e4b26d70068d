"""How a cost grows with the context length: what the latency and the memory figure share."""

from __future__ import annotations

import pandas as pd

from analysis import intervals
from analysis.frame import MissingRecords, newest, series, settle
from analysis.plots import looks, page, style
from analysis.plots.page import Picture


@style.literal
def figure(frame: pd.DataFrame, *, bench: str, metric: str, label: str, explanation: str, scale: float = 1) -> Picture:
    """One panel per pass, one line per series, doubly logarithmic, with marked gaps.

    Args:
        frame: from `analysis.frame.load`.
        bench: which benchmark's cells.
        metric: which of its metrics.
        label: of the vertical axis, with unit.
        explanation: first sentence of the caption.
        scale: from the unit of the frame to that of the label.

    Raises:
        MissingRecords: no cell of the benchmark ended ok.
    """
    data = frame[(frame["bench"] == bench) & (frame["metric"].isna() | (frame["metric"] == metric))]
    if not (data["status"] == "ok").any():
        raise MissingRecords(f"needs an ok record of bench={bench}")
    data, notes = settle(data)
    data, older = newest(data.assign(series=series(data)), ["series", "seq_len", "pass"])
    properties = looks.styles(data, data["series"])
    passes = [name for name in style.PASSES if (data["pass"] == name).any()]
    # A logarithmic axis has no place for a peak that the measuring method did not see.
    unseen = (data["value"] <= 0).sum()
    if unseen:
        notes.append(f"Values of 0 ({unseen}) have no place on a logarithmic axis.")

    drawn, axes = page.panels(1, len(passes))
    for panel, name in zip(axes[0], passes, strict=True):
        page.title(panel, style.PASSES[name])
        for of_series, rows in data[(data["pass"] == name) & (data["value"] > 0)].groupby("series"):
            style.errorbar(panel, rows, "seq_len", properties[of_series], scale)
        style.gaps(panel, data[data["pass"].isna() | (data["pass"] == name)], "seq_len", properties)
        style.length_axis(panel, data["seq_len"])
    style.log_axis(axes[0, 0].yaxis, label)
    page.legend(drawn, properties)
    bars = f"Bars: {intervals.bars(data)}." if data["interval"].notna().any() else ""
    sentences = [explanation, bars, style.conditions(data), style.functions(data), *notes, *older]
    page.caption(drawn, " ".join(filter(None, sentences)))
    return drawn
