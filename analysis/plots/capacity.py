"""Recall without training: the pairs that a head's state gives back over its bytes, beside what any state could."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import intervals
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.tables.capacity import bits_needed, capacities

LEAST = 0.5  # pairs at the foot of a panel: bars that reach zero end there
_EXPLANATION = (
    "Upper left is better. Pairs: the most of which {share} are right, mean over draws, bars {bars}; ↑: at least as "
    "many as were tried. Black: no state of so few bytes holds more, log2 m! - 1 bits for m = {part} of the pairs (by "
    "the counting of Jelassi et al. 2024, section 2; Arora et al. 2024 have bits in proportion to the pairs). Dotted: "
    "a cache that keeps each pair."
)


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """Pairs that a state gives back without training, over its bytes; a panel for each kind of keys and head_dim."""
    data, notes = capacities(frame)
    properties = style.of_series(data)
    numbers = {name: str(number) for number, name in enumerate(properties, 1)}
    none = sorted({layout.shown(name) for name in data.loc[data["value"] == 0, "series"]})
    drawn, axes = layout.grid(data.groupby(["keys", "head_dim"]).ngroups, columns=2)
    for panel, ((keys, head_dim), rows) in zip(axes, data.groupby(["keys", "head_dim"]), strict=True):
        layout.title(panel, f"{keys} keys, h = {head_dim}")
        _points(panel, rows[rows["value"] > 0], properties, numbers)
        _bounds(panel, rows, int(head_dim), float(rows["share"].iloc[0]))
        marks.log_axis(panel.xaxis, "state of a head (bytes)")
        marks.log_axis(panel.yaxis, "pairs recalled")
    names = {
        name: {**line, "label": f"{numbers[name]} {line['label']}", "linestyle": "none"}
        for name, line in properties.items()
    }
    share = float(data["share"].iloc[0])
    said = _EXPLANATION.format(share=f"{share:.0%}", part=f"{2 * share - 1:.0%}", bars=intervals.bars(data))
    nothing = f"No pair at all: {', '.join(none)}." if none else ""
    return layout.finish(drawn, names, said, nothing, *notes, captions.conditions(data))


def _points(panel: Axes, rows: pd.DataFrame, properties: dict[str, dict], numbers: dict[str, str]) -> None:
    for _, row in rows.iterrows():
        shown = row.copy()
        shown["low"] = max(LEAST, row["low"]) if np.isfinite(row["low"]) else row["low"]
        text = numbers[row["series"]] + (" ↑" if row["reached"] > 0 else "")
        marks.point(panel, shown, "state_bytes", properties[row["series"]], text, capsize=2)


def _bounds(panel: Axes, rows: pd.DataFrame, head_dim: int, share: float) -> None:
    """The fewest bytes of so many pairs: of any state, and of a cache of keys and values in the cells' dtype."""
    pairs = np.unique(np.geomspace(1, 4 * max(2.0, rows["value"].max()), 200).round())
    needed = np.array([bits_needed(count, share) / 8 for count in pairs])
    known = needed >= 1
    panel.plot(needed[known], pairs[known], color="black", linewidth=1, gid="bound", label="any state")
    size = {"float64": 8, "float32": 4}.get(str(rows["dtype"].iloc[0]), 2)
    panel.plot(2 * head_dim * size * pairs, pairs, color="0.3", linestyle=":", linewidth=1, gid="cache", label="cache")
