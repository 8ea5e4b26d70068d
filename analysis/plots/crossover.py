"""From which length on is a mechanism faster than the fastest exact softmax on the machine, in any dtype?"""

import json
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis import intervals
from analysis.plots import captions, layout, marks, style
from analysis.plots.compare import DTYPES, dashes, without_dtype
from analysis.plots.layout import Picture
from analysis.selection import MissingRecords, exact_softmax, mask, newest, series, settle, unless_quiet
from bench.records.statistics import Crossover, crossover, ratio_interval

# Columns that identify a panel, and a curve over the length within it.
PANEL = ["pass", "causal"]
CURVE = ["series", "dtype", *PANEL]
FLASH = ("flash", "float32")

# A failed comparison is marked by one grey gap for all its mechanisms.
_ALL, _GREY = "all", {"label": "all", "color": "0.35", "marker": "", "linestyle": "-"}
# Inches: height of a panel of speeds, height of a row of crossovers, least width of a panel with names beside it.
HEIGHT, ROW, NAMED = 2.5, 0.23, 2.6
PALE: dict[str, Any] = {"alpha": 0.55, "linewidth": 0.9, "markersize": 3}
"""Style of the lines in other dtypes than the first, so that they do not hide those."""
_OF_RECORDS = ["device_name", "mechanism", "hyperparameters", "impl", "exact_softmax", "control"]
_CROSSED = ["from_seq_len", "from_low", "from_high"]
_EXPLANATION = (
    "Median over interleaved rounds of the time of the fastest exact softmax in them over theirs (above 1: faster), "
    "bars {}. Under each panel: the length from which a line stays above 1, with its interval{}."
)


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """Speed over the best exact softmax over context length, with crossovers.

    One column per mask (causal or not) and one row per pass, with two panels each: the speeds with their intervals over
    rounds, and the lengths from which the lines stay above 1, with their intervals. Dashes show the dtype.
    """
    timed, notes = _timed(frame)
    speeds = _over_best(timed)
    speeds = speeds[~speeds["exact_softmax"]]
    failed = frame[(frame["bench"] == "compare") & (frame["status"] != "ok")].assign(series=_ALL)
    properties = style.of_series(speeds)
    dtypes = [name for name in DTYPES if (speeds["dtype"] == name).any()]
    passes = [name for name in marks.PASSES if (speeds["pass"] == name).any()]
    directions = sorted(set(speeds["causal"]))
    most = int(speeds.groupby(PANEL)["series"].nunique().max())
    columns = layout.beside(len(directions), NAMED)
    lines = [(name, directions[i : i + columns]) for name in passes for i in range(0, len(directions), columns)]
    heights = (layout.height(HEIGHT, columns), 0.5 + ROW * most) * len(lines)
    drawn, axes = layout.panels(len(heights), columns, share_y=False, heights=heights)
    for above, below, (name, across) in zip(axes[::2], axes[1::2], lines, strict=True):
        for upper, lower, causal in zip(above, below, across, strict=True):
            upper.sharey(above[0])
            layout.title(upper, f"{mask(causal)}, {marks.PASSES[name]}")
            here = speeds[(speeds["pass"] == name) & (speeds["causal"] == causal)]
            gone = failed[(failed["pass"] == name) & (failed["causal"] == causal)]
            upper.axhline(1, color="0.4", linewidth=0.8, zorder=1, **layout.SQUARE)
            for (label, dtype), rows in here.groupby(["series", "dtype"], sort=True):
                look = {"label": f"{properties[label]['label']} {dtype}", "linestyle": DTYPES[dtype], "linewidth": 1.1}
                if dtype != dtypes[0]:
                    look |= PALE
                marks.errorbar(upper, rows, "seq_len", properties[label] | look)
            marks.gaps(upper, gone, "seq_len", {_ALL: _GREY})
            _draw_crossings(lower, here, properties)
            for panel, words in ((upper, ""), (lower, marks.LENGTH)):
                marks.length_axis(panel, [*speeds.loc[speeds["causal"] == causal, "seq_len"], *gone["seq_len"]], words)
        marks.log_axis(above[0].yaxis, "speed over the best exact softmax")
    order = f" ({' above '.join(dtypes)})" if len(dtypes) > 1 else ""
    text = [_EXPLANATION.format(intervals.bars(speeds), order), _winners(speeds)]
    text += [captions.conditions(timed), captions.functions(timed), *notes]
    return layout.finish(drawn, properties | dashes(dtypes), *text)


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """How many times as fast each mechanism is as the fastest exact softmax, and from which length on it is faster.

    Above 1 is faster, in the same rounds; in brackets the interval over rounds. *Faster from*: from this length on a
    mechanism stays faster, with its interval; or at all lengths that were measured, or from none of them on. Shown is
    the longest length; the CSV has all, and the speed over flash in float32 (`over_flash`).
    """
    return unless_quiet(speeds(frame).drop(columns=[*_OF_RECORDS]))


