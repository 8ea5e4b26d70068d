"""How every figure looks: a colour and marker per mechanism, captions that name the machine, equal bytes."""

from __future__ import annotations

import functools
import io
import math
import textwrap
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator, ScalarFormatter
from matplotlib.transforms import ScaledTranslation

from analysis.frame import JSON
from bench.errors import bounded
from bench.records.store import write_atomically

_COLOURS = dict(
    zip(
        ("blue", "orange", "green", "red", "pink", "brown", "rose", "grey", "yellow", "sky"),
        sns.color_palette("colorblind").as_hex(),
        strict=True,
    ),
    black="#000000",
    # From Paul Tol's muted scheme.
    wine="#882255",
    olive="#999933",
)

# Colour and marker together are unique; mechanisms of one paper figure differ in both.
MECHANISMS = {
    "softmax": (_COLOURS["black"], "o"),
    "flash": (_COLOURS["blue"], "s"),
    "polynomial": (_COLOURS["orange"], "D"),
    "polynomial_square": (_COLOURS["brown"], "d"),
    "polysketch": (_COLOURS["red"], "^"),
    "linear": (_COLOURS["sky"], "v"),
    "performer": (_COLOURS["green"], "P"),
    "linformer": (_COLOURS["pink"], "X"),
    "informer": (_COLOURS["olive"], "<"),
    "skeinformer": (_COLOURS["wine"], "*"),
    "v_mean": (_COLOURS["grey"], "h"),
    "nystromformer": (_COLOURS["brown"], ">"),
    "bigbird": (_COLOURS["grey"], "p"),
    "reformer": (_COLOURS["sky"], "8"),
}
# For mechanisms that somebody adds: which one depends on the name alone.
_OTHERS = [(_COLOURS[colour], marker) for marker in "dH8p" for colour in ("pink", "brown", "sky", "grey")]

STATUS = {"oom": "OOM", "nonfinite": "not finite"}
PASSES = {"forward": "forward", "backward": "backward", "forward_backward": "forward + backward"}

_LINES = ("-", "--", ":", "-.")
PANEL = (3.4, 2.7)  # inches, without legend and caption
LEGEND_LINES, LEGEND_LINE_INCHES = 3, 0.17
CAPTION_POINTS = 7
RESOLUTION = 200  # dots per inch of the PNG
LONGEST_NAME = 80  # characters
MOST_NAMED = 4  # cells, in a caption
Rest = ParamSpec("Rest")

