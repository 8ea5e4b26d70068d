"""Capacity against trained recall: whether the capacity of an untrained state predicts what a model learns."""

import math
from typing import Any

import pandas as pd

from analysis.controls import notes
from analysis.plots import captions, layout, marks, style
from analysis.plots.capacity import LEAST, mechanisms
from analysis.plots.layout import Picture
from analysis.tables.capacity import USEFUL, answers, matched
from analysis.training import trained_cells

_PANEL = ["task", "n", "keys"]
_EXPLANATION = (
    "Associative recall. Across: pairs that a head's state gives back without training, means over draws with 95 % "
    "intervals (Student's t); none at all stands at the left edge. Up: right answers of trained models, medians over "
    "seeds, bars from the least to the greatest. ρ: Spearman's correlation over {} mechanisms with its 95 % interval; "
    "predicts: by a permutation test, corrected for the panels (Holm); does not: the interval lies below "
    f"{USEFUL}."
)


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """Right answers of trained models over the pairs of untrained states; one panel for each task, length and keys."""
    found = matched(frame)
    data, more = trained_cells(frame, ["associative_recall"])
    shown = data[data["series"].isin(found["series"])]
    numbers, legend = marks.numbered(properties := style.of_series(shown))
    answered = answers(found)
    drawn, axes = layout.grid(len(answered), columns=2)
    groups = found.groupby(_PANEL)
    for panel, ((task, n, keys), (one, word)) in zip(axes, answered.items(), strict=True):
        points = _points(groups.get_group((task, n, keys)))
        interval = "" if math.isnan(one.value) else f"ρ = {one.value:.2f} [{one.low:.2f}, {one.high:.2f}]: "
        settings = str(task).removeprefix("associative recall").removeprefix(", ")
        name = ", ".join(filter(None, [settings, f"n = {n:,}", f"{keys} keys"]))
        layout.titles(panel, name, f"{interval}{word}")
        marks.points(panel, points, "pairs", properties, capsize=2)
        marks.log_axis(panel.xaxis, "pairs recalled without training")
        panel.set_ylim(-3, 103)
        panel.set_ylabel("right answers (%)")
        marks.beside(panel, points, "pairs", points["series"].map(numbers))
    said = _EXPLANATION.format(mechanisms(found))
    return layout.finish(drawn, legend, *notes(data), said, *more, captions.conditions(shown))


def _points(found: pd.DataFrame) -> pd.DataFrame:
    names = {"value": "recall", "low": "recall_low", "high": "recall_high"}
    ends: dict[str, Any] = {name: found[name].clip(lower=LEAST) for name in ("pairs", "pairs_low", "pairs_high")}
    return found.assign(**{name: 100 * found[of] for name, of in names.items()}, **ends)
