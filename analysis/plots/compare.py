"""Which of two is faster, and from which length on: ratios of interleaved rounds."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis import intervals
from analysis.frame import MissingRecords, newest, series, settle
from analysis.plots import looks, page, style
from analysis.plots.page import Picture
from bench.records.statistics import Comparison, Crossover, Overtaking, overtakings


@style.literal
def figure(frame: pd.DataFrame) -> Picture:
    """Speed-up over the baseline (its time / theirs, above 1 is faster) over context length.

    One panel per baseline and pass. Bars are intervals over rounds; the pale band around 1 is where a
    ratio would be a tie, ties are hollow; a vertical line with its interval is the length from which the
    order holds.

    Args:
        frame: from `analysis.frame.load`.

    Raises:
        MissingRecords: nothing was compared.
    """
    data, notes = _select(frame)
    styles = looks.styles(data, data["series"])
    # Hollow means a tie here, not a variant.
    properties = {name: {**one, "markerfacecolor": one["color"]} for name, one in styles.items()}
    measured = data[data["metric"] == "speedup"]
    panels = list(measured.groupby(["baseline", "pass"], sort=True))
    drawn, axes = page.panels(1, len(panels))
    for panel, ((baseline, name), rows) in zip(axes[0], panels, strict=True):
        page.title(panel, f"over {page.shown(baseline)}, {style.PASSES[name]}")
        failed = data[(data["status"] != "ok") & (data["baseline"] == baseline) & (data["pass"] == name)]
        _draw(panel, rows, properties)
        style.gaps(panel, failed, "seq_len", properties)
        style.length_axis(panel, [*rows["seq_len"], *failed["seq_len"]])
    style.log_axis(axes[0, 0].yaxis, "speed-up over the baseline")
    page.legend(drawn, properties)
    cells = _of_cells(frame, measured)
    text = [_EXPLANATION.format(intervals.bars(measured)), style.conditions(cells), style.functions(cells), *notes]
    page.caption(drawn, " ".join(filter(None, text)))
    return drawn


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per baseline, candidate, pass and length: `speedup`, its interval, the verdict and the rounds.

    Raises:
        MissingRecords: nothing was compared.
    """
    data, _ = _select(frame)
    measured = data[data["metric"] == "speedup"]
    columns = ["baseline", "attention", "pass", "seq_len", "value", "low", "high", "verdict", "samples"]
    rows = measured.sort_values(["baseline", "attention", "pass", "seq_len"])
    return rows[columns].rename(columns={"value": "speedup", "samples": "rounds"}).reset_index(drop=True)


def crossovers(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per baseline, candidate and pass: who is `faster` from which `seq_len` on (`low` to `high`).

    Pairs whose order does not change within the lengths measured have no row.

    Raises:
        MissingRecords: nothing was compared.
    """
    data, _ = _select(frame)
    rows = []
    for name, group in data[data["metric"] == "speedup"].groupby("pass", sort=True):
        for each in _overtakings(group):
            at = each.crossover
            rows.append((each.baseline, each.label, name, each.faster, at.length, at.low, at.high))
    return pd.DataFrame(sorted(rows), columns=["baseline", "attention", "pass", "faster", "seq_len", "low", "high"])


# More marks hide what they mark; `crossovers`, and the figure of that name, have a row for each.
MOST_MARKED = 6
_EXPLANATION = (
    "Median over interleaved rounds of the baseline's time over theirs (above 1: faster), bars {}. Hollow: a tie; pale "
    "band: where a ratio would be one; vertical line: length from which the order holds, with its interval."
)


def _select(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    data = frame[(frame["bench"] == "compare") & (frame["metric"].isna() | (frame["metric"] == "speedup"))]
    if not (data["status"] == "ok").any():
        raise MissingRecords("needs an ok record of bench=compare")
    data, notes = settle(data, facets=("dtype",))  # labels name those that differ, settings that of the baseline
    data, older = newest(data.assign(series=series(data)), ["baseline", "series", "pass", "seq_len"])
    return data, notes + older


def _of_cells(frame: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """The rows of the candidates and of the baselines."""
    return frame[frame["cell_id"].isin(measured["cell_id"])]


def _overtakings(rows: pd.DataFrame) -> list[Overtaking]:
    columns = rows[["baseline", "series", "seq_len", "batch_size", "raw"]]
    return overtakings(Comparison(*values) for values in columns.itertuples(index=False))


def _draw(axes: Axes, rows: pd.DataFrame, properties: dict[str, dict[str, Any]]) -> None:
    axes.axhline(1, color="0.4", linewidth=0.8, zorder=1)
    for label, group in rows.groupby("series", sort=True):
        group = group.sort_values("seq_len")
        look = properties[label]
        style.errorbar(axes, group, "seq_len", look)
        lengths, value, low, high = (group[name].to_numpy(float) for name in ("seq_len", "value", "low", "high"))
        # value / high <= value <= value / low is the same as low <= 1 <= high.
        axes.fill_between(lengths, value / high, value / low, color=look["color"], alpha=0.15, linewidth=0)
        ties = group[group["verdict"] == "tie"]
        hollow = {**look, "markerfacecolor": "white", "linestyle": "none", "label": ""}
        axes.plot(ties["seq_len"], ties["value"], zorder=3, gid="tie", **hollow)
    marked = _overtakings(rows) if rows["series"].nunique() <= MOST_MARKED else []
    for line, each in enumerate(marked):
        _mark(axes, each.crossover, properties[each.label]["color"], rows["seq_len"], line)


def _mark(axes: Axes, crossover: Crossover, colour: str, lengths: pd.Series, line: int) -> None:
    axes.axvline(crossover.length, color=colour, linewidth=0.8, linestyle=":", gid="crossover")
    low, high = max(crossover.low, lengths.min()), min(crossover.high, lengths.max())
    axes.axvspan(low, high, color=colour, alpha=0.12, linewidth=0)
    axes.annotate(
        f"n* = {crossover.length:,.0f}",
        (crossover.length, 0),
        (3, 3 + 8 * line),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        color=colour,
        fontsize=page.SMALLEST,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
    )
