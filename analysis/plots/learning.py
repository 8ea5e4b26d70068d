"""How mechanisms learn a task over the steps of training."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis.learned import learned, panels
from analysis.plots import looks, page, style
from analysis.plots.page import Picture

LOSS = ("validation_loss", "loss (nats)")
RIGHT = ("validation_example_accuracy", "examples wholly right (%)")
# No model names every token of a text.
RIGHT_TOKENS = ("validation_token_accuracy", "tokens right (%)")
SUDDEN = ("induction_heads", "selective_copying")
SIDE_BY_SIDE = 3
"""Tasks and lengths, above which two stand beside each other."""
_SEEDS = "Thick lines: medians over seeds; thin ones: each seed."
_EXPLANATION = f"On the validation split. {_SEEDS} Right: examples of which every answer is right."


@style.literal
def figure(frame: pd.DataFrame) -> Picture:
    """Two panels for every task and length: loss (nats, logarithmic) and whole examples right over steps.

    Of several learning rates each mechanism has the best (`analysis.learned`).

    Args:
        frame: from `analysis.frame.load`.

    Raises:
        MissingRecords: no cell of the benchmark ended ok.
    """
    data, notes = learned(frame)
    properties = looks.styles(data, data["series"])
    groups = panels(data[data["status"] == "ok"])
    drawn, axes = page.grid(2 * len(groups), 4 if len(groups) > SIDE_BY_SIDE else 2)
    for ((kind, seq_len), rows), *pair in zip(groups, axes[::2], axes[1::2], strict=True):
        right = RIGHT_TOKENS if (rows["inputs"] == "language_modelling").all() else RIGHT
        for panel, (metric, label) in zip(pair, (LOSS, right), strict=True):
            page.title(panel, f"{kind}, n = {seq_len:,}")
            for name, of_series in rows.groupby("series"):
                style.curves(panel, by_step(of_series, metric), properties[name])
            panel.set_xlabel("step")
            panel.set_ylabel(label)
        style.value_axis(pair[0].yaxis, LOSS[1])
        pair[1].set_ylim(-3, 103)
    page.legend(drawn, properties)
    page.caption(drawn, " ".join([_EXPLANATION, *notes, style.conditions(data)]))
    return drawn


@style.literal
def sudden(frame: pd.DataFrame) -> Picture:
    """Figure 5 of PolySketchFormer (ICML): right examples of copying and induction over the steps of training.

    A row for every task and length, a panel for every mechanism. A run that failed is named where it would be.

    Args:
        frame: from `analysis.frame.load`.

    Raises:
        MissingRecords: neither task was learned.
    """
    data, notes = learned(frame, SUDDEN)
    properties = looks.styles(data, data["series"])
    groups = panels(data)
    drawn, axes = page.panels(len(groups), len(properties), heights=[1.6] * len(groups), width=2.0)
    for panel, name in zip(axes[0], properties, strict=True):
        page.title(panel, page.shown(name))
    for row, ((kind, seq_len), rows) in zip(axes, groups, strict=True):
        for panel, (name, look) in zip(row, properties.items(), strict=True):
            _small(panel, rows[rows["series"] == name], look | {"marker": None})
        row[0].set_ylabel(f"{kind}\nn = {seq_len:,}\nright (%)", fontsize=7)
    for panel in axes[-1]:
        panel.set_xlabel("step")
    explanation = f"Examples of the validation split of which every answer is right. {_SEEDS}"
    page.caption(drawn, " ".join([explanation, *notes, style.conditions(data)]))
    return drawn


def by_step(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The curve of a metric: a row for each step at which it was evaluated, a column for each run."""
    values, steps = (rows[rows["metric"] == name].set_index("cell_id")["raw"] for name in (metric, "validation_step"))
    factor = 100 if "accuracy" in metric else 1
    return pd.DataFrame({cell: pd.Series(factor * raw, index=steps[cell]) for cell, raw in values.items()})


def _small(panel: Axes, rows: pd.DataFrame, look: dict[str, Any]) -> None:
    ok = rows[rows["status"] == "ok"]
    if len(ok):
        style.curves(panel, by_step(ok, "validation_example_accuracy"), look)
    cells = rows.drop_duplicates("cell_id")
    failed = cells[cells["status"] != "ok"]["status"].value_counts()
    words = [f"{count} of {len(cells)}: {style.STATUS.get(status, status)}" for status, count in failed.items()]
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    for line, word in enumerate(words or ["not run"] * ok.empty):
        at = (0.04, 0.86 - 0.12 * line)
        panel.annotate(word, at, xycoords="axes fraction", size=page.SMALLEST, bbox=box, gid="gap")
    panel.set_ylim(-3, 103)
