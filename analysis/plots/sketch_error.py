"""Theorem 1.1 of PolySketchFormer (Kacham et al. 2024, ICML version): the error of sketched weights over r."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import intervals
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import MissingRecords, disturbance, newest, require_ok, settle_each, unless_quiet
from bench.records.metrics import interval_kind
from bench.records.statistics import Interval, power_law

QUANTITIES = {"kernel": "⟨φ′(q), φ′(k)⟩ (Theorem 1.1)", "sketch": "before squaring: ⟨L, R⟩ (Theorem 2.2)"}
_COLOURS = dict(zip(("gaussian", "srht", "learned"), style.PALETTE, strict=False))
_MARKERS = {4: "o", 8: "s"}
_LOG = logging.getLogger(__name__)
# Further hyperparameters that change the sketch; the others concern blocks and normalisers.
_DISTINGUISHING = ("qk_layernorm", "scale", "per_head")
_EXPECTED = "gaussian, p = 4, expected"
_THEORY: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1}
_REFERENCES: dict[str, tuple[float, dict[str, Any]]] = {
    "∝ 1/√r": (-0.5, {"color": "0.55", "linestyle": ":", "linewidth": 1}),
    "∝ 1/r": (-1.0, {"color": "0.55", "linestyle": "-.", "linewidth": 1}),
}


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """Error of sketched weights over r (PolySketchFormer, Theorem 1.1): one row of panels for each kind of inputs.

    Left: the tensored sketch against `(Q K^T)^p`; right: the sketch before squaring against `(Q K^T)^{p/2}`. Bars are
    95 % intervals over draws. Each line's fitted exponent of r is written in the panel. Degree 2 has no line.
    """
    data, notes = _select(frame)
    measured = data[data["status"] == "ok"]
    kinds = sorted(set(measured["kind"]))
    properties = _styles(data)
    drawn, axes = layout.panels(len(kinds), len(QUANTITIES), least=2.5)
    for i, kind in enumerate(kinds):
        for j, (quantity, title) in enumerate(QUANTITIES.items()):
            panel = data[data["kind"] == kind]
            layout.title(axes[i, j], f"{kind}, {title}")
            _draw(axes[i, j], panel, quantity, properties)
            marks.length_axis(axes[i, j], data["features"].dropna(), "sketch size r")
        marks.log_axis(axes[i, 0].yaxis, "relative error (root mean square)")
    lines = {name: {**look, "label": name, "marker": None} for name, (_, look) in _REFERENCES.items()}
    if (measured["metric"] == "kernel_expected").any():
        lines = {_EXPECTED: {**_THEORY, "marker": None}} | lines
    return layout.finish(drawn, properties | lines, _explanation(measured), captions.conditions(measured), *notes)


def exponents(frame: pd.DataFrame) -> pd.DataFrame:
    """How the error of sketched weights falls with the sketch size r: as r to which power (PolySketchFormer).

    An error that falls as 1 over the square root of r has the exponent -0.5. The kernel error is that of the weights
    (Theorem 1.1), the sketch error that before they are squared (Theorem 2.2). In brackets the intervals over draws.
    """
    data, _ = _select(frame)
    rows = []
    for kind, panel in data.groupby("kind"):
        for quantity, (name, line) in ((one, line) for one in QUANTITIES for line in _lines(panel, one)):
            if exponent := _exponent(line):
                row = {"inputs": kind, "sketch": name, "quantity": f"{quantity} error"}
                row |= {"exponent of r": exponent.value, "low": exponent.low, "high": exponent.high}
                row |= {"r": f"{line['features'].min()} to {line['features'].max()}", "draws": line["samples"].min()}
                rows.append(row | {"disturbed": disturbance(line)})
    if not rows:
        raise MissingRecords("needs ok records of bench=sketch_error at two sketch sizes or more")
    return unless_quiet(pd.DataFrame(rows))


def _select(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The comparable cells of the longest length; each kind of inputs may have its own settings."""
    data = frame[(frame["bench"] == "sketch_error") & (frame["mechanism"] == "polysketch")]
    # Degree 2 needs no sketch: it has neither a size nor an error.
    data = data[(data["status"] != "ok") | data["features"].notna()]
    settings = [json.loads(text) for text in data["hyperparameters"]]
    known = [one.get("sketch") in _COLOURS and isinstance(one.get("degree"), int) for one in settings]
    data = data[np.array(known, bool)]
    data, notes = settle_each(require_ok(data, "bench=sketch_error for a sketch"))
    longest = data.loc[data["status"] == "ok", "seq_len"].max()
    if data["seq_len"].nunique() > 1:
        _LOG.info("bench=sketch_error: left out lengths other than %d", longest)
    data = data[data["seq_len"] == longest]
    settings = [json.loads(text) for text in data["hyperparameters"]]
    differing = [key for key in _DISTINGUISHING if len({json.dumps(one.get(key)) for one in settings}) > 1]
    names = [[f"{one['sketch']}, p = {one['degree']}", *(f"{k}={one.get(k)}" for k in differing)] for one in settings]
    data = data.assign(series=[", ".join(name) for name in names])
    cells = newest(data.drop_duplicates("cell_id"), ["series", "features", "kind"])
    return data[data["cell_id"].isin(cells["cell_id"])], notes


