"""Speed against error: which mechanisms are on the Pareto front."""

import json
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import intervals
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import MissingRecords, mask, newest, series, settle, variants
from analysis.selection import controls as is_control

ERROR = "relative error ‖BV − R‖ / ‖BV‖"
# A speed and an error are paired only if these columns agree.
_SHAPE = ["causal", "num_heads", "head_dim"]
# Columns of the errors -> their names in a frame of points.
_OF_ERROR = {name: f"error_{name}" for name in ("low", "high", "cell_id")}


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """Latency per token against error: one panel for each approximated function, mask and length.

    Errors of different functions are not comparable, so they never share a panel. Exact mechanisms have no error and
    are horizontal lines at their time; controls, such as the mean of the values, are vertical lines at their error.
    """
    speed = frame[(frame["metric"] == "latency_per_token") & (frame["pass"] == "forward")]
    error = frame[(frame["metric"] == "relative") & ~frame["exact"]]
    speed, error = (rows.assign(function=_function(rows)) for rows in (speed, error))
    panels = []
    for (function, causal, _), same in error.groupby(["function", "causal", "seq_len"], sort=True):
        panels += _points(speed[(speed["function"] == function) & (speed["causal"] == causal)], same)
    if not panels:
        where = "at the same seq_len, num_heads, head_dim and causal"
        raise MissingRecords(f"needs ok records of bench=latency and bench=spectral_norm for one mechanism {where}")

    everything = pd.concat([rows for one in panels for rows in (one.points, one.exact)])
    controls = pd.concat([one.controls for one in panels])
    errors = error[error["cell_id"].isin([*controls["cell_id"], *everything["error_cell_id"]])]
    properties = style.of_series(pd.concat([everything, controls]))
    drawn, axes = layout.grid(len(panels))
    for panel, one in zip(axes, panels, strict=True):
        _draw(panel, one, properties)
        marks.log_axis(panel.yaxis, "forward latency (µs/token)")
    explanation = (
        f"Lower left is better. Error: mean relative spectral norm error, bars {intervals.bars(errors)}; latency: "
        f"median, bars {intervals.bars(everything)}; numbers: size d. Horizontal lines: time of exact mechanisms; "
        "vertical lines: error of controls, which choose no keys (v_mean averages all values); "
        "grey: points that nothing shown beats in both, exact mechanisms and controls included."
    )
    notes = dict.fromkeys(note for one in panels for note in one.notes)
    text = [explanation, f"{captions.machine(everything)}.", captions.disturbed(everything)]
    text += [captions.code(everything), captions.code(errors)]
    return layout.finish(drawn, properties, *text, *notes)


class _Panel(NamedTuple):
    """Points of one function, mask and length, times of its exact mechanisms, and errors of its controls."""

    points: pd.DataFrame
    exact: pd.DataFrame
    controls: pd.DataFrame
    notes: list[str]


def _points(speed: pd.DataFrame, error: pd.DataFrame) -> list[_Panel]:
    """The panel for errors of one function, mask and length, joined with its speeds; empty if nothing matches."""
    shapes = speed[_SHAPE].drop_duplicates().merge(error[_SHAPE].drop_duplicates())
    if shapes.empty:
        return []
    # Prefer errors that were measured on the same inputs as the times.
    timed = error["weights"].fillna("").isin(speed["weights"].fillna(""))
    error, notes = settle((error[timed] if timed.any() else error).merge(shapes))
    speed, more = settle(speed.merge(error[_SHAPE].drop_duplicates()))
    same_cell = ["attention", "hyperparameters", "impl", "seq_len"]
    speed, error = newest(speed, same_cell), newest(error, same_cell)
    names, keys = {"value": "error", "features": "size"} | _OF_ERROR, ["attention", "variant", "impl", "seq_len"]
    # The hyperparameters without the size d.
    speed, error = (rows.assign(variant=[json.dumps(each) for each in variants(rows)]) for rows in (speed, error))
    points = speed[~is_control(speed)].merge(
        error.rename(columns=names)[[*keys, "hyperparameters", *names.values()]], on=keys, suffixes=("", "_error")
    )
    # Sizes match if the hyperparameters are equal, or if both cells have the same number of features.
    same = (points["hyperparameters"] == points["hyperparameters_error"]) | (points["features"] == points["size"])
    points = points[same.fillna(False)].drop_duplicates(["cell_id", "size"])
    if points.empty:
        return []
    points = points.assign(series=series(points, apart_from_size=True))
    exact = speed[speed["exact"] & speed["seq_len"].isin(points["seq_len"])]
    controls = error[is_control(error)]
    words = f"latency with {captions.setting(speed)}; error with {captions.setting(error)}"
    sentences = [f"{points['function'].iloc[0]}: {words}.", *notes, *more]
    return [_Panel(points, exact.assign(series=series(exact)), controls.assign(series=series(controls)), sentences)]


def _function(rows: pd.DataFrame) -> list[str]:
    """The function that each row computes or approximates; polynomials of different degree are different functions."""
    names = []
    for function, text in zip(rows["function"], rows["hyperparameters"], strict=True):
        degree = json.loads(text).get("degree") if function == "polynomial" else None
        names.append(function if degree is None else f"{function} p={degree}")
    return names


def _draw(axes: Axes, one: _Panel, properties: dict[str, dict[str, Any]]) -> None:
    points, exact, controls = one.points, one.exact, one.controls
    for row in exact.itertuples():
        marks.level(axes, row, {**properties[row.series], "marker": None, "linestyle": ":"})
    for row in controls.itertuples():
        marks.level(axes, row, {**properties[row.series], "marker": None, "linestyle": "-."}, along="x")
    best = marks.front(points, "error", exact["value"].min() if len(exact) else np.inf)
    marks.front_line(axes, best[best["error"] < (controls["value"].min() if len(controls) else np.inf)], "error")
    marks.points(axes, points, "error", properties)
    title = f"{points['function'].iloc[0]}, {mask(points['causal'].iloc[0])}, n = {points['seq_len'].iloc[0]}"
    layout.title(axes, title)
    # Leave room for the text at the rightmost point, and for at least one tick.
    low, high = (points[name].where(points[name] > 0, points["error"]) for name in ("error_low", "error_high"))
    ends = [*controls["value"], low.min(), high.max()]
    axes.set_xlim(min(ends) / 1.5, max(ends) * 2)
    marks.log_axis(axes.xaxis, ERROR)
    named = points.assign(name=["" if pd.isna(size) else str(size) for size in points["size"]])
    named = named[named["name"] != ""]
    marks.beside(axes, named, "error", named["name"])
