"""Elements of panels that figures share: axes, error bars, curves, labels, and marks of failed cells."""

import math
import zlib
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator, ScalarFormatter
from matplotlib.transforms import ScaledTranslation

from analysis.plots.layout import PANEL, SMALLEST, SQUARE, in_a_column, picture, title
from analysis.selection import PASSES as PASSES

STATUS = {"oom": "OOM", "nonfinite": "not finite"}
LENGTH = "context length n (tokens)"
_LETTER = 0.62  # mean width of a letter, relative to the font size
BOX: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
"""Background box of texts that lie over lines."""


def length_axis(axes: Axes, lengths: Iterable[int], label: str = LENGTH) -> None:
    """Make the x axis logarithmic (base 2), with a tick such as `4k` for each length, as far as there is room."""
    ticks = sorted({int(length) for length in lengths})
    every = math.ceil(len(ticks) / max(2, int(0.8 * picture(axes).panel_width / 0.27)))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks[::-1][::every][::-1]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: length_name(round(value))))
    axes.set_xlim(ticks[0] / 2**0.4, ticks[-1] * 2**0.4)
    axes.set_xlabel(label)


def length_name(length: int) -> str:
    """`512`, `1k`, `32k`; lengths that are not multiples of 1024 are written out."""
    return f"{length // 1024}k" if length % 1024 == 0 and length else str(length)


def log_axis(axis: Axis, label: str) -> None:
    """Make an axis logarithmic, with plain numbers as ticks, and enough ticks for a narrow range."""
    set_scale = axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale
    set_scale("log")
    axis.set_label_text(label)
    low, high = sorted(map(float, axis.get_view_interval()))
    # A vertical axis has room for more tick labels than a horizontal one.
    all_of_them = (1, 1.5, *range(2, 10)) if axis is axis.axes.yaxis else (1, 2, 3, 4, 6, 8)
    most, decades = 12, math.log10(high / low)
    if axis is axis.axes.xaxis:
        longest = max(len(f"{10.0 ** math.floor(math.log10(end)):,.4g}") for end in (low, high))
        most = max(2, round(0.75 * picture(axis.axes).panel_width / (0.06 + 0.06 * longest)))
    some = next((subs for subs in ((1, 2, 5), (1, 3)) if decades * len(subs) <= most and decades < 3), (1,))
    subs = all_of_them if high / low < (4 if in_a_column() else 8) else some
    axis.set_major_locator(LogLocator(subs=subs, numticks=most))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if 1e4 <= x < 1e15 else f"{x:,.4g}"))


def value_axis(axis: Axis, label: str) -> None:
    """Make an axis logarithmic, unless all values are within a factor of three."""
    low, high = sorted(map(float, axis.get_view_interval()))
    if low > 0 and high / low < 3:
        axis.set_label_text(label)
        axis.set_major_locator(MaxNLocator(5))
        axis.set_major_formatter(ScalarFormatter(useOffset=False))
    else:
        log_axis(axis, label)


def over_lengths(
    axes: Axes,
    measured: pd.DataFrame,
    rows: pd.DataFrame,
    properties: dict[str, dict[str, Any]],
    scale: float = 1,
    x: str = "seq_len",
    label: str = LENGTH,
) -> None:
    """Draw a line with error bars for each series over the lengths `x`, and mark failed cells.

    `measured` has the values, which are multiplied by `scale`; `rows` has all cells, for the marks and the axis.
    """
    for name, of_series in measured.groupby("series"):
        errorbar(axes, of_series, x, properties[name], scale)
    gaps(axes, rows, x, properties)
    length_axis(axes, rows[x], label)


