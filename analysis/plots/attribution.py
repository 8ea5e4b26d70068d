"""How much a hybrid's window and its sketch contribute to its loss."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis.attribution import ALONE, NEEDS, NUMERATOR, REMOVED, Attribution, attributions
from analysis.controls import INTERVALS, notes
from analysis.paired import MARGIN
from analysis.plots import captions, layout, style
from analysis.plots.controls import ROW, bar, difference_axis, names_of_rows, word, zero
from analysis.plots.layout import Picture
from analysis.selection import MissingRecords
from analysis.training import trained_cells, within

WIDTH = 5.8
"""Inches of a panel that has another one beside it."""
HOWS: dict[str, dict[str, Any]] = {
    REMOVED: {"color": style.PALETTE[0], "marker": "o", "markerfacecolor": style.PALETTE[0], "linestyle": "none"},
    NUMERATOR: {"color": style.PALETTE[0], "marker": "o", "markerfacecolor": "white", "linestyle": "none"},
    ALONE: {"color": style.PALETTE[1], "marker": "D", "markerfacecolor": style.PALETTE[1], "linestyle": "none"},
}
_EXPLANATION = (
    "Test loss without a branch minus that of the whole hybrid, paired by seed and unit of the test, with "
    f"{INTERVALS}: right of 0 the branch helps. Removed: from the trained model, nothing retrained, from "
    "numerator and denominator or from the sum over values only; what is used may not be needed. The other trained "
    "alone: with the same norms, scale and bias; it decides where it is there. Words: verdicts corrected for the "
    f"comparisons of a hybrid (Holm); grey: within {MARGIN} nats, nothing."
)


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """What each branch of a hybrid is worth, removed or trained alone: one panel for each hybrid, task and length."""
    data, more = trained_cells(frame)
    found = attributions(data)
    if not found:
        raise MissingRecords(NEEDS)
    columns = layout.beside(min(len(found), 2), WIDTH)
    rows = [found[first : first + columns] for first in range(0, len(found), columns)]
    heights = [1.25 + ROW * max(len(one.parts) for one in row) for row in rows]
    width = WIDTH if columns > 1 else 6.5
    drawn, axes = layout.grid(len(found), columns, heights=heights, width=width, least=WIDTH)
    for panel, one in zip(axes, found, strict=True):
        _draw(panel, one)
    parts = [part for one in found for part in one.parts]
    hows = {how: {**look, "label": how} for how, look in HOWS.items() if how in {part.how for part in parts}}
    data = within(data, [(one.kind, one.n) for one in found])
    shown = data[data["series"].isin([*(one.hybrid for one in found), *(part.against for part in parts)])]
    return layout.finish(drawn, hows, *notes(data), _EXPLANATION, *more, captions.conditions(shown))


def _draw(axes: Axes, one: Attribution) -> None:
    zero(axes)
    parts = sorted(one.parts, key=lambda part: part.branch, reverse=True)
    for at, part in enumerate(parts):
        look = {**HOWS[part.how], "markersize": 5, "label": part.how}
        bar(axes, part.difference.value, *part.difference.interval(), at, look)
        word(axes, part.word, at)
    names = [f"{layout.shown(part.against)} alone" if part.how == ALONE else f"no {part.branch}" for part in parts]
    names_of_rows(axes, names)
    difference_axis(axes, "loss minus the hybrid's (nats)")
    words = f"{one.kind}: {one.loss:.2f} nats; {one.sentence}"
    layout.titles(axes, f"{layout.shown(one.hybrid)}, n = {one.n:,}", words)
