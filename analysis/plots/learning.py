"""How mechanisms learn a task over the steps of training."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis.frame import MissingRecords
from analysis.learned import PANEL, learned
from analysis.plots import style

PANELS = (("validation_loss", "loss (nats)"), ("validation_example_accuracy", "examples wholly right (%)"))
SUDDEN = ("induction_heads", "selective_copying")
SIDE_BY_SIDE = 3
"""Tasks and lengths, above which two stand beside each other."""
_SEEDS = "Thick lines: medians over seeds; thin ones: each seed."
_EXPLANATION = f"On the validation split. {_SEEDS} Right: examples of which every answer is right."


@style.literal
def figure(frame: pd.DataFrame) -> Figure:
    """Two panels for every task and length: loss (nats, logarithmic) and whole examples right over steps.

    Of several learning rates each mechanism has the best (`analysis.learned`).

    Args:
        frame: from `analysis.frame.load`.

    Raises:
        MissingRecords: no cell of the benchmark ended ok.
    """
    data, notes = learned(frame)
    properties = style.styles(data, data["series"])
    groups = list(data[data["status"] == "ok"].groupby(PANEL))
    drawn, axes = style.grid(len(PANELS) * len(groups), len(PANELS) * (1 + (len(groups) > SIDE_BY_SIDE)))
    for number, ((kind, seq_len), rows) in enumerate(groups):
        pair = axes[len(PANELS) * number :][: len(PANELS)]
        for panel, (metric, label) in zip(pair, PANELS, strict=True):
            style.title(panel, f"{kind}, n = {seq_len:,}")
            for name, of_series in rows.groupby("series"):
                style.curves(panel, by_step(of_series, metric), properties[name])
            panel.set_xlabel("step")
            panel.set_ylabel(label)
        style.value_axis(pair[0].yaxis, PANELS[0][1])
        pair[1].set_ylim(-3, 103)
    style.legend(drawn, properties)
    style.caption(drawn, " ".join([_EXPLANATION, *notes, style.conditions(data)]))
    return drawn


@style.literal
def sudden(frame: pd.DataFrame) -> Figure:
    """Figure 5 of PolySketchFormer (ICML): right examples of copying and induction over the steps of training.

    A row for every task and length, a panel for every mechanism. A run that failed is named where it would be.

    Args:
        frame: from `analysis.frame.load`.

    Raises:
        MissingRecords: neither task was learned.
    """
    data, notes = learned(frame, SUDDEN)
    properties = style.styles(data, data["series"])
    groups = list(data.groupby(PANEL))
    drawn, axes = style.panels(len(groups), len(properties), heights=[1.6] * len(groups), width=1.8)
    for row, ((kind, seq_len), rows) in zip(axes, groups, strict=True):
        for panel, (name, look) in zip(row, properties.items(), strict=True):
            _small(panel, rows[rows["series"] == name], look)
            style.title(panel, name if row is axes[0] else "")
        row[0].set_ylabel(f"{kind}\nn = {seq_len:,}\nright (%)", fontsize=7)
    for panel in axes[-1]:
        panel.set_xlabel("step")
    explanation = f"Examples of the validation split of which every answer is right. {_SEEDS}"
    style.caption(drawn, " ".join([explanation, *notes, style.conditions(data)]))
    return drawn


def by_step(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The curve of a metric: a row for each step at which it was evaluated, a column for each seed."""
    values, steps = (rows[rows["metric"] == name].set_index("seed")["raw"] for name in (metric, "validation_step"))
    factor = 100 if "accuracy" in metric else 1
    curves = {seed: pd.Series(factor * values[seed], index=steps[seed]) for seed in values.index}
    if not curves:
        raise MissingRecords(f"needs an ok record of bench=train with {metric}")
    return pd.DataFrame(curves)


def _small(panel: style.Axes, rows: pd.DataFrame, look: dict[str, object]) -> None:
    ok = rows[rows["status"] == "ok"]
    if len(ok):
        style.curves(panel, by_step(ok, "validation_example_accuracy"), look)
    cells = rows.drop_duplicates("cell_id")
    failed = cells[cells["status"] != "ok"]["status"].value_counts()
    words = [f"{count} of {len(cells)}: {style.STATUS.get(status, status)}" for status, count in failed.items()]
    panel.text(0.5, 0.5, "\n".join(words or ([] if len(ok) else ["not run"])), size=6, ha="center", gid="gap",
               transform=panel.transAxes)  # fmt: skip
    panel.set_ylim(-3, 103)
