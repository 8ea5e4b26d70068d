"""Costs over the context length: attention alone, decoding, a training step."""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from analysis import intervals
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.published import beside
from analysis.selection import mask, newest, require_ok, select, series, settle, several_lengths, unless_quiet
from analysis.training import BENCHES, with_layers, with_settings


class Panel(NamedTuple):
    """One panel over the context length: measured rows, label of the vertical axis, factor to the label's unit."""

    title: str
    measured: pd.DataFrame
    rows: pd.DataFrame
    """All cells, failed ones included, for the marks and the axis of lengths."""
    label: str
    scale: float = 1


@layout.styled()
def over_lengths(
    data: pd.DataFrame, panels: Sequence[Panel], explanation: str, notes: Sequence[str], lines: int = 1
) -> Picture:
    """One line for each series on logarithmic axes; if all panels have the same label, they share the vertical axis.

    The panels are placed in `lines` rows.
    """
    properties = style.of_series(data)
    share_y = len({panel.label for panel in panels}) == 1
    drawn, axes = layout.panels(lines, len(panels) // lines, share_y=share_y)
    for place, panel in zip(axes.flat, panels, strict=True):
        layout.title(place, panel.title)
        marks.over_lengths(place, panel.measured, panel.rows, properties, panel.scale)
        marks.length_axis(place, data["seq_len"])
    for place, panel in zip(axes.flat, panels, strict=True):
        if not share_y or place in axes[:, 0]:
            marks.log_axis(place.yaxis, panel.label)
    said = captions.by_panel({panel.title: panel.rows for panel in panels})
    return layout.finish(drawn, properties, explanation, said, captions.functions(data), *notes)


def latency(frame: pd.DataFrame) -> Picture:
    """Latency per token over context length (PolySketchFormer, Figure 1); the paper times whole steps of training."""
    words = "Latency per token of attention alone: medians."
    return _by_pass(frame, "latency", "latency_per_token", "latency per token (µs/token)", words)


def memory(frame: pd.DataFrame) -> Picture:
    """Peak memory over context length."""
    words = "Peak memory above that of inputs and parameters."
    return _by_pass(frame, "memory", "peak_memory", "peak memory (MiB)", words, 2**-20)


# The names in `analysis.plots.polysketchformer` and `analysis.plots.memory` of version 0.1.
figure1, figure = latency, memory


def _by_pass(frame: pd.DataFrame, bench: str, metric: str, label: str, explanation: str, scale: float = 1) -> Picture:
    """One panel for each mask and pass; a mask with a single length is left out, if another has more."""
    data, notes = select(several_lengths(frame, bench), bench, ["seq_len", "pass"], metric=metric, panels=["causal"])
    masks = sorted(set(data["causal"]))
    if unseen := (data["value"] <= 0).sum():
        notes = [f"Values of 0 ({unseen}) have no place on a logarithmic axis.", *notes]
    panels = []
    for causal in masks:
        for name in (name for name in marks.PASSES if (data["pass"] == name).any()):
            rows = data[(data["causal"] == causal) & (data["pass"].isna() | (data["pass"] == name))]
            words = f"{mask(causal)}, {marks.PASSES[name]}" if len(masks) > 1 else marks.PASSES[name]
            panels.append(Panel(words, rows[rows["value"] > 0], rows, label, scale))
    bars = f" Bars: {intervals.bars(data)}." if data["interval"].notna().any() else ""
    return over_lengths(data, panels, explanation + bars, notes, lines=len(masks))


def decode(frame: pd.DataFrame) -> Picture:
    """Time per token and size of the state over context length."""
    data, notes = select(frame, "decode", ["seq_len", "metric"])
    times, states = (data[data["metric"] == metric] for metric in ("decode_latency", "state_bytes"))
    time = Panel("time", times, data, "time per token (µs)", 1e-3)
    state = Panel("state", states, data, "state (MiB)", 2**-20)
    explanation = (
        f"Left: time of a step, which takes one token of each sequence; medians, bars {intervals.bars(data)}. Right: "
        "all tensors of the state of the whole batch."
    )
    return over_lengths(data, [time, state], explanation, notes)


def steps_per_second(frame: pd.DataFrame) -> Picture:
    """Training steps per second over context length, at equal tokens per step (PolySketchFormer, Figure 4).

    The table `polysketchformer_table4` has the paper's numbers beside ours.
    """
    data, notes = _steps(frame)
    panels = []
    for bench, rows in data.groupby("bench", sort=False):
        measured = rows[rows["metric"] == "steps_per_second"]
        panels.append(Panel(f"training, {BENCHES[bench]}", measured, rows, "steps/s"))
        if missing := sorted(set(data["series"]) - set(rows["series"])):
            notes.append(f"Not measured {BENCHES[bench]}: {', '.join(map(layout.shown, missing))}.")
    explanation = f"Steps of training a whole model per second: medians, bars {intervals.bars(data)}."
    return over_lengths(data, panels, explanation, notes)


def steps_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Training steps per second beside the papers' (PolySketchFormer, Table 4); higher is better.

    In brackets the interval. Compare along the rows of one column only: the papers' models are larger (GPT-2 small),
    with a million tokens a step on the hardware that `bench/published/polysketchformer.toml` names; ours are small
    models with `n` times `sequences in a batch` tokens a step, on the machine of the records.
    """
    rows, _ = _steps(frame)
    rows = rows.assign(attention=series(rows), interval=intervals.each(rows))
    names = {"seq_len": "n", "num_heads": "heads", "head_dim": "head dim", "batch_size": "batch", "value": "steps/s"}
    names |= {"disturbance": "disturbed"}
    columns = ["attention", "seq_len", "bench", "layers", "num_heads", "head_dim", "batch_size", "dtype", "status"]
    ours = rows[[*columns, "value", "low", "high", "interval", "disturbance"]].rename(columns=names)
    return beside(unless_quiet(ours), "steps_per_second")


def _steps(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    chosen = frame[frame["bench"].isin(BENCHES) & (frame["metric"].isna() | (frame["metric"] == "steps_per_second"))]
    parts, notes = [], []
    for _, rows in require_ok(chosen, "bench=train_step").groupby("bench", sort=False):
        if (rows["status"] == "ok").any():
            # Each benchmark is settled by itself: settings of compare_train_step also name its baseline.
            part, more = settle(with_settings(rows, {"layers": ("model", "layers")}))
            parts.append(part)
            notes += more
    steps = pd.concat(parts)
    return newest(steps.assign(series=with_layers(steps)), ["bench", "series", "seq_len"]), notes
