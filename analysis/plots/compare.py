"""Which of two mechanisms is faster, and from which length on: ratios of interleaved rounds."""

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis import intervals
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import exact_softmax, mask, newest, select, series, several_lengths
from bench.records.statistics import Comparison, Overtaking, overtakings

DTYPES = {"float32": "-", "bfloat16": "--", "float16": "-.", "float64": ":"}
_PANEL = ["baseline", "causal", "pass"]
_TIE: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 10, "markerfacecolor": "none"}
_TIE |= {"markeredgecolor": "0.45", "label": ""}
MOST_MARKED = 6
"""Most series for which vertical lines mark crossovers; `python -m analysis table` and figure `crossover` have all."""
_EXPLANATION = (
    "Median over interleaved rounds of the baseline's time over theirs (above 1: faster), bars {}. Grey ring: a tie; "
    "pale band: where a ratio would be one{}."
)
_MARKED = "; vertical line: length from which the order holds, with its interval"


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """Speed-up from interleaved rounds over context length, with crossovers: one row per pass, one column per mask.

    Colour, marker and fill show the mechanism; dashes show the dtype if there are several. A mask and pass with a
    single length has no panel, if another has more.
    """
    data, notes = _select(frame)
    data = several_lengths(data, "compare", ["causal", "pass"])
    names = {name: label.replace(" dtype=", " ") for label, name in
             sorted(set(zip(data["baseline"], without_dtype(data, "baseline"), strict=True)))}  # fmt: skip
    data = data.assign(attention=without_dtype(data), baseline=without_dtype(data, "baseline"))
    data = newest(data.assign(series=series(data)), ["series", "dtype", *_PANEL, "seq_len"])
    measured = data[data["metric"] == "speedup"]
    dtypes = [name for name in DTYPES if (measured["dtype"] == name).any()]
    properties = style.of_series(data)
    passes = [name for name in marks.PASSES if (measured["pass"] == name).any()]
    masks, baselines = sorted(set(measured["causal"])), sorted(set(measured["baseline"]))
    columns = [(baseline, causal) for baseline in baselines for causal in masks]
    drawn, axes = layout.panels(len(passes), len(columns))
    crossed = False
    for line, name in zip(axes, passes, strict=True):
        for panel, (baseline, causal) in zip(line, columns, strict=True):
            own = (data["pass"] == name) & (data["baseline"] == baseline) & (data["causal"] == causal)
            rows = data[own & (data["metric"] == "speedup")]
            if rows.empty:
                panel.set_axis_off()
                continue
            layout.title(panel, f"{mask(causal)}, {marks.PASSES[name]}")
            crossed |= _draw(panel, rows, properties, dtypes)
            marks.gaps(panel, data[own & (data["status"] != "ok")], "seq_len", properties)
            marks.length_axis(panel, data.loc[own, "seq_len"])
            if panel is line[0] or len(baselines) > 1:
                panel.set_ylabel(f"speed over {layout.shown(names[baseline])}")
        marks.log_axis(line[0].yaxis, line[0].get_ylabel())
    # Conditions and functions of candidates and baselines.
    cells = frame[frame["cell_id"].isin(measured["cell_id"])]
    words = _EXPLANATION.format(intervals.bars(measured), _MARKED if crossed else "")
    text = [words, captions.conditions(cells), captions.functions(cells), *notes]
    return layout.finish(drawn, properties | dashes(dtypes), *text)


def crossovers(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per baseline, candidate, mask and pass: which is `faster` from which `seq_len` on (`low` to `high`).

    Pairs whose order does not change within the measured lengths have no row.
    """
    data, _ = _select(frame)
    rows = []
    for (causal, name), group in data[data["metric"] == "speedup"].groupby(["causal", "pass"]):
        for each in _overtakings(group):
            at = each.crossover
            rows.append((each.baseline, each.label, causal, name, each.faster, at.length, at.low, at.high))
    columns = ["baseline", "attention", "causal", "pass", "faster", "seq_len", "low", "high"]
    return pd.DataFrame(sorted(rows), columns=columns)


def without_dtype(rows: pd.DataFrame, column: str = "attention") -> list[str]:
    """Labels without the dtype, which a comparison of several dtypes appends."""
    return [re.sub(r" dtype=\w+$", "", str(label)) for label in rows[column]]


def dashes(dtypes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Legend entries for the dashes of each dtype; empty if there is only one."""
    look = {"color": "0.35", "marker": ""}
    return {name: {"label": name, "linestyle": DTYPES[name], **look} for name in dtypes if len(dtypes) > 1}


def _select(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The comparable speed-ups, over exact softmax if it was a baseline, and sentences for the caption."""
    softmax = set(frame.loc[exact_softmax(frame), "attention"])
    over_softmax = frame["baseline"].isin(softmax) | (frame["bench"] != "compare")
    chosen = frame[over_softmax] if (over_softmax & (frame["bench"] == "compare")).any() else frame
    return select(chosen, "compare", ["baseline", "pass", "seq_len"], metric="speedup", facets=("dtype",),
                  panels=["causal"], among=pd.Series(False, chosen.index))  # fmt: skip


def _overtakings(rows: pd.DataFrame) -> list[Overtaking]:
    columns = rows[["baseline", "series", "seq_len", "batch_size", "raw"]]
    return overtakings(Comparison(*values) for values in columns.itertuples(index=False))


def _draw(axes: Axes, rows: pd.DataFrame, properties: dict[str, dict[str, Any]], dtypes: Sequence[str]) -> bool:
    """Draw one panel; returns whether crossovers are marked in it."""
    axes.axhline(1, color="0.4", linewidth=0.8, zorder=1, **layout.SQUARE)
    for (label, dtype), group in rows.groupby(["series", "dtype"], sort=True):
        group, line = group.sort_values("seq_len"), properties[label]
        if len(dtypes) > 1:
            line = line | {"linestyle": DTYPES[dtype], "label": f"{line['label']} {dtype}"}
        marks.errorbar(axes, group, "seq_len", line)
        lengths, value, low, high = (group[name].to_numpy(float) for name in ("seq_len", "value", "low", "high"))
        # value / high <= value <= value / low is the same as low <= 1 <= high.
        axes.fill_between(lengths, value / high, value / low, color=line["color"], alpha=0.15, linewidth=0)
        ties = group[group["verdict"] == "tie"]
        axes.plot(ties["seq_len"], ties["value"], zorder=3, gid="tie", **_TIE)
    curves = [own for _, own in rows.groupby("dtype")]
    few = sum(own["series"].nunique() for own in curves) <= MOST_MARKED
    changes = [each for own in curves for each in _overtakings(own)] if few else []
    for i, each in enumerate(changes):
        at, colour = each.crossover, properties[each.label]["color"]
        axes.axvline(at.length, color=colour, linewidth=0.8, linestyle=":", gid="crossover")
        low, high = max(at.low, rows["seq_len"].min()), min(at.high, rows["seq_len"].max())
        axes.axvspan(low, high, color=colour, alpha=0.12, linewidth=0)
        place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        look = {"color": colour, "fontsize": layout.SMALLEST, "bbox": {**marks.BOX, "pad": 0.5}}
        axes.annotate(f"n* = {at.length:,.0f}", (at.length, 0), (3, 3 + 8 * i), **place, **look)
    return bool(changes)