def _styles(data: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Line2D properties by series: the colour shows the kind of sketch, the marker its degree."""
    properties = {}
    for _, name, text in sorted(set(zip(data["place"], data["series"], data["hyperparameters"], strict=True))):
        settings = json.loads(text)
        drawn = style.line(name, _COLOURS[settings["sketch"]], _MARKERS.get(settings["degree"], "^"))
        properties[name] = drawn | {"markersize": 4}
        if settings["degree"] > 4:
            properties[name]["markerfacecolor"] = "white"
    return properties


def _lines(panel: pd.DataFrame, quantity: str) -> Iterator[tuple[str, pd.DataFrame]]:
    for name, line in panel[panel["metric"] == f"{quantity}_error"].groupby("series"):
        yield str(name), line.sort_values("features")


def _exponent(line: pd.DataFrame) -> Interval | None:
    line = line[line["value"] > 0]  # a power law cannot be fitted to an error of 0
    return power_law(line["features"].astype(int), line["raw"]) if line["features"].nunique() > 1 else None


def _draw(axes: Axes, panel: pd.DataFrame, quantity: str, properties: dict[str, dict[str, Any]]) -> None:
    place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "right"}
    lane = 0
    for name, line in _lines(panel, quantity):
        marks.errorbar(axes, line, "features", properties[name])
        if exponent := _exponent(line):
            lane += 1
            ends = f" [{exponent.low:.2f}, {exponent.high:.2f}]" if exponent.low == exponent.low else ""
            look = {"fontsize": layout.SMALLEST, "color": properties[name]["color"], "gid": "exponent"}
            axes.annotate(f"{name}: {exponent.value:.2f}{ends}", (1, 1), (0, -8 * lane), **place, **look)
    expected = panel[panel["metric"] == f"{quantity}_expected"].sort_values("features")
    for _, line in expected.groupby("series"):
        axes.plot(line["features"].to_numpy(float), line["value"], **_THEORY, label=_EXPECTED, gid="expected")
    # Reference slopes start at the median error of the smallest size.
    errors = panel[panel["metric"] == f"{quantity}_error"]
    sizes = np.unique(errors["features"].to_numpy(float))
    start = errors.loc[errors["features"] == sizes[0], "value"].median()
    for slope, look in _REFERENCES.values():
        axes.plot(sizes, start * (sizes / sizes[0]) ** slope, **look, gid="reference", zorder=1)
    marks.gaps(axes, panel, "features", properties)


def _explanation(measured: pd.DataFrame) -> str:
    values = {metric: rows["value"] for metric, rows in measured.groupby("metric")}
    errors = measured[measured["metric"] == "kernel_error"]
    fitted = errors.assign(interval=errors["raw"].map(interval_kind))
    text = [
        "Error of sketched polynomial weights, relative to the norms of the tensor powers of Q and K: root mean square "
        f"{intervals.over(errors)}, given these inputs. Bars: {intervals.bars(errors)}. Expected: the root of the "
        f"expected square, in closed form. Numbers: exponent of r, in brackets {intervals.bars(fitted)}. Theorem 1.1 "
        "bounds the error by O(1/√r), which leads at large r; the bias of the square and higher moments fall faster, "
        "and lead at small r.",
        f"Smallest weight seen, relative to the norms of its features: {values['smallest_weight'].min():.0e}.",
    ]
    if "negative_share" in values:
        low, high = (100 * share for share in (values["negative_share"].min(), values["negative_share"].max()))
        text.append(f"Of a sketch of degree p without the square {low:.0f} to {high:.0f}% of the weights are negative.")
    if measured["series"].str.startswith("learned").any():
        text.append("Learned sketches are as initialised, nearly zero: their error is the size of the exact weights.")
    return " ".join(text)