def curves(axes: Axes, of_seeds: pd.DataFrame, properties: dict[str, Any]) -> None:
    """Draw a thin line for each column (a seed's values over the index), and a thick one with markers: the median."""
    line = {"color": properties["color"], "label": properties["label"]}
    if of_seeds.shape[1] > 1:
        axes.plot(of_seeds.index, of_seeds, linewidth=0.5, alpha=0.4, gid="seed", **line)
    step = max(1, len(of_seeds) // 6)
    # Markers of different series start at different points, so that overlapping curves can be told apart.
    start = zlib.crc32(properties["label"].encode()) % step
    axes.plot(of_seeds.index, of_seeds.median(axis=1), markevery=(start, step), gid="median", **properties)


def errorbar(axes: Axes, rows: pd.DataFrame, x: str, properties: dict[str, Any], scale: float = 1) -> None:
    """Draw the values of one series over `x`, times `scale`, with error bars from low to high if there are any."""
    rows = rows.sort_values(x)
    value, low, high = (rows[name].to_numpy(float) * scale for name in ("value", "low", "high"))
    axes.errorbar(rows[x].to_numpy(float), value, yerr=np.vstack([value - low, high - value]), capsize=2, **properties)


def points(axes: Axes, rows: pd.DataFrame, x: str, properties: dict[str, dict[str, Any]], **look: Any) -> None:
    """Draw a point with horizontal and vertical error bars for each row."""
    look = {"linestyle": "none", "elinewidth": 1.5, **look}
    for _, row in rows.iterrows():
        bars = {"xerr": [[row[x] - row[f"{x}_low"]], [row[f"{x}_high"] - row[x]]]}
        bars |= {"yerr": [[row["value"] - row["low"]], [row["high"] - row["value"]]]}
        axes.errorbar(row[x], row["value"], **{**properties[row["series"]], **bars, **look})


def numbered(properties: dict[str, dict[str, Any]]) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """A number for each series, and a legend with these numbers, for points that look alike without lines."""
    numbers = {name: str(number) for number, name in enumerate(properties, 1)}
    legend = {
        name: {**line, "label": f"{numbers[name]} {line['label']}", "linestyle": "none"}
        for name, line in properties.items()
    }
    return numbers, legend


def beside(axes: Axes, rows: pd.DataFrame, x: str, texts: Iterable[str]) -> None:
    """Write a text near each point where it covers no other text, point or error bar, if there is such a place.

    The nearest free place is taken; a thin line joins the text to its point if they are not close, or if another point
    is closer. Call this after the scales of the axes are set.
    """
    size = 72 * np.array([0.75 * picture(axes).panel_width, 0.7 * PANEL[1]])  # of a panel in points, about
    axes.get_xlim(), axes.get_ylim()  # matplotlib computes automatic limits only when they are read

    def placed(across: str, along: str) -> np.ndarray:
        points = axes.transData.transform(rows[[across, along]].to_numpy(float))
        return axes.transAxes.inverted().transform(points) * size

    at = placed(x, "value")
    boxes = [(place - 4, place + 4) for place in at]
    across, upright = (placed(f"{x}_low", "value"), placed(f"{x}_high", "value")), (placed(x, "low"), placed(x, "high"))
    for low, high in (across, upright):
        boxes += [(start - 1, end + 1) for start, end in zip(low, high, strict=True) if np.isfinite([start, end]).all()]
    look: dict[str, Any] = {"fontsize": SMALLEST, "color": "black", "textcoords": "offset points", "gid": "name"}
    for own, place, text in zip(rows[[x, "value"]].to_numpy(float), at, texts, strict=True):
        needed = np.array([_LETTER * SMALLEST * len(text), 1.25 * SMALLEST])
        offsets = _places(needed)
        offset = offsets[_costs(place + offsets, needed, np.array(boxes), size).argmin()]
        boxes.append((place + offset - 2, place + offset + needed + 2))
        # The point of the text's box that is nearest to its data point.
        near = np.clip(0, offset, offset + needed)
        far = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3}
        # Another point that is nearer to the text would seem to be the named one.
        others = np.hypot(*(np.clip(at, place + offset, place + offset + needed) - at).T)
        is_far = np.hypot(*near) > min(8, others.min() + 0.01)
        joined = {**far, "relpos": tuple((near - offset) / needed)} if is_far else None
        axes.annotate(text, tuple(own), tuple(offset), arrowprops=joined, **look)


def _places(needed: np.ndarray) -> np.ndarray:
    """Candidate offsets in points from a data point to the text's lower left corner, the nearest first."""
    away = np.array([5, 9, *range(14, 100, 7)])[:, None, None]
    angles = np.arange(0, 2 * np.pi, np.pi / 8) + np.pi / 4
    sides = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return (away * sides - needed * (1 - np.round(sides)) / 2).reshape(-1, 2)


