"""The speed of training: steps per second of whole models over the context length."""

from __future__ import annotations

import pandas as pd

from analysis import intervals
from analysis.frame import MissingRecords, marked, newest, series, settle
from analysis.learned import named, with_settings
from analysis.plots import looks, page, style
from analysis.plots.page import Picture
from analysis.published import beside

BENCHES = {"train_step": "each by itself", "compare_train_step": "in interleaved rounds"}


@style.literal
def figure(frame: pd.DataFrame) -> Picture:
    """Figure 4 of PolySketchFormer (ICML): steps per second over context length, as many tokens in each step.

    The table `polysketchformer_table4` has the paper's numbers beside ours.

    Args:
        frame: from `analysis.frame.load`.

    Raises:
        MissingRecords: no step of training was measured.
    """
    data, notes = _select(frame)
    properties = looks.styles(data, data["series"])
    groups = list(data.groupby("bench", sort=False))
    drawn, axes = page.panels(1, len(groups))
    for panel, (bench, rows) in zip(axes[0], groups, strict=True):
        page.title(panel, f"training, {BENCHES[bench]}")
        for name, of_series in rows[rows["metric"] == "steps_per_second"].groupby("series"):
            style.errorbar(panel, of_series, "seq_len", properties[name])
        style.gaps(panel, rows, "seq_len", properties)
        style.length_axis(panel, rows["seq_len"])
    style.log_axis(axes[0, 0].yaxis, "steps/s")
    page.legend(drawn, properties)
    explanation = f"Steps of training a whole model per second: medians, bars {intervals.bars(data)}."
    text = [explanation, style.conditions(data), style.functions(data), *notes]
    page.caption(drawn, " ".join(filter(None, text)))
    return drawn


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per benchmark, mechanism and length: ours with its interval and sizes, and those of the papers.

    The papers' are of GPT-2 small on the hardware that `bench/published/polysketchformer.toml` names.

    Raises:
        MissingRecords: no step of training was measured.
    """
    data, _ = _select(frame)
    rows = data[(data["metric"] == "steps_per_second") | (data["status"] != "ok")]
    ours = pd.DataFrame(
        {
            "attention": series(rows),
            "n": rows["seq_len"],
            "bench": rows["bench"],
            "layers": rows["layers"],
            "heads": rows["num_heads"],
            "head dim": rows["head_dim"],
            "batch": rows["batch_size"],
            "dtype": rows["dtype"],
            "status": rows["status"],
            "steps/s": rows["value"],
            "low": rows["low"],
            "high": rows["high"],
            "interval": intervals.each(rows),
        }
    )
    return beside(marked(ours, rows["disturbance"]), "steps_per_second")


def _select(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    chosen = frame[frame["bench"].isin(BENCHES) & (frame["metric"].isna() | (frame["metric"] == "steps_per_second"))]
    parts, notes = [], []
    for _, rows in chosen.groupby("bench", sort=False):
        if (rows["status"] == "ok").any():
            rows = with_settings(rows, {"layers": ("model", "layers")})
            part, more = settle(rows)
            # A comparison's settings name its baseline.
            part = part.assign(series=named(part))
            part, older = newest(part, ["series", "seq_len"])
            parts.append(part)
            notes += [*more, *older]
    if not parts:
        raise MissingRecords("needs an ok record of bench=train_step")
    return pd.concat(parts), notes
