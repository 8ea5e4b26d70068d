"""How a cost grows with the context length: latency (PolySketchFormer, Figure 1), and peak memory."""

from __future__ import annotations

import functools

import pandas as pd

from analysis import intervals
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import select


@layout.styled
def figure(frame: pd.DataFrame, *, bench: str, metric: str, label: str, explanation: str, scale: float = 1) -> Picture:
    """One panel per pass, one line per series, doubly logarithmic; bars are those of the median.

    Args:
        frame: from `analysis.frame.load`.
        bench: which benchmark's cells.
        metric: which of its metrics.
        label: of the vertical axis, with unit.
        explanation: first sentence of the caption.
        scale: from the unit of the frame to that of the label.
    """
    data, notes = select(frame, bench, ["seq_len", "pass"], metric=metric)
    properties = style.of_series(data)
    # A logarithmic axis has no place for a peak that the measuring method did not see.
    unseen = (data["value"] <= 0).sum()
    zeros = f"Values of 0 ({unseen}) have no place on a logarithmic axis." if unseen else ""
    passes = [name for name in marks.PASSES if (data["pass"] == name).any()]
    drawn, axes = layout.panels(1, len(passes))
    for panel, name in zip(axes[0], passes, strict=True):
        layout.title(panel, marks.PASSES[name])
        rows = data[data["pass"].isna() | (data["pass"] == name)]
        marks.over_lengths(panel, rows[rows["value"] > 0], rows, properties, scale)
        marks.length_axis(panel, data["seq_len"])
    marks.log_axis(axes[0, 0].yaxis, label)
    bars = f"Bars: {intervals.bars(data)}." if data["interval"].notna().any() else ""
    text = [explanation, bars, captions.conditions(data), captions.functions(data), zeros, *notes]
    return layout.finish(drawn, properties, *text)


latency = functools.partial(
    figure,
    bench="latency",
    metric="latency_per_token",
    label="latency per token (µs/token)",
    # The paper times whole steps of training.
    explanation="Latency per token of attention alone: medians.",
)
memory = functools.partial(
    figure,
    bench="memory",
    metric="peak_memory",
    label="peak memory (MiB)",
    explanation="Peak memory above that of inputs and parameters.",
    scale=2**-20,
)
