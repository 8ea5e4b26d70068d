"""Quality against cost: test loss over the time of a training step."""

import pandas as pd

from analysis import controls, intervals
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import MissingRecords, newest
from analysis.training import MOST_HOURS, PANEL, hours_apart, over_seeds, panels, timed, trained_cells, within, work

MEASURED, TRAINING = "time of a step (ms)", "time of a step while training (ms)"
# Columns that determine the time of a step.
_STEP = ["attention", "hyperparameters", "impl", "seq_len", "batch_size", "num_heads", "head_dim", "dtype"]
_STEP += ["device_name", "work"]
_BARS = ["interval", "over", "samples"]
_TIMES = ["step_ms", "step_ms_low", "step_ms_high"]
_TRAINED = ["trained_ms", "trained_ms_low", "trained_ms_high"]
_APART = "{}_apart"
_EXPLANATION = (
    "Lower left is better. Loss: median over seeds, bars from the least to the greatest. Time: of bench=train_step its "
    "median{}, while training the median of all steps and seeds, with bars over seeds. {} Grey: what nothing shown "
    f"beats in both, where the task is diagnostic and cells are at most {MOST_HOURS} hours apart."
)


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """Test loss over the measured time of a training step: one panel for each task and length.

    The time is that of bench=train_step if it was measured for all series of a panel (same model, task, length and
    batch), else the median over the training steps of runs on quiet cores; the label says which. The grey line is the
    Pareto front of a task that is diagnostic, of cells that are at most `MOST_HOURS` apart.
    """
    data, _ = trained_cells(frame)
    points = _points(frame, data)
    groups = [(key, rows) for key, rows in panels(points) if rows[[_TIMES[0], _TRAINED[0]]].notna().all().any()]
    if not groups:
        raise MissingRecords("needs bench=train_step of the models, or training on cores that nothing else used")
    left_out = [f"{kind}, n = {n:,}" for (kind, n), _ in panels(points) if (kind, n) not in dict(groups)]
    data = within(data, [key for key, _ in groups])
    _, notes = trained_cells(frame, set(data["inputs"]))
    points = within(points, [key for key, _ in groups])
    is_diagnostic = {key: one.is_diagnostic for key, one in controls.diagnoses(data).items()}
    properties = style.of_series(data)
    numbers, legend = marks.numbered(properties)
    apart: dict[tuple[str, int], float] = {}
    drawn, axes = layout.grid(len(groups))
    for panel, ((kind, seq_len), rows) in zip(axes, groups, strict=True):
        layout.title(panel, f"{kind}, n = {seq_len:,}")
        x = _TIMES[0] if rows["step_ms"].notna().all() else _TRAINED[0]
        apart[kind, seq_len] = rows[_APART.format(x)].iloc[0]
        if is_diagnostic[kind, seq_len] and apart[kind, seq_len] <= MOST_HOURS:
            marks.front_line(panel, marks.front(rows, x), x)
        marks.points(panel, rows, x, properties, capsize=2)
        marks.value_axis(panel.xaxis, MEASURED if x == _TIMES[0] else TRAINING)
        marks.value_axis(panel.yaxis, "test loss (nats)")
        # A narrow panel has room for numbers only.
        names = rows["series"].map(numbers) if layout.in_a_column() else short(rows["series"])
        marks.beside(panel, rows, x, names)
    legend = legend if layout.in_a_column() else {}
    measured = points.dropna(subset=["interval"])
    bars = f" ({intervals.bars(measured)})" if len(measured) else ""
    explanation = _EXPLANATION.format(bars, _said_apart(apart))
    notes += [f"Without times of a step: {'; '.join(left_out)}."] if left_out else []
    return layout.finish(drawn, legend, *controls.notes(data), explanation, *notes, captions.conditions(data))


def _said_apart(apart: dict[tuple[str, int], float]) -> str:
    """A sentence: how much time lies between the cells of each panel, from these hours."""
    said = "; ".join(f"{_duration(hours)} ({kind}, n = {n:,})" for (kind, n), hours in apart.items())
    return f"Between the first and the last cell of a panel: {said}."


def _duration(hours: float) -> str:
    """`17 minutes`, `8.6 hours`, `2.6 days`."""
    if hours < 1:
        return f"{60 * hours:.0f} minutes"
    return f"{hours:.2g} hours" if hours < 48 else f"{hours / 24:.2g} days"


def short(names: pd.Series) -> list[str]:
    """Names without settings, where the mechanism alone is unique in the panel."""
    first = [name.partition(" ")[0] for name in names]
    return [layout.shown(one if first.count(one) == 1 else name) for one, name in zip(first, names, strict=True)]


def _points(frame: pd.DataFrame, data: pd.DataFrame) -> pd.DataFrame:
    """The losses (`value`, `low`, `high`) with step times in ms: from bench=train_step, and during training."""
    steps = frame[(frame["bench"] == "train_step") & (frame["metric"] == "step_time")]
    steps = newest(steps.assign(work=work(steps)), _STEP)
    columns = [*_TIMES, *_BARS, "step_ended"]
    times = steps[[*_STEP, "value", "low", "high", *_BARS, "ended"]].set_axis([*_STEP, *columns], axis=1)
    times[_TIMES] *= 1e-6
    quiet = timed(data)
    speeds = over_seeds(quiet, "steps_per_second")
    speeds[_TRAINED] = 1e3 / speeds[["value", "high", "low"]]
    losses = over_seeds(data, "loss").drop(columns=_BARS)
    points = losses.merge(speeds[[*PANEL, "series", *_TRAINED]], on=[*PANEL, "series"], how="left")
    points = points.merge(times, on=_STEP, how="left")
    ends = {_TIMES[0]: points.set_index(PANEL)["step_ended"], _TRAINED[0]: quiet.set_index(PANEL)["ended"]}
    for x, ended in ends.items():
        hours = pd.Series({key: hours_apart(own) for key, own in ended.groupby(PANEL)}, dtype=float)
        points[_APART.format(x)] = hours.reindex(pd.MultiIndex.from_frame(points[PANEL])).to_numpy()
    return points
