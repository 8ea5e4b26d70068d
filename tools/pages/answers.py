"""The tables and sentences of "Choosing an attention", computed from committed tables and figures."""

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import attention_zoo
from tools.pages import mechanism, readings, zoo
from tools.pages.readings import number

TABLE = Path(__file__).parents[2] / "results" / "laptop" / "tables" / "crossover_speeds.csv"
ERRORS = "skeinformer_figure1_relative"
MASKS = {"causal": "True", "not_causal": "False"}
# What the speeds are over; the first is the name of a variant.
BASELINES = ("flash", "softmax")
PASSES = ("forward", "forward_backward")


class Speed(NamedTuple):
    """A line of the table of speeds, over the best exact softmax of the machine, in float32."""

    variant: str
    seq_len: int
    over: float
    low: float
    high: float
    verdict: str
    start: tuple[float, float] | None

    @property
    def text(self) -> str:
        """The ratio with its interval."""
        tie = " tie" if self.verdict == "tie" else ""
        return readings.together(f"{self.over:.1f}x ({self.low:.1f} to {self.high:.1f}){tie}")


def read(mask: str, name: str) -> list[Speed]:
    """The speeds with this mask (`causal`, `not_causal`) of a pass (`forward`, `forward_backward`)."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["causal"], row["pass"]) == (MASKS[mask], name)]
    return [_speed(row) for row in rows if row["dtype"] == "float32" and row["attention"] not in BASELINES]


def _speed(row: dict[str, str]) -> Speed:
    over, low, high = (float(row[key]) for key in ("over_best", "best_low", "best_high"))
    start = (float(row["from_low"]), float(row["from_high"])) if row["from_seq_len"] else None
    return Speed(row["attention"], int(row["seq_len"]), over, low, high, row["best_verdict"], start)


def length(mask: str) -> int:
    """The longest length at which every mechanism was timed in both passes."""
    found = [{(row.variant, row.seq_len) for row in read(mask, name)} for name in PASSES]
    names = {variant for variant, _ in found[1]}
    both = found[0] & found[1]
    return max(n for _, n in both if all((name, n) in both for name in names))


def starts(rows: list[Speed]) -> str:
    """From which length on these rows of one mechanism are faster, as exactly as its interval allows."""
    if rows[0].start is not None:
        low, high = rows[0].start
        return (
            f"{_round(low, math.floor)} to {_round(high, math.ceil)}" if low else f"at most {_round(high, math.ceil)}"
        )
    lengths = f"{min(row.seq_len for row in rows):,} to {max(row.seq_len for row in rows):,}"
    if all(row.verdict == "faster" for row in rows):
        return f"everywhere ({lengths} measured)"
    return f"nowhere ({lengths} measured)" if not any(row.verdict == "faster" for row in rows) else "unclear"


def _round(value: float, way: Callable[[float], int]) -> str:
    step = 10 ** (math.floor(math.log10(value)) - 1)
    return f"{way(value / step) * step:,}"


def speeds(mask: str) -> str:
    """Every mechanism with this mask: from which length on, forward and training speed at one length, the error."""
    at, wrong = length(mask), _errors()
    forward, both = (read(mask, name) for name in PASSES)
    rows = []
    for variant in dict.fromkeys(row.variant for row in forward):
        own = [row for row in forward if row.variant == variant]
        here = [
            next((row.text for row in part if (row.variant, row.seq_len) == (variant, at)), "–") for part in (own, both)
        ]
        name = zoo.mechanisms_of_variants()[variant]
        rows.append([f"[{variant}]({mechanism.page(name)})", starts(own), *here, wrong.get(name, _no_error(name))])
    header = f"mechanism | faster from n | forward at n = {at:,} | training at n = {at:,} | error"
    return "\n\n".join([zoo.table(header, rows), *_falling(forward, at)])


def _falling(rows: list[Speed], at: int) -> list[str]:
    """A sentence on those that gain less at longer sequences than at this one; a reader would expect more."""
    here = {row.variant: row for row in rows if row.seq_len == at}
    falling = [
        f"`{row.variant}` {here[row.variant].text} at {at:,}, {row.text} at {row.seq_len:,}"
        for row in rows
        if row.variant in here and row.seq_len > at and row.over < here[row.variant].over
    ]
    return [f"Not all gain more the longer the sequence is. Forward: {'; '.join(falling)}."] if falling else []


def _no_error(name: str) -> str:
    info = attention_zoo.info(name)
    if info.approximates != "softmax":
        return "another function than softmax"
    return "none: exact" if info.exact else "no record yet"


def _errors() -> dict[str, str]:
    """Of each mechanism the error at its largest size and longest length, on inputs of a trained model."""
    found = {}
    for point in readings.last(ERRORS):
        if not point.panel.startswith(readings.UNTRAINED) and point.series != "v_mean":
            other = readings.beside(point, ERRORS, "v_mean")
            beside = f" (`v_mean` {number(other.y)})" if other else ""
            panel = point.panel.split(", ")[-1]
            found[point.mechanism] = f"`{point.series}` {number(point.y)}{beside}, {panel}"
    return found


def errors() -> str:
    """The errors of softmax's approximations beside that of averaging the values, and which have no record."""
    rows = []
    for point in readings.last(ERRORS):
        if not point.panel.startswith(readings.UNTRAINED) and point.series != "v_mean":
            other = readings.beside(point, ERRORS, "v_mean")
            size = "–" if point.x is None else f"{point.x:,.0f}"
            rows.append([f"`{point.series}`", point.panel, size, point.text, other.text if other else "–"])
    table = zoo.table("variant | inputs | size d | relative error (interval) | error of `v_mean`", rows)
    measured = {point.mechanism for point in readings.points(ERRORS)}
    missing = [f"`{name}`" for name in approximations() if name not in measured]
    return table + (f"\n\nNo record of an error yet: {', '.join(missing)}." if missing else "")


