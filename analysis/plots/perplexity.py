"""Language models: test perplexity over the context length, and over the position within it."""

import json
from typing import Any

import numpy as np
import pandas as pd

from analysis import controls
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.training import over_seeds, panels, perplexity, trained_cells, within

TASK = "language_modelling"
BASELINES: dict[str, dict[str, Any]] = {
    "unigram": {"color": "0.45", "linestyle": "--", "linewidth": 1},
    "bigram": {"color": "0.45", "linestyle": ":", "linewidth": 1},
}
BINS = 24
"""Number of bins of positions, whose lengths grow geometrically."""
_EXPLANATION = "Perplexity of a token on the test split: medians over seeds, bars from the least to the greatest."
_BY_POSITION = (
    "Perplexity on the test split of the tokens at a position, over bins of positions that grow with it. Thick "
    "lines: medians over seeds; thin ones: each seed."
)


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """Test perplexity over context length (PolySketchFormer, Figure 2): one panel for each text.

    The table `polysketchformer_tables2_3` has the paper's numbers beside ours.
    """
    data, notes = trained_cells(frame, [TASK])
    values = over_seeds(data, "perplexity")
    properties = style.of_series(data)
    drawn, axes = layout.grid(data["kind"].nunique())
    baselines: dict[str, dict[str, Any]] = {}
    above = []
    for panel, (kind, rows) in zip(axes, data.groupby("kind"), strict=True):
        layout.title(panel, kind)
        marks.over_lengths(panel, values[values["kind"] == kind], rows, properties)
        marks.value_axis(panel.yaxis, "test perplexity")
        # A baseline that is far from every model would leave no room to tell these apart.
        highest = 2 * panel.get_ylim()[1]
        for name, line in BASELINES.items():
            losses = rows[rows["metric"] == f"{name}_loss"].groupby("seq_len")["value"].median()
            if len(losses):
                panel.plot(losses.index, perplexity(losses), gid=name, label=name, marker="_", markersize=6, **line)
                baselines[name] = line
                if (least := perplexity(losses.min())) > highest:
                    above.append(f"{name} of {kind}, {least:.3g}")
        panel.set_ylim(top=min(highest, panel.get_ylim()[1]))
    grey = "Grey: n-grams with Kneser-Ney discounts, of the same training and test text." if baselines else ""
    beyond = f"Above the axes: {'; '.join(above)}." if above else ""
    text = [*controls.notes(data), _EXPLANATION, grey, beyond, _trained_on(data), *notes, captions.conditions(data)]
    return layout.finish(drawn, properties | baselines, *text)


@layout.styled()
def by_position(frame: pd.DataFrame) -> Picture:
    """Test perplexity over the position in the context: one panel for each text and context length."""
    data, notes = trained_cells(frame, [TASK])
    groups = panels(data[data["metric"] == "loss_by_position"])
    data = within(data, [key for key, _ in groups])
    properties = style.of_series(data)
    drawn, axes = layout.grid(len(groups))
    for panel, ((kind, seq_len), of_panel) in zip(axes, groups, strict=True):
        layout.title(panel, f"{kind}, n = {seq_len:,}")
        for name, of_series in of_panel.groupby("series"):
            binned = {cell: _binned(raw) for cell, raw in of_series.set_index("cell_id")["raw"].items()}
            marks.curves(panel, perplexity(pd.DataFrame(binned)), properties[name])
        marks.log_axis(panel.xaxis, "position (tokens before it, and itself)")
        marks.value_axis(panel.yaxis, "test perplexity")
    text = [*controls.notes(data), _BY_POSITION, _trained_on(data), *notes, captions.conditions(data)]
    return layout.finish(drawn, properties, *text)


def _binned(losses: np.ndarray) -> pd.Series:
    """The mean loss of each bin of positions, indexed by the geometric middle of the bin."""
    edges = np.unique(np.geomspace(1, len(losses) + 1, BINS + 1).round().astype(int))
    parts = np.split(losses, edges[1:-1] - 1)
    middles = np.sqrt(edges[:-1] * (edges[1:] - 1.0))
    return pd.Series([part.mean() for part in parts], index=middles)


def _trained_on(data: pd.DataFrame) -> str:
    """A sentence on the tokenizer and the number of training tokens."""
    tokenizers = " or ".join(sorted({str(json.loads(text).get("tokenizer")) for text in data["task"]}))
    last = data[data["metric"] == "validation_step"]  # every training ends with a look, also one that ends early
    tokens = (last["tokens"] * last["value"]).dropna()
    if tokens.empty:
        return f"Tokens: {tokenizers}."
    low, high = tokens.min() / 1e6, tokens.max() / 1e6
    count = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    return f"Tokens: {tokenizers}; trained on {count} million."