_RC = (
    sns.axes_style("ticks", {"axes.grid": True, "grid.color": ".9", "grid.linewidth": 0.6})
    | sns.plotting_context("paper", font_scale=0.85)
    | {
        "font.family": ["DejaVu Sans"],
        "axes.linewidth": 0.8,
        "axes.titlesize": 8.5,
        "lines.linewidth": 1.3,
        "xtick.major.width": 0.8,
        "ytick.major.width": 0.8,
        "svg.hashsalt": "attention-zoo",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
)


def literal(
    draw: Callable[Concatenate[pd.DataFrame, Rest], Figure],
) -> Callable[Concatenate[pd.DataFrame, Rest], Figure]:
    """A decorator: a `$` in a text from records is a dollar; only texts of the figure itself hold formulas."""

    @functools.wraps(draw)
    def drawn(frame: pd.DataFrame, *arguments: Rest.args, **keywords: Rest.kwargs) -> Figure:
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


def shortened(text: str) -> str:
    """A name as a panel or a legend has room for it."""
    return bounded(text, LONGEST_NAME)


def styles(frame: pd.DataFrame, names: pd.Series) -> dict[str, dict[str, Any]]:
    """Line2D properties for each series: colour and marker of its mechanism, dashes and fill of its variant.

    Args:
        frame: rows with `attention` and `mechanism`.
        names: the name of each row's series.
    """
    properties: dict[str, dict[str, Any]] = {}
    for mechanism, variants in names.groupby(frame["mechanism"]).unique().items():
        colour, marker = MECHANISMS.get(mechanism) or _OTHERS[zlib.crc32(mechanism.encode()) % len(_OTHERS)]
        for i, name in enumerate(sorted(variants)):
            properties[name] = {
                "color": colour,
                "marker": marker,
                "linestyle": _LINES[i % len(_LINES)],
                # Three fills, shifted after each round of dashes: twelve variants that differ.
                "markerfacecolor": (colour, "white", _tint(colour))[(i + i // len(_LINES)) % 3],
                "markersize": 8 if marker == "*" else 5,
            }
    return dict(sorted(properties.items()))


def _tint(colour: str) -> str:
    red, green, blue = (0.6 + 0.4 * part for part in to_rgb(colour))
    return to_hex((red, green, blue))


def panels(
    rows: int,
    columns: int,
    *,
    share_y: bool = True,
    heights: Sequence[float] | None = None,
    width: float = PANEL[0],
) -> tuple[Figure, np.ndarray]:
    """A figure of `rows` x `columns` panels (an array of that shape) with room for a legend and a caption.

    With `share_y` the panels of a row have one vertical axis; `heights` are those of the rows and `width` that of a
    column, in inches.
    """
    heights = [PANEL[1]] * rows if heights is None else heights
    with mpl.rc_context(_RC):
        figure = Figure(figsize=(max(width * columns, 4.6), sum(heights)), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, sharey="row" if share_y else False, height_ratios=heights)
    return figure, axes


def grid(count: int, columns: int = 3) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels, so many beside each other, each with axes of its own."""
    rows = math.ceil(count / columns)
    figure, axes = panels(rows, min(count, columns), share_y=False)
    for unused in axes.flat[count:]:
        unused.remove()
    return figure, list(axes.flat[:count])


def title(axes: Axes, text: str, points_above: float = 6) -> None:
    """The title of one panel."""
    with mpl.rc_context(_RC):
        axes.set_title(shortened(text), pad=points_above)


def length_axis(axes: Axes, lengths: Iterable[int], label: str = "context length n (tokens)") -> None:
    """A base-2 logarithmic axis with one tick for each length, in the papers' way of writing them."""
    ticks = sorted({int(length) for length in lengths})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
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
    subs = all_of_them if high / low < 8 else (1, 2, 5) if high / low < 1000 else (1,)
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
    line = {"color": properties["color"], "linestyle": properties["linestyle"]}
    with mpl.rc_context(_RC):
        if of_seeds.shape[1] > 1:
            axes.plot(of_seeds.index, of_seeds, linewidth=0.5, alpha=0.4, color=line["color"], gid="seed")
        step = max(1, len(of_seeds) // 6)
        # Marks that start apart, so that curves on top of each other are still told apart.
        start = zlib.crc32(str(properties).encode()) % step
        axes.plot(of_seeds.index, of_seeds.median(axis=1), markevery=(start, step), gid="median", **properties)


def errorbar(axes: Axes, rows: pd.DataFrame, x: str, properties: dict[str, Any], scale: float = 1) -> None:
    """The values of one series over `x`, times `scale`, with bars from low to high where there are any."""
    rows = rows.sort_values(x)
    value, low, high = (rows[name].to_numpy(float) * scale for name in ("value", "low", "high"))
    with mpl.rc_context(_RC):
        axes.errorbar(
            rows[x].to_numpy(float),
            value,
            yerr=np.vstack([value - low, high - value]),
            capsize=2,
            **properties,
        )


def gaps(axes: Axes, rows: pd.DataFrame, x: str, properties: dict[str, dict[str, Any]], room: int = 0) -> None:
    """Mark above the panel, at its place along `x`, each cell that did not measure, in its series' colour.

    Each series has a line of its own; neighbours with the same outcome share one word. The title moves up
    by at least `room` lines. `rows` has `series`, `status` and `x`.
    """
    failed = rows[rows["status"] != "ok"].drop_duplicates(["series", x]).sort_values(x)
    with mpl.rc_context(_RC):
        for lane, (name, cells) in enumerate(failed.groupby("series")):
            outcome = cells["status"]
            for _, run in cells.groupby((outcome != outcome.shift()).cumsum()):
                _gap(axes, run[x].to_numpy(float), run["status"].iloc[0], properties[name], lane)
    lanes = max(room, failed["series"].nunique())
    title(axes, axes.get_title(), 6 + (9 * lanes + 3 if lanes else 0))


def _gap(axes: Axes, at: np.ndarray, status: str, properties: dict[str, Any], lane: int) -> None:
    # Offsets in points keep the lines apart whatever the height of the panel.
    lift = ScaledTranslation(0, (8 + 9 * lane) / 72, axes.figure.dpi_scale_trans)
    above = axes.get_xaxis_transform() + lift
    look = {"color": properties["color"], "transform": above, "gid": "gap"}
    bar = {"linewidth": 0.8, "marker": properties["marker"], "markersize": 3, "clip_on": False}
    axes.plot(at, np.ones(len(at)), linestyle=properties["linestyle"], **bar, **look)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    centre = float(np.sqrt(at[0] * at[-1]))
    axes.text(centre, 1, STATUS.get(status, status), size=6, ha="center", va="center", bbox=box, **look)


def inner_legend(axes: Axes, properties: dict[str, dict[str, Any]]) -> None:
    """A legend for one row of panels, to the right of its last one."""
    with mpl.rc_context(_RC):
        axes.legend(handles=_handles(properties), loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)


def _handles(properties: dict[str, dict[str, Any]]) -> list[Line2D]:
    return [Line2D([], [], label=shortened(name), **style) for name, style in properties.items()]


def legend(figure: Figure, properties: dict[str, dict[str, Any]]) -> None:
    """One legend for the whole figure, above the panels; the figure grows by what it has beyond a few lines."""
    handles = _handles(properties)
    longest = max(len(str(handle.get_label())) for handle in handles)
    width, height = figure.get_size_inches()
    columns = max(1, min(len(handles), int(width / (0.6 + 0.058 * longest))))
    more = math.ceil(len(handles) / columns) - LEGEND_LINES
    figure.set_size_inches(width, height + max(0, more) * LEGEND_LINE_INCHES)
    with mpl.rc_context(_RC):
        figure.legend(
            handles=handles,
            loc="outside upper center",
            ncols=columns,
            frameon=False,
            handlelength=3,
        )


def caption(figure: Figure, text: str) -> None:
    """Text under the figure, wrapped to its width; the figure grows by what it needs."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(text, int(width * 72 / (CAPTION_POINTS * 0.56)))
    needed = (len(lines) + 1) * CAPTION_POINTS * 1.35 / 72
    figure.set_size_inches(width, height + needed)
    bottom = needed / (height + needed)
    figure.get_layout_engine().set(rect=(0, bottom, 1, 1 - bottom))  # type: ignore[union-attr, call-arg]
    figure.text(
        0.08 / width,
        bottom * 0.9,
        "\n".join(lines),
        fontsize=CAPTION_POINTS,
        va="top",
        linespacing=1.3,
        family="DejaVu Sans",
        gid="caption",
    )


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
    weights = _values(frame, "weights")
    parts = [
        _values(frame, "dtype"),
        f"{_values(frame, 'num_heads')} heads x {_values(frame, 'head_dim')}",
        f"{'batch size' if batch == 'batch_size' else 'tokens per batch:'} {_values(frame, batch)}",
        " and ".join("causal" if flag else "not causal" for flag in sorted(set(frame["causal"].dropna()))),
        f"{_values(frame, 'inputs')} inputs" + (f" ({weights} weights)" if weights else ""),
    ]
    return ", ".join(parts)


def conditions(frame: pd.DataFrame) -> str:
    """Machine and setting as a sentence for a caption, and which cells were disturbed."""
    return " ".join(filter(None, [f"{machine(frame)}; {setting(frame)}.", disturbed(frame)]))


def disturbed(frame: pd.DataFrame) -> str:
    """A sentence that names what was measured while the machine was not quiet; empty where nothing was."""
    rows = frame[frame["disturbed"]].drop_duplicates("cell_id").sort_values(["attention", "seq_len"])
    if rows.empty:
        return ""
    names = [f"{shortened(one.attention)} at n = {length_name(one.seq_len)}" for one in rows.itertuples()]
    more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    why = {reason.partition(":")[0] for text in rows["disturbance"] for reason in text.split("; ")}
    return f"Measured under disturbance ({', '.join(sorted(why))}): {_list([*names[:MOST_NAMED], *more])}."


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


def save(figure: Figure, out_dir: str | Path, name: str) -> list[Path]:
    """Write `name`.png and `name`.svg; the same figure gives the same bytes."""
    paths = []
    with mpl.rc_context(_RC):
        for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=suffix, dpi=RESOLUTION, metadata=metadata)
            path = Path(out_dir) / f"{name}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, buffer.getvalue())
            paths.append(path)
    return paths


def _values(frame: pd.DataFrame, column: str) -> str:
    return ", ".join(str(value) for value in sorted(set(frame[column].dropna())))


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _s(names: list[str]) -> str:
    return "s" if len(names) == 1 else ""