def approximations() -> list[str]:
    """The mechanisms of this repository that approximate softmax and are not exact."""
    infos = [attention_zoo.info(name) for name in mechanism.own()]
    return [info.name for info in infos if info.approximates == "softmax" and not info.exact and not info.control]


def memory() -> str:
    """The peak memory of the zoo's own mechanisms at the longest length, a column for each panel of the figure."""
    return _by_panel("memory", "MiB")


def decoding() -> str:
    """Time per token and size of the state at the longest length of each mechanism."""
    return _by_panel("decode", "")


def _by_panel(figure: str, unit: str) -> str:
    found = [point for point in readings.last(figure) if point.mechanism in mechanism.own()]
    panels = [*dict.fromkeys((point.panel, point.y_axis) for point in found)]
    rows = []
    for series in dict.fromkeys(point.series for point in found):
        own = {point.panel: point for point in found if point.series == series}
        at = max(point.x or 0 for point in own.values())
        cells = [own[panel].text if panel in own else "–" for panel, _ in panels]
        rows.append([f"[{series}]({mechanism.page(next(iter(own.values())).mechanism)})", f"{at:,.0f}", *cells])
    titles = [f"{panel} ({unit})" if unit else axis for panel, axis in panels]
    table = zoo.table(" | ".join(["mechanism", "n", *titles]), rows)
    if any(point.series in BASELINES for point in found):
        return table
    return f"{table}\n\nNo exact softmax is in this figure yet, so it does not say what an approximation saves."


def fastest(mask: str, name: str, seq_len: str) -> str:
    """The mechanisms that are faster than the best exact softmax there, the fastest first, in one sentence."""
    rows = [row for row in read(mask, name) if row.seq_len == int(seq_len) and row.verdict == "faster"]
    ranked = sorted(rows, key=lambda row: -row.over)
    return "Faster there: " + ", ".join(f"`{row.variant}` {row.text}" for row in ranked) + "."
