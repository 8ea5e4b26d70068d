"""Which of two is faster, and from which length on: ratios of interleaved rounds."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis import intervals
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import select
from bench.records.statistics import Comparison, Overtaking, overtakings

MOST_MARKED = 6
"""More vertical lines hide what they mark; `crossovers`, and the figure of that name, have a row for each."""
_EXPLANATION = (
    "Median over interleaved rounds of the baseline's time over theirs (above 1: faster), bars {}. Hollow: a tie; pale "
    "band: where a ratio would be one; vertical line: length from which the order holds, with its interval."
)


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """Speed-up from interleaved rounds over context length, with crossovers: a panel per baseline and pass."""
    data, notes = _select(frame)
    # Hollow means a tie here, not a variant.
    properties = {name: line | {"markerfacecolor": line["color"]} for name, line in style.of_series(data).items()}
    measured = data[data["metric"] == "speedup"]
    panels = list(measured.groupby(["baseline", "pass"], sort=True))
    drawn, axes = layout.panels(1, len(panels))
    for panel, ((baseline, name), rows) in zip(axes[0], panels, strict=True):
        layout.title(panel, f"over {layout.shown(baseline)}, {marks.PASSES[name]}")
        failed = data[(data["status"] != "ok") & (data["baseline"] == baseline) & (data["pass"] == name)]
        _draw(panel, rows, properties)
        marks.gaps(panel, failed, "seq_len", properties)
        marks.length_axis(panel, [*rows["seq_len"], *failed["seq_len"]])
    marks.log_axis(axes[0, 0].yaxis, "speed-up over the baseline")
    # Of the candidates and of the baselines.
    cells = frame[frame["cell_id"].isin(measured["cell_id"])]
    text = [_EXPLANATION.format(intervals.bars(measured)), captions.conditions(cells), captions.functions(cells)]
    return layout.finish(drawn, properties, *text, *notes)


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per baseline, candidate, pass and length: `speedup`, its interval, the verdict and the rounds."""
    data, _ = _select(frame)
    columns = ["baseline", "attention", "pass", "seq_len", "value", "low", "high", "verdict", "samples"]
    rows = data[data["metric"] == "speedup"].sort_values(["baseline", "attention", "pass", "seq_len"])
    return rows[columns].rename(columns={"value": "speedup", "samples": "rounds"}).reset_index(drop=True)


def crossovers(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per baseline, candidate and pass: who is `faster` from which `seq_len` on (`low` to `high`).

    Pairs whose order does not change within the lengths measured have no row.
    """
    data, _ = _select(frame)
    rows = []
    for name, group in data[data["metric"] == "speedup"].groupby("pass", sort=True):
        for each in _overtakings(group):
            at = each.crossover
            rows.append((each.baseline, each.label, name, each.faster, at.length, at.low, at.high))
    return pd.DataFrame(sorted(rows), columns=["baseline", "attention", "pass", "faster", "seq_len", "low", "high"])


def _select(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    # Labels name the dtypes that differ, settings that of the baseline.
    return select(frame, "compare", ["baseline", "pass", "seq_len"], metric="speedup", facets=("dtype",))


def _overtakings(rows: pd.DataFrame) -> list[Overtaking]:
    columns = rows[["baseline", "series", "seq_len", "batch_size", "raw"]]
    return overtakings(Comparison(*values) for values in columns.itertuples(index=False))


def _draw(axes: Axes, rows: pd.DataFrame, properties: dict[str, dict[str, Any]]) -> None:
    axes.axhline(1, color="0.4", linewidth=0.8, zorder=1, **layout.SQUARE)
    for label, group in rows.groupby("series", sort=True):
        group = group.sort_values("seq_len")
        line = properties[label]
        marks.errorbar(axes, group, "seq_len", line)
        lengths, value, low, high = (group[name].to_numpy(float) for name in ("seq_len", "value", "low", "high"))
        # value / high <= value <= value / low is the same as low <= 1 <= high.
        axes.fill_between(lengths, value / high, value / low, color=line["color"], alpha=0.15, linewidth=0)
        ties = group[group["verdict"] == "tie"]
        hollow = {**line, "markerfacecolor": "white", "linestyle": "none", "label": ""}
        axes.plot(ties["seq_len"], ties["value"], zorder=3, gid="tie", **hollow)
    changes = _overtakings(rows) if rows["series"].nunique() <= MOST_MARKED else []
    for i, each in enumerate(changes):
        at, colour = each.crossover, properties[each.label]["color"]
        axes.axvline(at.length, color=colour, linewidth=0.8, linestyle=":", gid="crossover")
        low, high = max(at.low, rows["seq_len"].min()), min(at.high, rows["seq_len"].max())
        axes.axvspan(low, high, color=colour, alpha=0.12, linewidth=0)
        place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        look = {"color": colour, "fontsize": layout.SMALLEST, "bbox": {**marks.BOX, "pad": 0.5}}
        axes.annotate(f"n* = {at.length:,.0f}", (at.length, 0), (3, 3 + 8 * i), **place, **look)
