"""The tables and sentences of the page "Choosing an attention", from the committed records and two of their figures."""

import functools
import re

from analysis import advice, answer
from analysis.answer import Answer
from tools.pages import mechanism, readings, readme, zoo

MASKS = {"causal": True, "not_causal": False}
# Variants of exact softmax.
BASELINES = ("flash", "softmax")


@functools.cache
def found() -> tuple[Answer, ...]:
    """The answers of the records in results/laptop."""
    return tuple(answer.answers(readings.records("laptop")))


def _with(mask: str, dtype: str) -> list[Answer]:
    return [one for one in found() if (one.causal, one.dtype) == (MASKS[mask], dtype)]


def speeds(mask: str) -> str:
    """README's table for this mask (`causal`, `not_causal`), with a link to each mechanism's page."""

    def link(row: re.Match[str]) -> str:
        return f"| [{row[1]}]({mechanism.page(zoo.mechanisms_of_variants()[row[1]])})"

    return re.sub(
        r"^\| (\w+)(?= \|| \(control\))", link, readme.costs_table(_with(mask, "float32")), flags=re.MULTILINE
    )


def sentence(mask: str, dtype: str = "float32") -> str:
    """The advice for this mask and dtype."""
    return " ".join(advice.sentences(_with(mask, dtype)))


def memory() -> str:
    """Peak memory of the zoo's own mechanisms at the longest length, with one column for each panel of the figure."""
    return _by_panel("memory", "MiB")


def decoding() -> str:
    """Time per token and size of the state of each mechanism, at its longest length."""
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
