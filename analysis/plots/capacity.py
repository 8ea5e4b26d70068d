"""Recall without training: pairs recalled from a head's state over its bytes, and the bound for any state."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import intervals
from analysis.paired import UNDECIDED
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import MissingRecords
from analysis.tables.capacity import DOES_NOT, PREDICTS, answers, bits_needed, capacities, matched

LEAST = 0.5  # pairs at the bottom of the logarithmic axis: bars that reach 0 end there
_EXPLANATION = (
    "Upper left is better. Pairs: the most of which {share} are right, mean over draws, bars {bars}; ↑: at least as "
    "many as were tried. Black: no state of so few bytes holds more, log2 m! - 1 bits for m = {part} of the pairs (by "
    "the counting of Jelassi et al. 2024, section 2; Arora et al. 2024 have bits in proportion to the pairs). Dotted: "
    "a cache that keeps each pair."
)


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """Pairs that a state recalls without training, over its bytes; one panel for each kind of keys and head_dim."""
    data, notes = capacities(frame)
    properties = style.of_series(data)
    numbers, legend = marks.numbered(properties)
    none = sorted({layout.shown(name) for name in data.loc[data["value"] == 0, "series"]})
    drawn, axes = layout.grid(data.groupby(["keys", "head_dim"]).ngroups, columns=2)
    for panel, ((keys, head_dim), rows) in zip(axes, data.groupby(["keys", "head_dim"]), strict=True):
        layout.title(panel, f"{keys} keys, h = {head_dim}")
        points = _points(rows[rows["value"] > 0])
        marks.points(panel, points, "state", properties, capsize=2)
        _bounds(panel, rows, int(head_dim), float(rows["share"].iloc[0]))
        marks.log_axis(panel.xaxis, "state of a head (KiB)")
        marks.log_axis(panel.yaxis, "pairs recalled")
        reached = points["reached"].gt(0).map({True: " ↑", False: ""})
        marks.beside(panel, points, "state", points["series"].map(numbers) + reached)
    share = float(data["share"].iloc[0])
    said = _EXPLANATION.format(share=f"{share:.0%}", part=f"{2 * share - 1:.0%}", bars=intervals.bars(data))
    nothing = f"No pair at all: {', '.join(none)}." if none else ""
    return layout.finish(drawn, legend, said, nothing, _foretold(frame), *notes, captions.conditions(data))


def _foretold(frame: pd.DataFrame) -> str:
    """A sentence that counts in how many tasks, lengths and keys capacity predicts trained recall; else empty."""
    try:
        found = matched(frame)
    except MissingRecords:
        return ""
    answered = answers(found).values()
    words = [(word, sum(each == word for _, each in answered)) for word in (PREDICTS, UNDECIDED, DOES_NOT)]
    counts = ", ".join(f"{word} {count}" for word, count in words if count)
    known = [one.value for one, _ in answered if not np.isnan(one.value)]
    spread = f" (Spearman {min(known):.2f} to {max(known):.2f} over {mechanisms(found)} mechanisms)" if known else ""
    return f"Does it foretell trained recall, by task, length and keys: {counts}{spread}."


def mechanisms(found: pd.DataFrame) -> str:
    """Number of mechanisms per task, length and kind of keys of `analysis.tables.capacity.matched`: `6 to 8`."""
    counts = sorted(set(found.groupby(["task", "n", "keys"]).size()))
    return " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))


def _points(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the `state` in KiB and bars that end at `LEAST`."""
    states = {f"state{end}": rows[f"state_bytes{end}"] / 2**10 for end in ("", "_low", "_high")}
    return rows.assign(low=rows["low"].clip(lower=LEAST), **states)


def _bounds(panel: Axes, rows: pd.DataFrame, head_dim: int, share: float) -> None:
    """Draw the KiB that pairs need: the bound for any state, and a cache of keys and values in the cells' dtype."""
    pairs = np.unique(np.geomspace(1, 4 * max(2.0, rows["value"].max()), 200).round())
    needed = np.array([bits_needed(count, share) for count in pairs]) / 2**13
    known = needed >= 2**-10
    panel.plot(needed[known], pairs[known], color="black", linewidth=1, gid="bound", label="any state")
    size = {"float64": 8, "float32": 4}.get(str(rows["dtype"].iloc[0]), 2)
    kept = 2 * head_dim * size * pairs / 2**10
    panel.plot(kept, pairs, color="0.3", linestyle=":", linewidth=1, gid="cache", label="cache")
