"""What the panels of all figures share: axes, bars, curves, marks of what is missing, words for captions."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, ParamSpec

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator, ScalarFormatter
from matplotlib.transforms import ScaledTranslation

from analysis.frame import JSON, of_several_codes
from analysis.plots.page import SMALLEST, Picture, in_a_column, rc, room, shown, title

STATUS = {"oom": "OOM", "nonfinite": "not finite"}
PASSES = {"forward": "forward", "backward": "backward", "forward_backward": "forward + backward"}

MOST_NAMED = 4  # in a sentence of a caption
Rest = ParamSpec("Rest")


def literal(
    draw: Callable[Concatenate[pd.DataFrame, Rest], Picture],
) -> Callable[Concatenate[pd.DataFrame, Rest], Picture]:
    """A decorator: a `$` in a text from records is a dollar; only texts of the figure itself hold formulas."""

    @functools.wraps(draw)
    def drawn(frame: pd.DataFrame, *arguments: Rest.args, **keywords: Rest.kwargs) -> Picture:
        texts = [name for name in frame.columns.drop("raw") if frame[name].map(_has_dollar).any()]
        escaped = {name: frame[name].map(_escaped_in_json if name in JSON else _escaped) for name in texts}
        return draw(frame.assign(**escaped), *arguments, **keywords)

    return drawn


def _has_dollar(value: Any) -> bool:
    return isinstance(value, str) and "$" in value


def _escaped(value: Any) -> Any:
    return value.replace("$", r"\$") if isinstance(value, str) else value


def _escaped_in_json(value: Any) -> Any:
    return value.replace("$", r"\\$") if isinstance(value, str) else value


def length_axis(axes: Axes, lengths: Iterable[int], label: str = "context length n (tokens)") -> None:
    """A base-2 logarithmic axis with one tick for each length that has room, in the papers' way of writing them."""
    ticks = sorted({int(length) for length in lengths})
    every = math.ceil(len(ticks) / room(axes, 0.27))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks[::-1][::every][::-1]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: length_name(round(value))))
    axes.set_xlim(ticks[0] / 2**0.4, ticks[-1] * 2**0.4)
    axes.set_xlabel(label)


def length_name(length: int) -> str:
    """`512`, `1k`, `32k`; a length that is no multiple of 1024 is written out."""
    return f"{length // 1024}k" if length % 1024 == 0 and length else str(length)


def log_axis(axis: Axis, label: str) -> None:
    """A logarithmic axis in plain numbers, with enough of them for a narrow range."""
    set_scale = axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale
    set_scale("log")
    axis.set_label_text(label)
    low, high = sorted(map(float, axis.get_view_interval()))
    # Labels below each other stand closer than those beside each other.
    all_of_them = range(1, 10) if axis is axis.axes.yaxis else (1, 2, 3, 4, 6, 8)
    subs = all_of_them if high / low < (4 if in_a_column() else 8) else (1, 2, 5) if high / low < 1000 else (1,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.0f}" if 1e4 <= value < 1e15 else f"{value:,.4g}")
    )


def value_axis(axis: Axis, label: str) -> None:
    """A logarithmic axis, unless all values are within a factor of three."""
    low, high = sorted(map(float, axis.get_view_interval()))
    if low > 0 and high / low < 3:
        axis.set_label_text(label)
        axis.set_major_locator(MaxNLocator(5))
        axis.set_major_formatter(ScalarFormatter(useOffset=False))
    else:
        log_axis(axis, label)


