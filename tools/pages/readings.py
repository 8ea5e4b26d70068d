"""Numbers of the committed figures for a mechanism's page, read from the CSV beside each picture."""

import csv
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from analysis.controls import NO_ATTENTION
from analysis.frame import load
from tools.pages import zoo

RESULTS = Path(__file__).parents[2] / "results"
# Figures whose last point of each line is shown, each with the mechanism to compare with.
SHOWN = {"crossover": None, "skeinformer_figure1_relative": "v_mean", "memory": "flash", "decode": "flash"}
# Exact softmax in the tables of what models learned.
SOFTMAX = "flash"
# Panels of an untrained model are left out: its attention weights are nearly equal, so any average fits.
UNTRAINED = "initialised"


@functools.cache
def records(folder: str) -> pd.DataFrame:
    """The frame of a folder in `results/`, read once: pages ask for it several times."""
    return load(RESULTS / folder)


class Point(NamedTuple):
    """A point of a figure; `x` is None for a horizontal line, `low` and `high` are None without an interval."""

    folder: str
    panel: str
    series: str
    x: float | None
    y: float
    low: float | None
    high: float | None
    x_axis: str
    y_axis: str

    @property
    def mechanism(self) -> str:
        """The mechanism of the variant that names the line; empty if it is not named after a variant."""
        return zoo.mechanisms_of_variants().get(self.series.split()[0], "")

    @property
    def text(self) -> str:
        """The value with its interval, with three digits each."""
        interval = f" ({number(self.low)} to {number(self.high)})" if self.low is not None else ""
        return together(number(self.y) + interval)


def together(text: str) -> str:
    """The text with no-break spaces, so that a narrow column does not separate a number from its interval."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def number(value: float | None) -> str:
    """A number with three digits and separated thousands; empty for None."""
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def points(figure: str) -> list[Point]:
    """All medians and means that a figure draws, in every folder of results, without single seeds and crossovers."""
    return [point for path in sorted(RESULTS.glob(f"*/figures/{figure}.csv")) for point in _read(path)]


def _read(path: Path) -> Iterator[Point]:
    with path.open(newline="", encoding="utf-8") as file:
        everything = [*csv.DictReader(file)]
    rows = [row for row in everything if row["y"] and not row["line"] and not row["status"]]
    # Panels may share an axis, whose label then is in one panel only.
    named = {row["panel"]: row["y_axis"] for row in rows if row["y_axis"]}
    y_axis, x_axis = (next((row[axis] for row in everything if row[axis]), "") for axis in ("y_axis", "x_axis"))
    for row in rows:
        x, y, low, high = (float(row[key]) if row[key] else None for key in ("x", "y", "y_low", "y_high"))
        assert y is not None
        axis = named.get(row["panel"], y_axis)
        yield Point(path.parts[-3], row["panel"], row["series"], x, y, low, high, row["x_axis"] or x_axis, axis)


def last(figure: str) -> list[Point]:
    """The rightmost point of each line of a figure."""
    ends: dict[tuple[str, str, str], Point] = {}
    for point in points(figure):
        before = ends.get(point[:3])
        if before is None or (point.x or 0) > (before.x or 0):
            ends[point[:3]] = point
    return [*ends.values()]


def beside(point: Point, figure: str, baseline: str) -> Point | None:
    """The baseline's point in the same panel at the same x (a horizontal line matches any x); None without one."""
    for other in points(figure):
        if (other.folder, other.panel, other.series) == (*point[:2], baseline) and other.x in (None, point.x):
            return other
    return None


def section(name: str) -> str:
    """A Markdown table of the committed numbers of a mechanism and its variants, or a sentence that there are none."""
    rows, learned = [row for figure, other in SHOWN.items() for row in _rows(name, figure, other)], [*_learned(name)]
    if not rows and not learned:
        return "No committed figure shows it yet: nothing is claimed about its speed, memory or error here."
    header = "what | variant | at | value (interval) | beside"
    return f"{zoo.table(header, rows + learned)}\n\n{REMARK}{REMARK_ON_LOSSES if learned else ''}"


REMARK = (
    "The last point of each line of the committed figures, in float32. A link leads to the figure, which names its "
    "machine, and to its command. `n` is the length, `d` the size of the approximation, a MiB 1,048,576 bytes."
)
REMARK_ON_LOSSES = (
    " Losses are of small models that were trained with the mechanism, beside that of the best control, which uses "
    "little of the context."
)
_SYMBOLS = {"context length n (tokens)": "n", "number of features d": "d"}


def _rows(name: str, figure: str, baseline: str | None) -> Iterator[list[str]]:
    for point in last(figure):
        if point.mechanism != name or point.panel.startswith(UNTRAINED) or point.series.endswith(" bfloat16"):
            continue
        other = beside(point, figure, baseline) if baseline and point.series != baseline else None
        place = "" if point.x is None else together(f"{_SYMBOLS.get(point.x_axis, point.x_axis)} = {point.x:,.0f}")
        # The titles of the panels `time` and `state` (figure decode) only repeat the labels of their axes.
        panel = "" if point.y_axis.startswith(point.panel) else f", {point.panel}"
        link = f"[{point.y_axis}](gallery.md#{figure}){panel}"
        others = f"`{other.series}` {number(other.y)}" if other else ""
        yield [link, f"`{point.series.removesuffix(' float32')}`", place, point.text, others]


def _learned(name: str) -> Iterator[list[str]]:
    """A row for each variant and length of the language models: its loss minus softmax's, beside the best control's.

    The best control is the one that the table of paired differences compares with, apart from no attention.
    """
    for path in sorted(RESULTS.glob("*/tables/paired.csv")):
        table = pd.read_csv(path)
        for (task, n), own in table[table["task"].str.startswith("language modelling")].groupby(["task", "n"]):
            minus = own[own["against"] == SOFTMAX].set_index("attention")
            control = next(one for one in own["against"] if one not in (SOFTMAX, NO_ATTENTION))
            for series, one in minus.iterrows():
                if zoo.mechanisms_of_variants().get(str(series).split()[0]) != name:
                    continue
                link = f"[loss minus softmax's (nats)](quality.md#language-modelling), {task}"
                text = together(f"{one['difference (nats)']:+.3f} ({one['low']:+.3f} to {one['high']:+.3f})")
                other = "" if series == control else f"`{control}` {minus['difference (nats)'][control]:+.3f}"
                yield [link, f"`{series}`", together(f"n = {n:,}"), f"{text}, {one['verdict']}", other]
