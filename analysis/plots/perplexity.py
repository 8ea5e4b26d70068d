"""Language models: test perplexity over the context length, and over the position within it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd

from analysis.learned import learned, over_seeds, panels
from analysis.plots import looks, page, style
from analysis.plots.page import Picture

TASK = "language_modelling"
BASELINES: dict[str, dict[str, Any]] = {
    "unigram": {"color": "0.45", "linestyle": "--", "linewidth": 1},
    "bigram": {"color": "0.45", "linestyle": ":", "linewidth": 1},
}
BINS = 24
"""Of positions, each as many times as long as the one before."""


@style.literal
def figure(frame: pd.DataFrame) -> Picture:
    """Figure 2 of PolySketchFormer (ICML): test perplexity over context length, a panel for each text.

    The table `polysketchformer_tables2_3` has the paper's numbers beside ours.

    Args:
        frame: from `analysis.frame.load`.

    Raises:
        MissingRecords: no language model was trained.
    """
    data, notes = learned(frame, [TASK])
    values = over_seeds(data, "perplexity")
    properties = looks.styles(data, data["series"])
    drawn, axes = page.grid(data["kind"].nunique())
    shown: dict[str, dict[str, Any]] = {}
    for panel, (kind, rows) in zip(axes, data.groupby("kind"), strict=True):
        page.title(panel, kind)
        for name, of_series in values[values["kind"] == kind].groupby("series"):
            style.errorbar(panel, of_series, "seq_len", properties[name])
        for name, look in BASELINES.items():
            losses = rows[rows["metric"] == f"{name}_loss"].groupby("seq_len")["value"].median()
            if len(losses):
                panel.plot(losses.index, _perplexity(losses), gid=name, label=name, marker="_", **look)
                shown[name] = look
        style.gaps(panel, rows, "seq_len", properties)
        style.length_axis(panel, rows["seq_len"])
        style.value_axis(panel.yaxis, "test perplexity")
    page.legend(drawn, properties | shown)
    explanation = "Perplexity of a token on the test split: medians over seeds, bars from the least to the greatest."
    baselines = ["Grey: n-grams with Kneser-Ney discounts, of the same training and test text."] if shown else []
    page.caption(drawn, " ".join([explanation, *baselines, _trained_on(data), *notes, style.conditions(data)]))
    return drawn


@style.literal
def by_position(frame: pd.DataFrame) -> Picture:
    """Test perplexity over the position within the context, a panel for each text and context length.

    Args:
        frame: from `analysis.frame.load`.

    Raises:
        MissingRecords: no language model was trained.
    """
    data, notes = learned(frame, [TASK])
    rows = data[data["metric"] == "loss_by_position"]
    properties = looks.styles(data, data["series"])
    groups = panels(rows)
    drawn, axes = page.grid(len(groups))
    for panel, ((kind, seq_len), of_panel) in zip(axes, groups, strict=True):
        page.title(panel, f"{kind}, n = {seq_len:,}")
        for name, of_series in of_panel.groupby("series"):
            binned = {cell: _binned(raw) for cell, raw in of_series.set_index("cell_id")["raw"].items()}
            style.curves(panel, _perplexity(pd.DataFrame(binned)), properties[name])
        style.log_axis(panel.xaxis, "position (tokens before it, and itself)")
        style.value_axis(panel.yaxis, "test perplexity")
    page.legend(drawn, properties)
    explanation = (
        "Perplexity on the test split of the tokens at a position, over bins of positions that grow with it. Thick "
        "lines: medians over seeds; thin ones: each seed."
    )
    page.caption(drawn, " ".join([explanation, _trained_on(data), *notes, style.conditions(data)]))
    return drawn


def _perplexity(losses: Any) -> Any:
    """As the records have it: no float holds that of more."""
    return np.exp(np.minimum(losses, 700.0))


def _binned(losses: np.ndarray) -> pd.Series:
    """The mean over bins of positions, by the (geometric) middle of the bin."""
    edges = np.unique(np.geomspace(1, len(losses) + 1, BINS + 1).round().astype(int))
    parts = np.split(losses, edges[1:-1] - 1)
    middles = np.sqrt(edges[:-1] * (edges[1:] - 1.0))
    return pd.Series([part.mean() for part in parts], index=middles)


def _trained_on(data: pd.DataFrame) -> str:
    """What a token is, and how many were read, in words."""
    tokenizers = " or ".join(sorted({str(json.loads(text).get("tokenizer")) for text in data["task"]}))
    steps = data[data["metric"] == "train_loss"]
    tokens = steps["raw"].map(len) * steps["tokens"]
    low, high = tokens.min() / 1e6, tokens.max() / 1e6
    count = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    return f"Tokens: {tokenizers}; trained on {count} million."