def curves(axes: Axes, of_seeds: pd.DataFrame, properties: dict[str, Any]) -> None:
    """A thin line for each column, a seed's values over the index, and a thick one, with marks, for their median."""
    line = {"color": properties["color"], "label": properties["label"]}
    with rc():
        if of_seeds.shape[1] > 1:
            axes.plot(of_seeds.index, of_seeds, linewidth=0.5, alpha=0.4, gid="seed", **line)
        step = max(1, len(of_seeds) // 6)
        # Marks that start apart, so that curves on top of each other are still told apart.
        start = zlib.crc32(properties["label"].encode()) % step
        axes.plot(of_seeds.index, of_seeds.median(axis=1), markevery=(start, step), gid="median", **properties)


def errorbar(axes: Axes, rows: pd.DataFrame, x: str, properties: dict[str, Any], scale: float = 1) -> None:
    """The values of one series over `x`, times `scale`, with bars from low to high where there are any."""
    rows = rows.sort_values(x)
    value, low, high = (rows[name].to_numpy(float) * scale for name in ("value", "low", "high"))
    with rc():
        axes.errorbar(
            rows[x].to_numpy(float),
            value,
            yerr=np.vstack([value - low, high - value]),
            capsize=2,
            **properties,
        )


def level(axes: Axes, row: Any, properties: dict[str, Any]) -> None:
    """A line at the height of one value, all along the panel, with a pale band from low to high."""
    with rc():
        axes.axhline(row.value, **properties, gid="level")
        axes.axhspan(row.low, row.high, color=properties["color"], alpha=0.2, linewidth=0, gid="level")


def gaps(
    axes: Axes,
    rows: pd.DataFrame,
    x: str,
    properties: dict[str, dict[str, Any]],
    lines: int = 0,
    beyond: dict[str, tuple[np.ndarray, str]] | None = None,
) -> None:
    """Mark above the panel, at its place along `x`, each cell that did not measure, in its series' colour.

    Each series has a line of its own; neighbours with the same outcome share one word. The title moves up
    by at least so many `lines`. `rows` has `series`, `status` and `x`. Series of which all is `beyond` the panel have
    the lines above, at these places with these words.
    """
    failed = rows[rows["status"] != "ok"].drop_duplicates(["series", x]).sort_values(x)
    with rc():
        for lane, (name, cells) in enumerate(failed.groupby("series")):
            outcome = cells["status"]
            for _, run in cells.groupby((outcome != outcome.shift()).cumsum()):
                status = run["status"].iloc[0]
                _above(axes, run[x].to_numpy(float), STATUS.get(status, status), properties[name], lane, "gap")
        lanes = failed["series"].nunique()
        for lane, (name, (at, words)) in enumerate((beyond or {}).items(), lanes):
            _above(axes, at, words, properties[name], lane, "beyond")
    lanes = max(lines, lanes + len(beyond or {}))
    title(axes, axes.get_title(), 6 + (9 * lanes + 3 if lanes else 0))


def _above(axes: Axes, at: np.ndarray, words: str, properties: dict[str, Any], lane: int, gid: str) -> None:
    # Offsets in points keep the lines apart whatever the height of the panel.
    lift = ScaledTranslation(0, (8 + 9 * lane) / 72, axes.figure.dpi_scale_trans)
    above = axes.get_xaxis_transform() + lift
    look = {"color": properties["color"], "transform": above, "gid": gid}
    bar = {"linewidth": 0.8, "marker": properties["marker"], "markersize": 3, "clip_on": False}
    bar["label"] = properties["label"] if gid == "gap" else ""
    axes.plot(at, np.ones(len(at)), linestyle=properties["linestyle"], **bar, **look)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    centre = float(np.sqrt(at[0] * at[-1]))
    axes.text(centre, 1, words, size=SMALLEST, ha="center", va="center", bbox=box, **look)


def machine(frame: pd.DataFrame) -> str:
    """Where the rows were measured: device, cores, threads, torch."""
    device = _values(frame, "device_name") or _values(frame, "device")
    threads = _values(frame, "threads")
    parts = [
        device,
        f"{_values(frame, 'cpu_count')} cores",
        f"{threads} thread{'' if threads == '1' else 's'}",
        f"torch {_values(frame, 'torch')}",
    ]
    return ", ".join(parts)


def setting(frame: pd.DataFrame) -> str:
    """What the rows have in common, in words: dtype, heads, batch, mask, inputs."""
    batch = "batch_size" if frame["batch_size"].nunique() <= frame["tokens"].nunique() else "tokens"
    heads, weights = _values(frame, "num_heads"), _values(frame, "weights")
    parts = [
        _values(frame, "dtype"),
        f"{heads} {'head' if heads == '1' else 'heads'} x {_values(frame, 'head_dim')}",
        f"{'batch size' if batch == 'batch_size' else 'tokens per batch:'} {_values(frame, batch)}",
        " and ".join("causal" if flag else "not causal" for flag in sorted(set(frame["causal"].dropna()))),
        f"{_values(frame, 'inputs')} inputs" + (f" ({weights} weights)" if weights else ""),
    ]
    return ", ".join(parts)


def conditions(frame: pd.DataFrame) -> str:
    """Machine and setting as a sentence for a caption, and the `caveats`."""
    return " ".join(filter(None, [f"{machine(frame)}; {setting(frame)}.", caveats(frame)]))


def caveats(frame: pd.DataFrame) -> str:
    """What the points of a figure may not have in common, in sentences: a quiet machine, code. Empty if they do."""
    return " ".join(filter(None, [disturbed(frame), code(frame)]))


def disturbed(frame: pd.DataFrame) -> str:
    """A sentence that names what was measured while the machine was not quiet; empty where nothing was."""
    rows = frame[frame["disturbed"]].drop_duplicates("cell_id").sort_values(["attention", "seq_len"])
    if rows.empty:
        return ""
    names = [f"{shown(one.attention)} at n = {length_name(one.seq_len)}" for one in rows.itertuples()]
    why = {reason.partition(":")[0] for text in rows["disturbance"] for reason in text.split("; ")}
    return f"Measured under disturbance ({', '.join(sorted(why))}): {_list(names, MOST_NAMED)}."


def code(frame: pd.DataFrame) -> str:
    """A sentence that names the mechanisms of which a line may join points of different code; empty without any."""
    names = [shown(label) for label in of_several_codes(frame)]
    return f"Points that different code may have measured: {_list(names, MOST_NAMED)}." if names else ""


def functions(rows: pd.DataFrame) -> str:
    """What must be said where approximations of different functions share a figure; empty where none do."""
    is_softmax = rows["function"] == "softmax"
    other = sorted(set(rows.loc[~is_softmax, "mechanism"]))
    approximate = sorted(set(rows.loc[is_softmax & ~rows["exact"], "mechanism"]))
    sentences = []
    if other and is_softmax.any():
        kind = "another function" if len(other) == 1 else "other functions"
        sentences.append(f"{_list(other)} compute{_s(other)} {kind} than softmax: costs compare, errors do not.")
    if approximate:
        sentences.append(f"{_list(approximate)} approximate{_s(approximate)} softmax attention.")
    return " ".join(sentences)


def _values(frame: pd.DataFrame, column: str) -> str:
    return ", ".join(str(value) for value in sorted(set(frame[column].dropna())))


def _list(names: list[str], most: int | None = None) -> str:
    if most is not None and len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _s(names: list[str]) -> str:
    return "s" if len(names) == 1 else ""
