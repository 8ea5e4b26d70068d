"""Speed against error: which mechanism is worth its time."""

import json
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import intervals
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import CODE, MissingRecords, newest, series, settle, variants

ERROR = "relative error ‖BV − R‖ / ‖BV‖"
# A speed and an error belong together only where these agree.
_SHAPE = ["causal", "num_heads", "head_dim"]
# Columns of the frame of the errors, and what a point has them as.
_OF_ERROR = {name: f"error_{name}" for name in ("low", "high", "interval", "over", "samples", *CODE)}
_MISSING = (
    "needs ok records of bench=latency and bench=spectral_norm for one mechanism at the same "
    "seq_len, num_heads, head_dim and causal"
)


@layout.styled()
def figure(frame: pd.DataFrame, seq_len: int | None = None, measured_pass: str = "forward") -> Picture:
    """Latency per token against error, one panel for each function that is approximated.

    Errors of approximations of different functions do not compare, so they never share a panel. The length is
    `seq_len`, or the longest at which both were measured.
    """
    speed = frame[(frame["metric"] == "latency_per_token") & (frame["pass"] == measured_pass)]
    error = frame[(frame["metric"] == "relative") & ~frame["exact"]]
    speed, error = (rows.assign(function=_function(rows)) for rows in (speed, error))
    panels = []
    for function in sorted(set(error["function"])):
        same = error[error["function"] == function]
        panels += _points(speed[speed["function"] == function], same, seq_len)
    if not panels:
        raise MissingRecords(_MISSING + ("" if seq_len is None else f" at seq_len={seq_len}"))

    everything = pd.concat([rows for points, exact, _ in panels for rows in (points, exact)])
    own = ["attention", "status", *_OF_ERROR.values()]
    errors = pd.concat(
        [points[own].rename(columns={f"error_{name}": name for name in _OF_ERROR}) for points, *_ in panels]
    )
    properties = style.of_series(everything)
    drawn, axes = layout.panels(1, len(panels))
    for panel, (points, exact, _) in zip(axes[0], panels, strict=True):
        _draw(panel, points, exact, properties)
    marks.log_axis(axes[0, 0].yaxis, f"{marks.PASSES[measured_pass]} latency (µs/token)")
    explanation = (
        f"Lower left is better. Error: mean relative spectral norm error, bars {intervals.bars(errors)}; latency: "
        f"median, bars {intervals.bars(everything)}; numbers: size d; dotted: exact mechanisms; grey: points that "
        "nothing shown beats in both, exact mechanisms included."
    )
    notes = dict.fromkeys(note for *_, panel_notes in panels for note in panel_notes)
    text = [explanation, f"{captions.machine(everything)}.", captions.disturbed(everything)]
    text += [captions.code(everything), captions.code(errors)]
    return layout.finish(drawn, properties, *text, *notes)


def _points(
    speed: pd.DataFrame, error: pd.DataFrame, seq_len: int | None
) -> list[tuple[pd.DataFrame, pd.DataFrame, list[str]]]:
    """One panel: the points of one function, its exact mechanisms' speeds, what to say."""
    shapes = speed[_SHAPE].drop_duplicates().merge(error[_SHAPE].drop_duplicates())
    if shapes.empty:
        return []
    # An error on the inputs that were timed says more than one on others.
    timed = error["weights"].fillna("").isin(speed["weights"].fillna(""))
    error, notes = settle((error[timed] if timed.any() else error).merge(shapes))
    speed, more = settle(speed.merge(error[_SHAPE].drop_duplicates()))
    same_cell = ["attention", "hyperparameters", "impl", "seq_len"]
    speed, older = newest(speed, same_cell)
    error, older_error = newest(error, same_cell)
    names, keys = {"value": "error", "features": "size"} | _OF_ERROR, ["attention", "variant", "impl", "seq_len"]
    # Without the size.
    speed, error = (rows.assign(variant=[json.dumps(each) for each in variants(rows)]) for rows in (speed, error))
    points = speed.merge(
        error.rename(columns=names)[[*keys, "hyperparameters", *names.values()]], on=keys, suffixes=("", "_error")
    )
    # The size is the same where it is set in the same words, or where both cells name it.
    same = (points["hyperparameters"] == points["hyperparameters_error"]) | (points["features"] == points["size"])
    points = points[same.fillna(False)].drop_duplicates(["cell_id", "size"])
    points = points.assign(series=series(points, apart_from_size=True))
    points = points[points["seq_len"] == (points["seq_len"].max() if seq_len is None else seq_len)]
    if points.empty:
        return []
    exact = speed[speed["exact"] & speed["seq_len"].isin(points["seq_len"])]
    words = f"latency with {captions.setting(speed)}; error with {captions.setting(error)}"
    sentences = [f"{points['function'].iloc[0]}: {words}.", *notes, *more, *older, *older_error]
    return [(points, exact.assign(series=series(exact)), sentences)]


def _function(rows: pd.DataFrame) -> list[str]:
    """What each row computes or approximates; polynomials of different degree are different functions."""
    names = []
    for function, text in zip(rows["function"], rows["hyperparameters"], strict=True):
        degree = json.loads(text).get("degree") if function == "polynomial" else None
        names.append(function if degree is None else f"{function} p={degree}")
    return names


def _draw(axes: Axes, points: pd.DataFrame, exact: pd.DataFrame, properties: dict[str, dict[str, Any]]) -> None:
    for row in exact.itertuples():
        marks.level(axes, row, {**properties[row.series], "marker": None, "linestyle": ":"})
    marks.front_line(axes, marks.front(points, "error", exact["value"].min() if len(exact) else np.inf), "error")
    for _, row in points.iterrows():
        marks.point(axes, row, "error", properties[row["series"]])
    causal = "causal" if points["causal"].iloc[0] else "not causal"
    layout.title(axes, f"{points['function'].iloc[0]}, {causal}, n = {points['seq_len'].iloc[0]}")
    # Room for the words at the rightmost point, and for one tick at least.
    low, high = (points[name].where(points[name] > 0, points["error"]) for name in ("error_low", "error_high"))
    axes.set_xlim(low.min() / 1.5, high.max() * 2)
    marks.log_axis(axes.xaxis, ERROR)
    names = [
        layout.shown(name) if pd.isna(size) else str(size)
        for name, size in zip(points["series"], points["size"], strict=True)
    ]
    marks.beside(axes, points, "error", names)
