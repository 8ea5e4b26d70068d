"""Figure 1 of Skeinformer (Chen et al. 2022, Sketching as a Tool for Understanding ...)."""

from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import intervals
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import newest, require_ok, series, settle_each

PAPER_LENGTHS = (1024, 4096)
ORDER = ("initialised", "pretrained")
LABELS = {
    "absolute": "spectral norm error ‖BV − R‖",
    "relative": "relative error ‖BV − R‖ / ‖BV‖",
}
FAR = 10
"""Times the greatest of the others: what is above has no place on the same axis."""
_FAR_ABOVE = "Above a panel, with an arrow: a mechanism whose errors lie far above its axis, and from where to where."


@layout.styled()
def figure1(frame: pd.DataFrame, metric: Literal["absolute", "relative"] = "absolute") -> Picture:
    """Spectral norm error over the number of features d (Skeinformer, Figure 1).

    A row of panels for initialised and for pretrained weights (and one for each other kind of inputs), a
    column for n = 1024 and one for 4096, as far as there are records; other lengths only where both are
    missing. Bars are 95 % intervals over sequences, where there are enough of them; a mechanism without a size d
    (V-Mean) is a horizontal line. `relative` is to the norm of the exact output, `absolute` as in the paper.
    """
    data = frame[(frame["bench"] == "spectral_norm") & (frame["metric"].isna() | (frame["metric"] == metric))]
    # What computes softmax itself has no place on a logarithmic axis of errors.
    data = data[(data["function"] == "softmax") & ~data["exact"]]
    data, notes = settle_each(require_ok(data, "bench=spectral_norm for an approximation of softmax"))
    data = data.assign(series=series(data, apart_from_size=True))
    data = newest(data, ["series", "features", "seq_len", "kind"])
    measured = data[data["status"] == "ok"]
    kinds = sorted(set(measured["kind"]), key=lambda kind: (kind not in ORDER, kind))
    recorded = sorted(set(measured["seq_len"]))
    lengths = [length for length in recorded if length in PAPER_LENGTHS] or recorded
    data = data[data["seq_len"].isin(lengths)]
    properties = style.of_series(data)
    for name in set(properties) - set(data.loc[data["features"].notna(), "series"]):
        properties[name]["marker"] = None
    far = {kind: _far(rows) for kind, rows in measured.groupby("kind")}
    beyond = [name in far.get(kind, ()) for kind, name in zip(data["kind"], data["series"], strict=True)]
    failed = data[(data["status"] != "ok") | np.array(beyond)]
    lines = failed.groupby(["kind", "seq_len"])["series"].nunique()
    sizes = sorted(set(data["features"].dropna().astype(int))) or [1]

    figure, axes = layout.panels(len(kinds), len(lengths), share_y=False)
    for i, kind in enumerate(kinds):
        for j, length in enumerate(lengths):
            panel = data[(data["kind"] == kind) & (data["seq_len"] == length)]
            if (panel["status"] != "ok").all():
                axes[i, j].set_axis_off()
                continue
            layout.title(axes[i, j], f"{kind}, n = {length}")
            room = max((count for (row, _), count in lines.items() if row == kind), default=0)
            _draw(axes[i, j], panel, sizes, properties, room, far[kind])
            marks.value_axis(axes[i, j].yaxis, LABELS[metric] if j == 0 else "")
    text = [
        f"Approximations of softmax attention: mean {intervals.over(measured)}, of each over its heads and draws. "
        f"Bars: {intervals.bars(measured)}. A mechanism without a size d is a horizontal line.",
        _FAR_ABOVE if any(far.values()) else "",
        captions.conditions(data),
        *notes,
    ]
    return layout.finish(figure, properties, *text)


def relative(frame: pd.DataFrame) -> Picture:
    """Spectral norm error over d, relative to the norm of the exact output."""
    return figure1(frame, "relative")


def _far(rows: pd.DataFrame) -> set[str]:
    """The series that lie so far above two or more others that these could not be told apart beside them."""
    ranges = rows.groupby("series")["value"].agg(["min", "max"]).sort_values("min")
    jumps = (ranges["min"] > FAR * ranges["max"].cummax().shift()).to_numpy()
    first = next((i for i, jump in enumerate(jumps) if jump and i > 1), len(ranges))
    return set(ranges.index[first:])


def _draw(
    axes: Axes, panel: pd.DataFrame, sizes: list[int], properties: dict[str, Any], room: int, far: set[str]
) -> None:
    """One panel, with room for so many lines above it, where what is `far` has one."""
    beyond = {}
    for name, rows in panel[panel["status"] == "ok"].groupby("series"):
        sized = rows["features"].notna()
        if sized.any():
            marks.errorbar(axes, rows[sized], "features", properties[name])
        for row in rows[~sized].itertuples():
            marks.level(axes, row, {**properties[name], "marker": None})
        if name in far:
            low, high = (f"{end:.3g}" for end in (rows["value"].min(), rows["value"].max()))
            beyond[name] = (rows["features"].fillna(sizes[-1]).to_numpy(float), f"↑ {low} to {high}")
    if far:
        near = panel[~panel["series"].isin(far)]
        ends = near[["low", "value", "high"]].where(lambda ends: ends > 0)  # an interval may reach below any norm
        axes.set_ylim(0.95 * ends.min(axis=None), ends.max(axis=None) / 0.95)
    failed = panel[panel["status"] != "ok"].astype({"features": object})
    # What has no size is missing all along the axis.
    everywhere = failed["features"].map(lambda size: sizes if pd.isna(size) else [size])
    marks.gaps(axes, failed.assign(features=everywhere).explode("features"), "features", properties, room, beyond)
    marks.length_axis(axes, sizes, "number of features d")
