"""Differences in loss to the controls: how much better or worse a mechanism is than a window and than exact softmax."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator, SymmetricalLogLocator

from analysis.controls import INTERVALS, NEEDS, comparisons, diagnose, notes
from analysis.paired import MARGIN, UNDECIDED
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import MissingRecords
from analysis.training import panels, trained_cells, within

ROW, NAMED = 0.2, 2.6
"""Inches: height of a mechanism's row; least width of a panel with names beside it."""
ROOM = 0.45
"""Share of an axis that words at its right end take."""
LINEAR = 0.1
"""Nats up to which a symlog axis of differences is linear."""
FAR = 0.4
"""An axis that reaches further than this many nats is symlog."""
_EXPLANATION = (
    "Test loss minus that of the best negative control (in Long Range Arena that with most right answers) and minus "
    f"softmax's, paired by seed and unit of the test, with {INTERVALS}: left is better. Words: verdicts "
    "corrected for {} comparisons of a task and length "
    f"{{}}(Holm), in brackets how many seeds would decide; grey: within {MARGIN} nats, as good as."
)
_SYMLOG = f" Axes that reach beyond {FAR} nats are logarithmic from {LINEAR} nats on."


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """Loss minus the best negative control's and minus softmax's: a row of two panels for each task and length."""
    data, more = trained_cells(frame)
    properties = style.of_series(data)
    tables = [(key, diagnose(rows), pd.DataFrame(comparisons(rows, key))) for key, rows in panels(data)]
    groups = [one for one in tables if len(one[-1])]
    if not groups:
        raise MissingRecords(NEEDS)
    data = within(data, [key for key, _, _ in groups])
    heights = [0.75 + ROW * (1 + table["attention"].nunique()) for _, _, table in groups]
    drawn, axes = layout.panels(len(groups), 2, share_y=True, heights=heights, width=4.2, least=NAMED)
    for pair, ((kind, n), found, table) in zip(axes, groups, strict=True):
        # By loss, the lowest first, including the control itself.
        control = found.negative or str(found.positive)
        own = table[table["against"] == control].set_index("attention")["difference (nats)"]
        order = [*pd.concat([own, pd.Series({control: 0.0})]).sort_values(kind="stable").index]
        order += [name for name in table["attention"].unique() if name not in order]  # too few seeds in common with it
        words = f"{kind}, n = {n:,}", found.word
        for panel, anchor, title in zip(pair, (found.negative, found.positive), words, strict=True):
            layout.title(panel, title)
            _draw(panel, table[table["against"] == anchor], anchor, order, properties)
    is_far = any(axes.get_xscale() == "symlog" for axes in drawn.axes)
    family = ("the", "that are shown ") if frame["place"].any() else ("all", "")  # of chosen mechanisms
    explanation = _EXPLANATION.format(*family) + _SYMLOG * is_far
    text = [*notes(data), explanation, *more, captions.conditions(data)]
    return layout.finish(drawn, {}, *text)


def _draw(
    axes: Axes, rows: pd.DataFrame, anchor: str | None, order: list[str], properties: dict[str, dict[str, Any]]
) -> None:
    zero(axes)
    for row in rows.to_dict("records"):
        at = order.index(row["attention"])
        bar(axes, row["difference (nats)"], row["low"], row["high"], at, properties[row["attention"]])
        needed = row["seeds needed"]
        more = f" ({needed:.0f} seeds)" if row["verdict"] == UNDECIDED and pd.notna(needed) else ""
        word(axes, f"{row['verdict']}{more}", at)
    names_of_rows(axes, [layout.shown(name) for name in order])
    difference_axis(axes, f"loss minus that of {layout.shown(anchor)} (nats)" if anchor else "")
    if anchor in order:
        word(axes, "the baseline", order.index(anchor))
    elif anchor is None:
        word(axes, "no control has losses by unit", 0)


def zero(axes: Axes) -> None:
    """Draw the line at 0 and the band of equivalence around it."""
    axes.axvspan(-MARGIN, MARGIN, color="0.9", linewidth=0, gid="margin")
    axes.axvline(0, color="0.4", linewidth=0.8, zorder=1)


def bar(axes: Axes, value: float, low: float, high: float, at: float, look: dict[str, Any]) -> None:
    """Draw a difference and its interval in the row at height `at`."""
    look = {**look, "linestyle": "none"}
    axes.errorbar(value, at, xerr=[[value - low], [high - value]], capsize=2, elinewidth=1.1, **look)


def names_of_rows(axes: Axes, names: list[str]) -> None:
    """Make one row per name, the first at the top, with the names as tick labels."""
    axes.set_yticks(range(len(names)), [layout.fitted(name, 1.3, layout.SMALLEST) for name in names])
    axes.tick_params(axis="y", length=0, labelsize=layout.SMALLEST)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def word(axes: Axes, text: str, at: float) -> None:
    """Write a text at the right end of a row, where `difference_axis` leaves room."""
    look: dict[str, Any] = {"fontsize": layout.SMALLEST, "va": "center", "ha": "right", "color": "black"}
    axes.text(0.995, at, text, transform=axes.get_yaxis_transform(), bbox={**marks.BOX, "pad": 0.3}, **look)


def difference_axis(axes: Axes, label: str) -> None:
    """Set the axis' limits from what is drawn, with room at the right; symlog if some differences are large."""
    low, high = axes.dataLim.intervalx
    low, high = min(low, -2 * MARGIN), max(high, 2 * MARGIN)
    axes.set_xlabel(label)
    if max(-low, high) <= FAR:
        axes.set_xlim(low - 0.05 * (high - low), high + ROOM / (1 - ROOM) * (high - low))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        return
    axes.set_xscale("symlog", linthresh=LINEAR, linscale=1)
    scale = axes.xaxis.get_transform()
    left, right = scale.transform(np.array([low, high]))
    edges = [left - 0.05 * (right - left), right + ROOM / (1 - ROOM) * (right - left)]
    axes.set_xlim(*scale.inverted().transform(np.array(edges)))
    for subs in ((1, 3), (1,)):  # more than six labels overlap
        ticks = SymmetricalLogLocator(base=10, linthresh=LINEAR, subs=subs).tick_values(low, high)
        # No tick labels below the words at the right.
        ticks = [tick for tick in ticks if low <= tick <= 2.5 * high]
        if len(ticks) <= 6:
            break
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
