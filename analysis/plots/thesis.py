"""Chapter 5 of Reizin's thesis (Fast Algorithms for Attention Mechanism, 2024): the loss of sequence reversal."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import MissingRecords
from analysis.training import PANEL, trained_cells

GROUPS = {
    ("5.1", "5.2"): ("single powers", ("polynomial_p2", "polynomial_p4", "polynomial_p8")),
    ("5.3", "5.4"): ("squares of polynomials", tuple(f"polynomial_square_d{d}" for d in range(1, 7))),
    ("5.5", "5.6"): ("learned polynomials, squared", tuple(f"polynomial_square_learned_d{d}" for d in range(1, 7))),
    ("5.7", "5.8"): (
        "the best of each",
        ("softmax", "linear", "polynomial_p8", "polynomial_square_d5", "polynomial_square_learned_d3"),
    ),
}
FIRST = 1000
"""Steps that the left panels show, of the thesis' 10,000."""
EVERY = 10
"""Each point of a curve is the mean over this many steps, as in the thesis."""
_MARKERS = ("o", "s", "^", "D", "v", "P")
NARROW = 2.0
"""Panels narrower than this (in inches) need a shortened legend."""
_EXPLANATION = (
    f"Mean training loss of {EVERY} steps, each on fresh sequences: from the start on a linear axis, the rest on a "
    "logarithmic one. Thick lines: medians over seeds; thin ones: each seed (the thesis has one)."
)


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """Loss of sequence reversal (Reizin's thesis, Figures 5.1 to 5.8): one row for each two, with its own legend.

    If there are several lengths, it shows the one with most runs. The table `thesis_losses` has the final losses.
    """
    data, notes = trained_cells(frame, ["reversal"])
    named = [name for _, names in GROUPS.values() for name in names]
    data = data[data["attention"].isin(named) & (data["metric"] == "train_loss")]
    if data.empty:
        raise MissingRecords("needs an ok record of bench=train with task=reversal and a mechanism of the thesis")
    kind, seq_len = data.groupby(PANEL).size().idxmax()
    others = data[PANEL].drop_duplicates().shape[0] - 1
    data = data[(data["kind"] == kind) & (data["seq_len"] == seq_len)]
    groups = {titles: group for titles, group in GROUPS.items() if data["attention"].isin(group[1]).any()}
    drawn, axes = layout.panels(len(groups), 2, share_y=False, width=4.2)
    for pair, (numbers, (words, names)) in zip(axes, groups.items(), strict=True):
        rows = data[data["attention"].isin(names)]
        properties = _properties(rows, names)
        for panel, number in zip(pair, numbers, strict=True):
            layout.title(panel, f"Figure {number}: {words}")
            panel.set_xlabel("step")
        _draw(pair, rows, properties)
        _legend(pair, layout.handles(properties))
    left_out = f"Other lengths and settings are left out ({others})." if others else ""
    text = [f"Reversal of {seq_len} tokens (the thesis: 50). {_EXPLANATION}", *notes, left_out]
    return layout.finish(drawn, {}, *text, captions.conditions(data))


def _draw(pair: tuple[Axes, Axes], rows: pd.DataFrame, properties: dict[str, dict[str, Any]]) -> None:
    """Draw the mean of every `EVERY` losses over the step of the last of them: the start left, the rest right."""
    for name, of_series in rows.groupby("series"):
        losses = pd.DataFrame({cell: pd.Series(raw) for cell, raw in of_series.set_index("cell_id")["raw"].items()})
        curves = losses.groupby((losses.index + EVERY) // EVERY * EVERY).mean()
        first = min(FIRST, curves.index[-1] // 2)
        for panel, part in zip(pair, (curves[curves.index <= first], curves[curves.index > first]), strict=True):
            marks.curves(panel, part, properties[name])
    pair[0].set_ylabel("loss (nats)")
    marks.log_axis(pair[1].yaxis, "loss (nats)")


def _properties(rows: pd.DataFrame, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Several degrees of one mechanism get colours from violet to green; otherwise each mechanism has its own."""
    properties = style.of_series(rows)
    if rows["mechanism"].nunique() == 1 and len(properties) > 1:
        order = sorted(properties, key=lambda name: names.index(name.split()[0]))
        shades = [to_hex(colormaps["viridis"](at)) for at in np.linspace(0, 0.8, len(order))]
        properties = {name: style.line(name, shade, _MARKERS[variant % len(_MARKERS)], variant)
                      for variant, (name, shade) in enumerate(zip(order, shades, strict=True))}  # fmt: skip
    return properties


def _legend(row: Sequence[Axes], handles: list[Line2D]) -> None:
    """Add a legend to the right of a row or, on a page with a width, into the first panel."""
    if not layout.in_a_column():
        row[-1].legend(handles=handles, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
        return
    columns = _shortened(handles, row[0]) if layout.picture(row[0]).panel_width < NARROW else 1
    row[0].legend(
        handles=handles, loc="upper right", ncols=columns, fontsize=layout.SMALLEST, framealpha=0.7, handlelength=1.6,
        borderpad=0.2, columnspacing=0.8, labelspacing=0.3,
    )  # fmt: skip


def _shortened(handles: list[Line2D], axes: Axes) -> int:
    """Drop a prefix that all names share, wrap names, make room above the curves; returns the legend's columns."""
    families = {str(handle.get_label()).rpartition("_")[0] for handle in handles}
    family = f"{min(families)}_" if len(families) == 1 and families != {""} else ""
    for handle in handles:
        name = str(handle.get_label()).removeprefix(family)
        handle.set_label(layout.fitted(name, 0.42 * NARROW, layout.SMALLEST))
    columns = 2 if family else 1
    lines = math.ceil(sum(str(handle.get_label()).count("\n") + 1 for handle in handles) / columns)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.2 * lines * (high - low))
    return columns
