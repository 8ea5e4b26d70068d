"""Figure 1 of Skeinformer (Chen et al. 2022, Sketching as a Tool for Understanding ...)."""

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation

from analysis import intervals
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import newest, require_ok, series, settle_each

PAPER_LENGTHS = (1024, 4096)
ORDER = ("initialised", "pretrained")
LABELS = {"absolute": "spectral norm error ‖BV − R‖", "relative": "relative error ‖BV − R‖ / ‖BV‖"}
HEIGHT = 2.5  # height of a panel in inches
FAR = 10
"""Series more than this factor above all others are drawn above a break of the axis."""
STRIP = 0.45
"""Height of the part above the break, relative to a panel's."""
ROUNDING = 1e-4
"""Relative errors below this are rounding: to scale they would take most decades of an axis."""
_EDGE = f"At the lower edge, not to scale: what is exact up to rounding (relative: below {ROUNDING}), as with d >= n."
_ONE_SCALE = "All panels have the same logarithmic scale: equal heights are equal ratios."
_TWO_SCALES = (
    "All panels have the same logarithmic scale below the break of the axis, and the same above it: equal heights are "
    "equal ratios. Above the break: what lies far above the others of its row, by a factor of ten."
)


@layout.styled()
def figure1(frame: pd.DataFrame, metric: Literal["absolute", "relative"] = "absolute") -> Picture:
    """Spectral norm error over the number of features d (Skeinformer, Figure 1).

    One row of panels for initialised and one for pretrained weights (and one for each other kind of inputs), one
    column for n = 1024 and one for 4096, as far as there are records; other lengths only if both are missing. Bars are
    95 % intervals over sequences, if there are enough of them; a mechanism without a size d (V-Mean) is a horizontal
    line. `relative` errors are divided by the norm of the exact output, `absolute` ones are the paper's.
    """
    data = frame[(frame["bench"] == "spectral_norm") & (frame["metric"].isna() | (frame["metric"] == metric))]
    # Exact softmax has no error, which a logarithmic axis cannot show.
    data = data[(data["function"] == "softmax") & ~data["exact"]]
    data, notes = settle_each(require_ok(data, "bench=spectral_norm for an approximation of softmax"))
    data = data.assign(series=series(data, apart_from_size=True))
    data = newest(data, ["series", "features", "seq_len", "kind"])
    data = data.assign(rounding=_rounding(frame, data))
    measured = data[data["status"] == "ok"]
    kinds = sorted(set(measured["kind"]), key=lambda kind: (kind not in ORDER, kind))
    recorded = sorted(set(measured["seq_len"]))
    lengths = [length for length in recorded if length in PAPER_LENGTHS] or recorded
    data = data[data["seq_len"].isin(lengths)]
    properties = style.of_series(data)
    for name in set(properties) - set(data.loc[data["features"].notna(), "series"]):
        properties[name]["marker"] = None
    far = {kind: _far(measured[(measured["kind"] == kind) & ~measured["rounding"]]) for kind in kinds}
    sizes = sorted(set(data["features"].dropna().astype(int))) or [1]
    whole = layout.height(HEIGHT, layout.beside(len(lengths)))
    heights = [height for kind in kinds for height in ([whole * STRIP, whole] if far[kind] else [whole])]
    figure, axes = layout.panels(len(heights), len(lengths), share_y=False, heights=heights)
    upper: list[Axes] = []
    lower: list[Axes] = []
    rows = iter(axes)
    for kind in kinds:
        of_kind = np.stack([next(rows), next(rows)] if far[kind] else [next(rows)])
        of_kind[-1, 0].set_ylabel(LABELS[metric])
        lower += [*of_kind[-1]]
        upper += [*of_kind[:-1].flat]
        for j, length in enumerate(lengths):
            panel = data[(data["kind"] == kind) & (data["seq_len"] == length)]
            _draw(of_kind[:, j], panel, f"{kind}, n = {length}", sizes, properties, far[kind])
    _same_scale(lower)
    _same_scale(upper)
    text = [
        f"Approximations of softmax attention: mean {intervals.over(measured)}, of each over its heads and draws. "
        f"Bars: {intervals.bars(measured)}. A mechanism without a size d is a horizontal line.",
        _TWO_SCALES if upper else _ONE_SCALE,
        *([_EDGE] if data["rounding"].any() else []),
        captions.conditions(data),
        *notes,
    ]
    return layout.finish(figure, properties, *text)


