"""Roofline: how far mechanisms are from the peaks of the device (Williams, Waterman and Patterson 2009)."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import intervals
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import MissingRecords, mask, select, unless_quiet
from bench.records.roofline import BEYOND

MARKERS = (4.0, 8.0)  # marker size in points, for the shortest and the longest context
HEIGHT = 3.6  # height of the figure in inches, without the caption
LOW = 0.25  # a dotted line is drawn at this share of the roof
CURVE = ["attention", "features", "causal", "seq_len"]
# Known reasons why a mechanism (by label) is below that line.
REASONS = {
    "informer": "on a CPU the sampled scores are taken from all of them, which are multiplied in less time than the "
    "sampled keys are gathered: its formula counts the sampled ones",
    "softmax": "every score goes to memory and back several times",
}
_EXPLANATION = (
    "Forward pass. A point's height under the roof is its share of the ceilings, which were measured in the same "
    "rounds as the pass, bars {}; FLOPs are those of the mechanism's own formula, "
    "bytes those of inputs, parameters and output, once. The roof is drawn at the medians of all cells."
)


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """FLOP/s over FLOP/byte under the roof of the device: one panel with and one without a causal mask.

    One point for each mechanism and length; longer contexts have larger markers, and lines join a mechanism's points.
    """
    data, notes = _select(frame)
    measured, properties = _points(data), style.of_series(data)
    points = measured.dropna(subset="share")
    if points.empty:
        raise MissingRecords("needs an ok record of bench=roofline that is not beyond the ceilings")
    gemm, copied = (data.loc[data["metric"] == name, "value"].median() for name in ("gemm", "copy"))
    longer = np.log2(points["seq_len"] / points["seq_len"].min())
    markers = MARKERS[0] + (MARKERS[1] - MARKERS[0]) * longer / max(longer.max(), 1)
    points, names = points.assign(marker=markers), set(points["series"])
    masks = sorted(set(points["causal"]))
    drawn, axes = layout.panels(1, len(masks))
    drawn.set_size_inches(drawn.get_figwidth(), HEIGHT)
    for panel, causal in zip(axes[0], masks, strict=True):
        layout.title(panel, mask(causal))
        _draw(panel, points[points["causal"] == causal], properties, gemm, copied)
    # The panels share the vertical axis, so its limits are set after all panels are drawn.
    floor = np.min(points["low"] / 100 * _roof(points["intensity"], gemm, copied))
    axes[0, 0].set_ylim(floor / 2e9, 2.2 * gemm / 1e9)
    marks.log_axis(axes[0, 0].yaxis, "speed (GFLOP/s)")
    text = [_EXPLANATION.format(intervals.bars(points)), *_sentences(data, measured, gemm), captions.conditions(data)]
    return layout.finish(drawn, {name: properties[name] for name in properties if name in names}, *text, *notes)


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """Each mechanism's share of the most that this machine can do (the ceiling), by mask and length.

    The ceiling was measured in the same rounds: of a matrix product (compute) or of a copy (memory). 100 % is the
    ceiling. Work is counted by the mechanism's own formula. Where the share is empty, the pass is beyond its ceiling:
    the data stay in caches, which are faster (`ceiling` says which one). The plain reference is the code that shows
    the formula.
    """
    points = _points(_select(frame)[0]).sort_values(["causal", "seq_len", "share"], ascending=[True, True, False])
    references = frame[(frame["bench"] == "roofline") & (frame["impl"] == "reference")]
    if (references["status"] == "ok").any():
        textbook = _points(_of(references)[0])[[*CURVE, "share"]].rename(columns={"share": "reference"})
        points = points.merge(textbook, how="left", on=CURVE)
    else:
        points["reference"] = np.nan
    points["why"] = points["attention"].map(REASONS).where(points["share"] < 100 * LOW)
    ceiling = points["gemm"].where(points["bound"].str.endswith("compute"), points["copy"])
    columns = {"attention": points["series"], "d": points["features"], "causal": points["causal"]}
    columns |= {"n": points["seq_len"], "GFLOP": points["flops"] / 1e9, "MB": points["bytes"] / 1e6}
    columns |= {"FLOP/byte": points["intensity"], "ms": points["latency"] / 1e6}
    columns |= {"share of the ceiling (%)": points["share"], "from": points["low"], "to": points["high"]}
    columns |= {"interval": pd.Series(intervals.each(points), points.index)}
    columns |= {"of the reference (%)": points["reference"], "ceiling": points["bound"]}
    columns |= {"GFLOP/s or GB/s": ceiling / 1e9, "why below 25 %": points["why"]}
    return unless_quiet(pd.DataFrame(columns | {"disturbed": points["disturbance"]}).reset_index(drop=True))


def _select(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The comparable cells, with and without a causal mask; impl=reference only if a mechanism has no other."""
    fast = frame[(frame["bench"] == "roofline") & (frame["impl"] != "reference") & (frame["status"] == "ok")]
    return _of(frame[(frame["impl"] != "reference") | ~frame["attention"].isin(set(fast["attention"]))])


