"""The speed of training: steps per second of whole models over the context length."""

from __future__ import annotations

import pandas as pd

from analysis import intervals
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.published import beside
from analysis.selection import newest, require_ok, series, settle, with_disturbance
from analysis.training import with_layers, with_settings

BENCHES = {"train_step": "each by itself", "compare_train_step": "in interleaved rounds"}


@layout.styled
def figure(frame: pd.DataFrame) -> Picture:
    """Figure 4 of PolySketchFormer (ICML): steps per second over context length, as many tokens in each step.

    The table `polysketchformer_table4` has the paper's numbers beside ours.
    """
    data, notes = _select(frame)
    properties = style.of_series(data)
    groups = list(data.groupby("bench", sort=False))
    drawn, axes = layout.panels(1, len(groups))
    for panel, (bench, rows) in zip(axes[0], groups, strict=True):
        layout.title(panel, f"training, {BENCHES[bench]}")
        marks.over_lengths(panel, rows[rows["metric"] == "steps_per_second"], rows, properties)
    marks.log_axis(axes[0, 0].yaxis, "steps/s")
    explanation = f"Steps of training a whole model per second: medians, bars {intervals.bars(data)}."
    text = [explanation, captions.conditions(data), captions.functions(data)]
    return layout.finish(drawn, properties, *text, *notes)


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per benchmark, mechanism and length: ours with its interval and sizes, and those of the papers.

    The papers' are of GPT-2 small on the hardware that `bench/published/polysketchformer.toml` names.

    Raises:
        MissingRecords: no step of training was measured.
    """
    data, _ = _select(frame)
    rows = data[(data["metric"] == "steps_per_second") | (data["status"] != "ok")]
    columns = {
        "attention": "attention",
        "seq_len": "n",
        "bench": "bench",
        "layers": "layers",
        "num_heads": "heads",
        "head_dim": "head dim",
        "batch_size": "batch",
        "dtype": "dtype",
        "status": "status",
        "value": "steps/s",
        "low": "low",
        "high": "high",
        "interval": "interval",
    }
    ours = rows.assign(attention=series(rows), interval=intervals.each(rows))[list(columns)].rename(columns=columns)
    return beside(with_disturbance(ours, rows["disturbance"]), "steps_per_second")


def _select(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    chosen = frame[frame["bench"].isin(BENCHES) & (frame["metric"].isna() | (frame["metric"] == "steps_per_second"))]
    parts, notes = [], []
    for _, rows in require_ok(chosen, "bench=train_step").groupby("bench", sort=False):
        if (rows["status"] == "ok").any():
            # A comparison's settings name its baseline.
            part, more = settle(with_settings(rows, {"layers": ("model", "layers")}))
            part, older = newest(part.assign(series=with_layers(part)), ["series", "seq_len"])
            parts.append(part)
            notes += [*more, *older]
    return pd.concat(parts), notes