def speeds(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of `table`, also with columns of the records, and whether a row is of an exact softmax."""
    timed, _ = _timed(frame)
    best, keys = _over_best(timed), ["cell_id", "entry"]
    flash = timed[(timed["attention"] == FLASH[0]) & (timed["dtype"] == FLASH[1])].drop_duplicates("cell_id")
    ahead = {
        curve: (crossed.length, crossed.low, crossed.high)
        for curve, rows in best.groupby(CURVE)
        if (crossed := _crossed(rows)) is not None and crossed.faster == "b"
    }
    crossed_at = pd.DataFrame([*ahead.values()], pd.MultiIndex.from_tuples(ahead, names=CURVE), _CROSSED)
    numbers = ["value", "low", "high", "verdict"]
    over_flash, over_best = (
        speeds.set_index(keys)[numbers].set_axis([f"over_{name}", *(f"{name}_{of}" for of in numbers[1:])], axis=1)
        for name, speeds in (("flash", _over(timed, flash)), ("best", best))
    )
    order = ["causal", "pass", "series", "dtype", "seq_len"]
    rows = best.join(over_best, on=keys).join(over_flash, on=keys).join(crossed_at, on=CURVE).sort_values(order)
    rows = rows.reset_index(drop=True)
    columns = [*order, *over_flash, "best", *over_best, *_CROSSED, "interval", "disturbance", *_OF_RECORDS]
    table = rows.assign(interval=intervals.each(rows))[columns]
    return table.rename(columns={"series": "attention", "disturbance": "disturbed"})


def _timed(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Times of all mechanisms of all comparisons; `entry` is the label, `series` the label without the dtype."""
    data = frame[(frame["bench"] == "compare") & (frame["metric"] == "latency")]
    is_softmax = exact_softmax(data)
    both = is_softmax.groupby(data["cell_id"]).transform(lambda own: own.any() and not own.all())
    data = data.assign(exact_softmax=is_softmax)[both]
    if data.empty:
        raise MissingRecords("needs an ok record of bench=compare with an exact softmax and another mechanism")
    # Ratios are computed anew here, so the command's own baseline does not matter.
    settings = [json.loads(text) for text in data["settings"]]
    plain = [json.dumps({key: value for key, value in each.items() if key != "baseline"}) for each in settings]
    data, notes = settle(data.assign(settings=plain), facets=("dtype", "causal"))
    data = data.assign(entry=data["attention"], attention=without_dtype(data))
    return data.assign(series=series(data)), notes


def _over_best(timed: pd.DataFrame) -> pd.DataFrame:
    """Each mechanism's speed over the fastest exact softmax (by median) of its cell, which `best` names."""
    fastest = timed[timed["exact_softmax"]].sort_values("value").drop_duplicates("cell_id")
    return newest(_over(timed, fastest), [*CURVE, "seq_len"]).reset_index(drop=True)


def _over(timed: pd.DataFrame, baselines: pd.DataFrame) -> pd.DataFrame:
    """Ratios per round over the baseline of each cell; cells without a baseline are left out."""
    rows, baselines = [], baselines.set_index("cell_id")
    for _, row in timed[timed["cell_id"].isin(baselines.index)].iterrows():
        baseline = baselines.loc[row["cell_id"]]
        ratio = ratio_interval(baseline["raw"], row["raw"])
        numbers = {"value": ratio.median, "low": ratio.low, "high": ratio.high, "verdict": ratio.verdict}
        best = f"{baseline['series']} {baseline['dtype']}"
        rows.append({**row, **numbers, "raw": baseline["raw"] / row["raw"], "best": best})
    return pd.DataFrame(rows, columns=[*timed.columns, "best"])


def _crossed(rows: pd.DataFrame) -> Crossover | None:
    rows = rows.sort_values("seq_len")
    return crossover(list(rows["seq_len"]), list(rows["raw"]))


def _winners(speeds: pd.DataFrame) -> str:
    """A sentence: which exact softmax is usually the fastest, and where another one is."""
    cells = speeds.drop_duplicates([*PANEL, "seq_len", "best"])
    usual = cells["best"].mode()[0]
    others = []
    for (best, name, causal), rows in cells[cells["best"] != usual].groupby(["best", *PANEL]):
        lengths = ", ".join(marks.length_name(length) for length in sorted(rows["seq_len"]))
        others.append(f"{best} at {lengths} ({mask(causal)}, {marks.PASSES[name]})")
    return f"The fastest is {usual}{' but for ' * bool(others)}{'; '.join(others)}."


def _draw_crossings(axes: Axes, speeds: pd.DataFrame, properties: dict[str, dict[str, Any]]) -> None:
    """Draw one row per mechanism, the earliest first: the length from which it stays faster, or that there is none."""
    fates: dict[Any, tuple[float, Crossover | None, str]] = {}
    for curve, rows in speeds.groupby(["series", "dtype"]):
        crossed, is_ahead = _crossed(rows), rows.sort_values("seq_len")["value"].iloc[-1] > 1
        ties = " or a tie" if (rows["verdict"] == "tie").any() else ""
        throughout = 0.0 if is_ahead else float("inf")
        words = f"{'ahead' if is_ahead else 'behind'}{ties} throughout"
        fates[curve] = (crossed.length if crossed else throughout, crossed, words)
    names = sorted(
        {name for name, _ in fates}, key=lambda name: (min(fates[c][0] for c in fates if c[0] == name), name)
    )
    dtypes = [name for name in DTYPES if (speeds["dtype"] == name).any()]
    for (name, dtype), (length, crossed, words) in fates.items():
        at = names.index(name) + (dtypes.index(dtype) - (len(dtypes) - 1) / 2) / (len(dtypes) + 0.4)
        text = {"fontsize": layout.SMALLEST, "color": properties[name]["color"], "va": "center", "gid": "crossover"}
        if crossed is None:
            alike = [fates[curve][1:] for curve in fates if curve[0] == name]
            if len(alike) > 1 and len(set(alike)) == 1:  # one text for all dtypes
                if dtype != next(one for of, one in fates if of == name):
                    continue
                at = names.index(name)
            axes.text(0.02, at, words, transform=axes.get_yaxis_transform(), **text)
            continue
        low, high = max(crossed.low, 1), min(crossed.high, 2 * speeds["seq_len"].max())
        own = properties[name] | {"label": f"{properties[name]['label']} {dtype}"}
        bar = own | {"marker": None, "linewidth": 0.9, "linestyle": DTYPES[dtype], **layout.SQUARE}
        axes.plot([low, high], [at, at], gid="crossover interval", **bar)
        axes.plot([length], [at], gid="crossover", **own | {"markersize": 4, "linestyle": "none"})
        words = f"{'until ' if crossed.faster == 'a' else ''}{length:,.0f}"
        axes.annotate(words, (length, at), (4, 0), textcoords="offset points", bbox={**marks.BOX, "pad": 0}, **text)
    axes.set_yticks(range(len(names)), [layout.shown(name) for name in names], fontsize=layout.SMALLEST)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