def _of(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    return select(frame, "roofline", ["causal", "seq_len", "metric"], facets=("causal",))


def _points(data: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: its metrics as columns, with the interval of the share and the peak that limits it."""
    measured = data[data["status"] == "ok"]
    values = measured.pivot(index="cell_id", columns="metric", values="value")
    shares = measured[measured["metric"] == "share"].set_index("cell_id")
    words = ["attention", "series", "features", "causal", "seq_len", "verdict", "disturbance"]
    bars = ["low", "high", "interval", "over", "samples"]
    return shares[[*words, *bars]].rename(columns={"verdict": "bound"}).join(values)


def _roof(intensity: Any, gemm: float, copied: float) -> Any:
    return np.minimum(gemm, intensity * copied)


def _draw(axes: Axes, points: pd.DataFrame, properties: dict[str, dict[str, Any]], gemm: float, copied: float) -> None:
    ridge = gemm / copied
    left, right = min(ridge / 3, points["intensity"].min() / 2), max(ridge * 8, points["intensity"].max() * 2)
    x = np.array([left, ridge, right])
    roof = _roof(x, gemm, copied) / 1e9
    axes.plot(x, roof, color="0.2", linewidth=1.6, zorder=1, gid="roof", **layout.SQUARE)
    axes.plot(x, LOW * roof, color="0.6", linewidth=0.8, linestyle=":", zorder=1, gid="low")
    words: dict[str, Any] = {"fontsize": layout.SMALLEST, "color": "0.3", "textcoords": "offset points"}
    axes.annotate(f"{gemm / 1e9:,.3g} GFLOP/s", (ridge, roof[1]), (2, 3), ha="left", **words)
    axes.annotate(f"{copied / 1e9:,.3g} GB/s", (np.sqrt(left * ridge), (roof[0] * roof[1]) ** 0.5), (5, -6), **words)
    axes.annotate(f"{LOW:.0%}", (ridge, LOW * roof[1]), (2, 2), ha="left", **words)
    heights = _roof(points["intensity"], gemm, copied) / 1e11
    points = points.assign(**{name: points[name] * heights for name in ("share", "low", "high")})
    for name, rows in points.sort_values("seq_len").groupby("series"):
        joined = {**properties[name], "marker": None, "label": "", "linewidth": 0.7, "alpha": 0.6, **layout.SQUARE}
        axes.plot(rows["intensity"], rows["share"], zorder=2, **joined)
    for row in points.itertuples():
        look = {**properties[row.series], "linestyle": "none", "markeredgecolor": "white", "markeredgewidth": 0.5}
        bars = [[row.share - row.low], [row.high - row.share]]
        # Small markers are drawn over large ones.
        place: dict[str, Any] = {"markersize": row.marker + 2 * (look["marker"] == "*"), "zorder": 4 - row.marker / 10}
        axes.errorbar(row.intensity, row.share, yerr=bars, capsize=1.5, elinewidth=0.7, **{**look, **place})
    axes.set_xlim(left, right)
    marks.log_axis(axes.xaxis, "arithmetic intensity (FLOP/byte)")


def _sentences(data: pd.DataFrame, points: pd.DataFrame, gemm: float) -> list[str]:
    """Caption sentences on marker sizes, exponentials, and the points that are left out."""
    lengths = [marks.length_name(n) for n in sorted(set(points["seq_len"]))]
    sentences = [f"Larger markers: longer contexts (n = {', '.join(lengths)})."] if len(lengths) > 1 else []
    rate = data.loc[data["metric"] == "exponentials", "value"].median()
    heads = sorted(set(data["head_dim"].dropna()))
    if rate > 0 and len(heads) == 1:
        sentences.append(
            f"An exponential takes as long as {gemm / rate:.0f} FLOPs of a product; softmax over all keys needs one "
            f"for every {4 * heads[0]}."
        )
    for bound, rows in points[points["share"].isna()].groupby("bound"):
        sentences.append(f"Left out, {BEYOND[str(bound)]}: {', '.join(map(_name, rows.itertuples()))}.")
    failed = data[data["status"] != "ok"].sort_values(["series", "causal", "seq_len"])
    gaps = [f"{_name(row)} ({marks.STATUS.get(row.status, row.status)})" for row in failed.itertuples()]
    return [*sentences, f"Not measured: {', '.join(gaps)}."] if gaps else sentences


def _name(row: Any) -> str:
    return f"{row.series}{' causal' * bool(row.causal)} at n = {row.seq_len}"
