"""Faster than softmax and as good: speed of a training step and difference in loss over the context length."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis.controls import INTERVALS, notes
from analysis.equal_quality import APART, LONG_APART, lengths
from analysis.paired import MARGIN
from analysis.plots import captions, layout, marks, style
from analysis.plots.controls import NAMED, names_of_rows
from analysis.plots.layout import Picture
from analysis.selection import MissingRecords
from analysis.training import BENCHES, trained_cells

NEEDS_STEPS = "needs bench=compare_train_step or bench=train_step of a model that was trained"
ROW = 0.34
"""Height of a mechanism's row in inches."""
_EXPLANATION = (
    "Left: time of a whole training step of the fastest exact softmax over theirs (above 1: faster), with 95 % "
    "intervals, in the same rounds{}. Middle: test loss minus softmax's, paired by seed and unit of the test, "
    f"with {INTERVALS}; "
    "grey: within {} nats, as good as. Right: filled where faster and as good or "
    "better, hollow where not (a step that is not faster decides alone, as does a worse loss), ? where that is unknown "
    "(no records, undecided, or not diagnostic); under each name, the shortest such length."
)


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """The shortest length at which each is faster than softmax and as good: panels for each task with timed steps."""
    data, more = trained_cells(frame)
    found = lengths(frame, data)
    found = found[found.groupby("kind")["speed"].transform("count") > 0]
    if found.empty:
        raise MissingRecords(NEEDS_STEPS)
    kept = data["kind"].isin(found["kind"])
    data, more = trained_cells(frame, set(data.loc[kept, "inputs"]))
    data = data[data["kind"].isin(found["kind"])]
    properties = {name: line for name, line in style.of_series(data).items() if name in set(found["series"])}
    tasks = list(found.groupby("kind"))
    heights = [max(layout.PANEL[1], 0.7 + ROW * rows["series"].nunique()) for _, rows in tasks]
    drawn, axes = layout.panels(len(tasks), 3, share_y=False, heights=heights, least=NAMED)
    for (speed, loss, both), (kind, rows) in zip(axes, tasks, strict=True):
        for panel in (speed, loss, both):
            layout.title(panel, str(kind))
        speed.axhline(1, color="0.4", linewidth=0.8, zorder=1, **layout.SQUARE)
        loss.axhspan(-MARGIN, MARGIN, color="0.9", linewidth=0, gid="margin")
        loss.axhline(0, color="0.4", linewidth=0.8, zorder=1, **layout.SQUARE)
        for name, own in rows.groupby("series"):
            _line(speed, own, ("speed", "speed low", "speed high"), properties[name])
            _line(loss, own, ("difference (nats)", "low", "high"), properties[name])
        _answers(both, rows, [name for name in properties if name in set(rows["series"])], properties)
        for panel in (speed, loss, both):
            marks.length_axis(panel, rows["n"])
        marks.value_axis(speed.yaxis, "speed over softmax's best")
        loss.set_ylabel("loss minus softmax's (nats)")
    apart = "".join(f", or of cells {how}" for how in (APART, LONG_APART) if (found["timed"] == how).any())
    text = [*notes(data), _EXPLANATION.format(apart, MARGIN), *more, captions.conditions(data)]
    steps = frame[frame["bench"].isin(BENCHES)]
    if len(steps) and (where := captions.machine(steps)) != captions.machine(data):
        text.append(f"Steps were timed on {where}.")
    return layout.finish(drawn, properties, *text)


def _line(axes: Axes, rows: pd.DataFrame, columns: tuple[str, str, str], look: dict[str, Any]) -> None:
    rows = rows.dropna(subset=columns[0])
    if len(rows):
        ends = {name: rows[column] for name, column in zip(("value", "low", "high"), columns, strict=True)}
        marks.errorbar(axes, rows.assign(**ends), "n", look)


def _answers(axes: Axes, rows: pd.DataFrame, names: list[str], properties: dict[str, dict[str, Any]]) -> None:
    """Draw one row for each mechanism: whether it is faster and as good, at each length."""
    answers = rows.drop_duplicates("series").set_index("series")["equal from"]
    for at, name in enumerate(names):
        colour = properties[name]["color"]
        for row in rows[rows["series"] == name].to_dict("records"):
            look: dict[str, Any] = {"color": colour, "gid": "answer", "label": properties[name]["label"]}
            if pd.isna(row["is equal"]):
                axes.text(row["n"], at, "?", ha="center", va="center", fontsize=8, color="black", gid="unknown")
                continue
            fill = colour if row["is equal"] else "white"
            axes.plot([row["n"]], [at], marker="o", markersize=6, linestyle="none", markerfacecolor=fill, **look)
    names_of_rows(axes, [""] * len(names))
    words = [f"{layout.fitted(layout.shown(name), 1.3, layout.SMALLEST)}\n{answers[name]}" for name in names]
    axes.set_yticks(range(len(names)), words, fontsize=layout.SMALLEST)