def relative(frame: pd.DataFrame) -> Picture:
    """Spectral norm error over d, relative to the norm of the exact output."""
    return figure1(frame, "relative")


def _rounding(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Which rows are exact up to rounding, in panels that have others."""
    small = frame.loc[(frame["metric"] == "relative") & (frame["value"] < ROUNDING), "cell_id"]
    is_small = rows["cell_id"].isin(small)
    is_other = ~is_small & (rows["status"] == "ok")
    return is_small & is_other.groupby([rows["kind"], rows["seq_len"]]).transform("any")


def _far(rows: pd.DataFrame) -> set[str]:
    """The series that are so far above two or more others that these could not be told apart on one axis."""
    ranges = rows.groupby("series")["value"].agg(["min", "max"]).sort_values("min")
    jumps = (ranges["min"] > FAR * ranges["max"].cummax().shift()).to_numpy()
    first = next((i for i, jump in enumerate(jumps) if jump and i > 1), len(ranges))
    return set(ranges.index[first:])


def _draw(
    axes: np.ndarray, panel: pd.DataFrame, title: str, sizes: list[int], properties: dict[str, Any], far: set[str]
) -> None:
    """Draw one panel; of two `axes`, the upper one shows the `far` series."""
    measured = panel[(panel["status"] == "ok") & ~panel["rounding"]]
    is_far = measured["series"].isin(far)
    parts = [measured] if len(axes) == 1 else [measured[is_far], measured[~is_far]]
    used = [one for one, rows in zip(axes, parts, strict=True) if len(rows)]
    for one, rows in zip(axes, parts, strict=True):
        if rows.empty:
            one.set_axis_off()
            continue
        one.set_label(title)
        _values(one, rows, properties)
        marks.length_axis(one, sizes, "number of features d" if one is axes[-1] else "")
    if not used:
        return
    _at_edge(used[-1], panel[panel["rounding"]], properties)
    layout.title(used[0], title)
    failed = panel[panel["status"] != "ok"].astype({"features": object})
    # A failed cell without a size d is marked at every size.
    everywhere = failed["features"].map(lambda size: sizes if pd.isna(size) else [size])
    marks.gaps(used[0], failed.assign(features=everywhere).explode("features"), "features", properties)
    if len(used) > 1:
        marks.broken(*used)


def _values(axes: Axes, rows: pd.DataFrame, properties: dict[str, Any]) -> None:
    """Draw the values of each series over d; a horizontal line for one without."""
    for name, of_series in rows.groupby("series"):
        sized = of_series["features"].notna()
        if sized.any():
            marks.errorbar(axes, of_series[sized], "features", properties[name])
        for row in of_series[~sized].itertuples():
            marks.level(axes, row, {**properties[name], "marker": None})


def _at_edge(axes: Axes, rows: pd.DataFrame, properties: dict[str, Any]) -> None:
    """Mark these rows at the lower edge, beside each other; the limits are those of what is drawn already."""
    axes.set_yscale("log")
    axes.set_ylim(axes.get_ylim())
    _values(axes, rows, properties)  # below the edge: not seen, but among the figure's numbers
    for lane, (name, of_series) in enumerate(rows.groupby("series")):
        look = {**properties[name], "clip_on": False, "zorder": 3, "label": "_edge"}
        sizes = of_series["features"].dropna().to_numpy(float)
        aside = ScaledTranslation(-6 * lane / 72, 0, axes.figure.dpi_scale_trans)
        at = axes.get_xaxis_transform() + aside
        if len(sizes):
            axes.plot(sizes, np.zeros(len(sizes)), transform=at, **{**look, "linestyle": "none"})
        if len(sizes) < len(of_series):
            axes.plot([0, 1], [0, 0], transform=axes.transAxes, **{**look, "marker": None})


def _same_scale(axes: Iterable[Axes]) -> None:
    """Make all vertical axes logarithmic with the same ratio of upper to lower limit."""
    used = [one for one in axes if one.axison]
    for one in used:
        one.set_yscale("log")
    limits = [one.get_ylim() for one in used]
    ratio = max((high / low for low, high in limits), default=1.0)
    for one, (low, high) in zip(used, limits, strict=True):
        more = (ratio / (high / low)) ** 0.5
        one.set_ylim(low / more, high * more)
        marks.log_axis(one.yaxis, one.get_ylabel())
