"""Chapter 5 of Reizin's thesis (Fast Algorithms for Attention Mechanism, 2024): the loss of sequence reversal."""

from __future__ import annotations

from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from analysis.frame import MissingRecords
from analysis.learned import PANEL, learned
from analysis.plots import looks, page, style
from analysis.plots.page import Picture

GROUPS = {
    ("5.1", "5.2"): ("single powers", ("polynomial_p2", "polynomial_p4", "polynomial_p8")),
    ("5.3", "5.4"): ("squares of polynomials", tuple(f"polynomial_square_d{d}" for d in range(1, 7))),
    ("5.5", "5.6"): ("learned polynomials, squared", tuple(f"polynomial_square_learned_d{d}" for d in range(1, 7))),
    ("5.7", "5.8"): (
        "the best of each",
        ("softmax", "linear", "polynomial_p8", "polynomial_square_d5", "polynomial_square_learned_d3"),
    ),
}
FIRST = 1000
"""Steps of the left panels, of the thesis' 10,000."""
EVERY = 10
"""Steps that a point of the curves is the mean of, as in the thesis."""
_EXPLANATION = (
    f"Mean training loss of {EVERY} steps, each on fresh sequences: from the start on a linear axis, the rest on a "
    "logarithmic one. Thick lines: medians over seeds; thin ones: each seed (the thesis has one)."
)


@style.literal
def figure(frame: pd.DataFrame) -> Picture:
    """Figures 5.1 to 5.8, those of them whose mechanisms were trained: a row for each two, with a legend of its own.

    Of several lengths it shows the one with the most runs. The table `thesis_losses` has the thesis' final losses.

    Args:
        frame: from `analysis.frame.load`.

    Raises:
        MissingRecords: none of the mechanisms learned reversal.
    """
    data, notes = learned(frame, ["reversal"])
    named = [name for _, names in GROUPS.values() for name in names]
    data = data[data["attention"].isin(named) & (data["metric"] == "train_loss")]
    if data.empty:
        raise MissingRecords("needs an ok record of bench=train with task=reversal and a mechanism of the thesis")
    kind, seq_len = data.groupby(PANEL).size().idxmax()
    others = data[PANEL].drop_duplicates().shape[0] - 1
    data = data[(data["kind"] == kind) & (data["seq_len"] == seq_len)]
    groups = {titles: group for titles, group in GROUPS.items() if data["attention"].isin(group[1]).any()}
    drawn, axes = page.panels(len(groups), 2, share_y=False, width=4.2)
    for pair, (numbers, (words, names)) in zip(axes, groups.items(), strict=True):
        rows = data[data["attention"].isin(names)]
        properties = _looks(rows, names)
        for panel, number in zip(pair, numbers, strict=True):
            page.title(panel, f"Figure {number}: {words}")
            panel.set_xlabel("step")
        _draw(pair, rows, properties)
        page.inner_legend(pair, properties)
    left_out = [f"Other lengths and settings are left out ({others})."] if others else []
    text = [f"Reversal of {seq_len} tokens (the thesis: 50). {_EXPLANATION}", *notes, *left_out, style.conditions(data)]
    page.caption(drawn, " ".join(text))
    return drawn


def _draw(pair: tuple[Axes, Axes], rows: pd.DataFrame, properties: dict[str, dict[str, Any]]) -> None:
    """The start in the first panel, the rest in the second."""
    for name, of_series in rows.groupby("series"):
        curves = pd.DataFrame({cell: _points(raw) for cell, raw in of_series.set_index("cell_id")["raw"].items()})
        first = min(FIRST, curves.index[-1] // 2)
        for panel, part in zip(pair, (curves[curves.index <= first], curves[curves.index > first]), strict=True):
            style.curves(panel, part, properties[name])
    pair[0].set_ylabel("loss (nats)")
    style.log_axis(pair[1].yaxis, "loss (nats)")


def _points(losses: Any) -> pd.Series:
    """The mean of every `EVERY` losses, by the step of the last of them."""
    steps = pd.Series(losses, index=range(1, len(losses) + 1))
    ends = (steps.index + EVERY - 1) // EVERY * EVERY
    return steps.groupby(ends).mean()


def _looks(rows: pd.DataFrame, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Of one mechanism's degrees, shades from light to dark; of several mechanisms, each one's own look."""
    properties = looks.styles(rows, rows["series"])
    if rows["mechanism"].nunique() == 1 and len(properties) > 1:
        order = sorted(properties, key=lambda name: names.index(name.split()[0]))
        shades = sns.color_palette("flare", len(order)).as_hex()
        properties = {name: looks.look(name, shade, properties[name]["marker"], variant)
                      for variant, (name, shade) in enumerate(zip(order, shades, strict=True))}  # fmt: skip
    return properties
