"""Quality against cost: what a mechanism's model has learned, over the time of a step of its training."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis import intervals
from analysis.frame import newest
from analysis.learned import PANEL, learned, over_seeds, panels, work
from analysis.plots import looks, page, style
from analysis.plots.page import Picture
from analysis.plots.pareto import front

# What the time of a step depends on.
_STEP = [
    "attention",
    "hyperparameters",
    "impl",
    "seq_len",
    "batch_size",
    "num_heads",
    "head_dim",
    "dtype",
    "device_name",
]
_STEP += ["work"]
MEASURED, TRAINING = "time of a step (ms)", "time of a step while training (ms)"


@style.literal
def figure(frame: pd.DataFrame) -> Picture:
    """Test loss over the measured time of a step, a point per mechanism, a panel for every task and length.

    The time is that of bench=train_step where it was measured for all of a panel (same model, task, length and batch),
    else the median over the steps of training; the label says which. The grey line joins what nothing beats in both.

    Args:
        frame: from `analysis.frame.load`.

    Raises:
        MissingRecords: nothing was trained.
    """
    data, notes = learned(frame)
    points = _points(frame, data)
    properties = looks.styles(data, data["series"])
    # Without lines, variants of one mechanism look alike.
    numbers = {name: number for number, name in enumerate(properties, 1)}
    groups = panels(points)
    drawn, axes = page.grid(len(groups))
    for panel, ((kind, seq_len), rows) in zip(axes, groups, strict=True):
        page.title(panel, f"{kind}, n = {seq_len:,}")
        measured = rows["step_ms"].notna().all()
        _draw(
            panel, rows if measured else rows.assign(**{name: rows[own] for name, own in _WHILE}), properties, numbers
        )
        style.value_axis(panel.xaxis, MEASURED if measured else TRAINING)
        style.value_axis(panel.yaxis, "test loss (nats)")
    page.legend(
        drawn,
        {
            name: {**look, "label": f"{numbers[name]} {look['label']}", "linestyle": "none"}
            for name, look in properties.items()
        },
    )
    timed = points.dropna(subset=["interval"])
    explanation = _EXPLANATION.format(f" ({intervals.bars(timed)})" if len(timed) else "")
    page.caption(drawn, " ".join([explanation, *notes, style.conditions(data)]))
    return drawn


_EXPLANATION = (
    "Lower left is better. Loss: median over seeds, bars from the least to the greatest. Time: of bench=train_step its "
    "median{}, while training the median of all steps and seeds, with bars over seeds. Cells are minutes apart. Grey: "
    "what nothing shown beats in both."
)
_BARS = ["interval", "over", "samples"]
_TIMES = ["step_ms", "step_ms_low", "step_ms_high"]
_TRAINED = ["trained_ms", "trained_ms_low", "trained_ms_high"]
_WHILE = list(zip(_TIMES, _TRAINED, strict=True))


def _points(frame: pd.DataFrame, data: pd.DataFrame) -> pd.DataFrame:
    """The losses (`value`, `low`, `high`) with the times of a step in ms, measured (`_BARS`) and while training."""
    steps = frame[(frame["bench"] == "train_step") & (frame["metric"] == "step_time")]
    steps, _ = newest(steps.assign(work=work(steps)), _STEP)
    times = steps[[*_STEP, "value", "low", "high", *_BARS]].rename(
        columns=dict(zip(("value", "low", "high"), _TIMES, strict=True))
    )
    times[_TIMES] *= 1e-6
    speeds = over_seeds(data, "steps_per_second")
    speeds = speeds.assign(
        **{name: 1e3 / speeds[of] for name, of in zip(_TRAINED, ("value", "high", "low"), strict=True)}
    )
    points = (
        over_seeds(data, "loss").drop(columns=_BARS).merge(speeds[[*PANEL, "series", *_TRAINED]], on=[*PANEL, "series"])
    )
    return points.merge(times, on=_STEP, how="left")


def _draw(axes: Axes, points: pd.DataFrame, properties: dict[str, dict[str, Any]], numbers: dict[str, int]) -> None:
    best = front(points.assign(error=points["step_ms"]))
    axes.plot(best["step_ms"], best["value"], color="0.6", linewidth=3, marker="o", markersize=11, alpha=0.5, zorder=1,
              gid="front")  # fmt: skip
    for _, row in points.iterrows():
        bars = {
            "xerr": [[row["step_ms"] - row["step_ms_low"]], [row["step_ms_high"] - row["step_ms"]]],
            "yerr": [[row["value"] - row["low"]], [row["high"] - row["value"]]],
        }
        look: dict[str, Any] = {**properties[row["series"]], **bars, "linestyle": "none"}
        axes.errorbar(row["step_ms"], row["value"], capsize=2, **look)
        at = (row["step_ms"], row["value"])
        axes.annotate(str(numbers[row["series"]]), at, (4, 4), textcoords="offset points", fontsize=page.SMALLEST)