def _costs(low: np.ndarray, needed: np.ndarray, taken: np.ndarray, size: np.ndarray) -> np.ndarray:
    """How bad each place is: the area that it covers, plus a penalty for being outside the panel.

    Args:
        low: `(places, 2)`, the lower left corner of each.
        needed: width and height of a place.
        taken: `(boxes, 2, 2)`, the lower left and the upper right corner of each.
        size: of the panel.
    """
    high = low + needed
    both = np.minimum(high[:, None], taken[:, 1]) - np.maximum(low[:, None], taken[:, 0])
    covered = (np.prod(both + 1, axis=2) * (both > 0).all(2)).sum(1)
    outside = np.maximum(0, -low).sum(1) + np.maximum(0, high - size).sum(1)
    return covered + 20 * outside


def front(points: pd.DataFrame, x: str, exact: float = np.inf) -> pd.DataFrame:
    """The Pareto front, sorted by `x`: rows that no other row dominates in `x` and `value` (both lower is better).

    `exact` is the value of the best mechanism without error (`x` = 0).
    """
    ordered = points.sort_values([x, "value"])
    best_before = ordered["value"].cummin().shift(fill_value=np.inf).clip(upper=exact)
    return ordered[ordered["value"] < best_before]


def front_line(axes: Axes, best: pd.DataFrame, x: str) -> None:
    """Draw a pale line through the points of a Pareto front, or around a single point."""
    shade: dict[str, Any] = {"color": "0.6", "linewidth": 3, "marker": "o", "markersize": 11, "alpha": 0.5}
    axes.plot(best[x], best["value"], **shade, **SQUARE, zorder=1, gid="front")


def level(axes: Axes, row: Any, properties: dict[str, Any], along: Literal["y", "x"] = "y") -> None:
    """Draw a line across the panel at a value of the `along` axis, with a pale band from low to high."""
    line, span = (axes.axhline, axes.axhspan) if along == "y" else (axes.axvline, axes.axvspan)
    gid = "level" if along == "y" else "upright"
    line(row.value, **properties, gid=gid)
    span(row.low, row.high, color=properties["color"], alpha=0.2, linewidth=0, gid=gid)


def broken(upper: Axes, lower: Axes) -> None:
    """Make two panels look like one with a broken vertical axis."""
    upper.spines["bottom"].set_visible(False)
    upper.tick_params(axis="x", length=0, labelbottom=False)
    cut: dict[str, Any] = {"marker": [(-1, -0.6), (1, 0.6)], "markersize": 8, "linestyle": "none", "color": "black"}
    for axes, end in ((upper, 0), (lower, 1)):
        axes.plot([0], [end], transform=axes.transAxes, clip_on=False, markeredgewidth=0.8, label="_cut", **cut)


def gaps(axes: Axes, rows: pd.DataFrame, x: str, properties: dict[str, dict[str, Any]]) -> None:
    """Mark each failed cell above the panel, at its `x` and in its series' colour.

    Each series has its own line of marks, and the title moves up. Neighbours with the same status share one word.
    `rows` must have `series`, `status` and `x`.
    """
    failed = rows[rows["status"] != "ok"].drop_duplicates(["series", x]).sort_values(x)
    for lane, (name, cells) in enumerate(failed.groupby("series")):
        outcome = cells["status"]
        for _, run in cells.groupby((outcome != outcome.shift()).cumsum()):
            status = run["status"].iloc[0]
            _above(axes, run[x].to_numpy(float), STATUS.get(status, status), properties[name], lane)
    lanes = failed["series"].nunique()
    title(axes, axes.get_title(), 6 + (9 * lanes + 3 if lanes else 0))


def _above(axes: Axes, at: np.ndarray, words: str, properties: dict[str, Any], lane: int) -> None:
    # Offsets in points keep the lines of marks apart at any height of the panel.
    lift = ScaledTranslation(0, (8 + 9 * lane) / 72, axes.figure.dpi_scale_trans)
    above = axes.get_xaxis_transform() + lift
    look = {"color": properties["color"], "transform": above, "gid": "gap"}
    bar = {"linewidth": 0.8, "marker": properties["marker"], "markersize": 3, "clip_on": False}
    bar["label"] = properties["label"]
    axes.plot(at, np.ones(len(at)), linestyle=properties["linestyle"], **bar, **look)
    centre = float(np.sqrt(at[0] * at[-1]))
    side = "center"
    if len(at) == 1:  # the mark stands alone: beside it, not on it
        side, look["transform"] = "left", above + ScaledTranslation(5 / 72, 0, axes.figure.dpi_scale_trans)
    axes.text(centre, 1, words, size=SMALLEST, ha=side, va="center", bbox=BOX, **look)
