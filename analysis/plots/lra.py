"""Figures 2 and 3 of Skeinformer (Chen et al. 2022, appendices A.3 and A.5): models trained on Long Range Arena."""

from itertools import cycle

import pandas as pd
from matplotlib.axes import Axes

from analysis import controls
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.plots.learning import by_step
from analysis.selection import MissingRecords, newest, require_ok
from analysis.tables.lra import NEEDS, TASKS
from analysis.training import BUSY, PANEL, panels, timed, trained_cells, with_settings, within

TASK = "text"
"""The task of the paper's Figure 3."""
MARKERS, SHADES = ("o", "s", "^", "D"), ("0", "0.35", "0.55", "0.7")
"""Markers and grey levels of batch sizes, the smallest first."""
_ALIKE = ["device_name", "dtype", "num_heads", "head_dim"]
_SEEDS = "Medians over seeds"
_TIME = (
    f"Seconds of the training steps alone, the median of the seeds on quiet cores. Thick lines: {_SEEDS.lower()} of "
    "the validation loss; thin ones: each seed."
)
_SENSITIVITY = f"{_SEEDS}, bars from the least to the greatest. The paper has text with batches of 64 and 128."


@layout.styled()
def figure2(frame: pd.DataFrame) -> Picture:
    """Validation loss over training time on Long Range Arena (Skeinformer, Figure 2): one panel for each task."""
    data, notes = trained_cells(frame, TASKS)
    quiet = timed(data[data["status"] == "ok"], "validation_seconds")
    if quiet.empty:
        raise MissingRecords(f"{NEEDS} on cores that nothing else used")
    data = within(data, [key for key, _ in panels(quiet)])
    said = controls.notes(data)
    data = data.merge(quiet[[*PANEL, "series"]].drop_duplicates(), "left", indicator="timed")
    said += _untimed(data[(data["timed"] == "left_only") & (data["status"] == "ok")])
    data = data[data["timed"] == "both"]
    properties, groups = style.of_series(data), panels(data[data["status"] == "ok"])
    drawn, axes = layout.grid(len(groups))
    for panel, ((kind, n), rows) in zip(axes, groups, strict=True):
        layout.title(panel, f"{kind}, n = {n:,}")
        for name, of_series in rows.groupby("series"):
            curve, seconds = by_step(of_series, "validation_loss"), by_step(of_series, "validation_seconds")
            seconds = seconds[seconds.columns.intersection(quiet["cell_id"])]
            if seconds.shape[1]:
                marks.curves(panel, curve.set_axis(seconds.median(axis=1).reindex(curve.index)), properties[name])
        panel.set_xlabel("training time (s)")
        marks.value_axis(panel.yaxis, "validation loss (nats)")
    return layout.finish(drawn, properties, *said, _TIME, *notes, captions.conditions(data))


def _untimed(rows: pd.DataFrame) -> list[str]:
    """Caption sentences on the series without a line (the `rows`), by why they have none."""
    is_quiet = (rows["metric"] == "validation_seconds") & ~(rows["busy"] > BUSY)
    moved = is_quiet.groupby([rows[key] for key in (*PANEL, "series")]).transform("any")
    said = []
    for own, why in ((rows[~moved], "no seed had a core for itself"), (rows[moved], "timed on another machine")):
        names = own.groupby(PANEL)["series"].unique()
        words = [f"{kind}, n = {n:,} ({', '.join(series)})" for (kind, n), series in names.items()]
        said += [f"Without a line, since {why}: {'; '.join(words)}."] if words else []
    return said


@layout.styled()
def figure3(frame: pd.DataFrame) -> Picture:
    """Sensitivity on Long Range Arena: to learning rate and batch size (Skeinformer, Figure 3), and to the size d.

    Accuracy and time of Skeinformer on text over the learning rate, with one line for each batch size; and accuracy
    over the size d, for the task with most sizes.
    """
    cells = frame[(frame["bench"] == "train") & frame["inputs"].isin(TASKS)]
    require_ok(cells, NEEDS.removeprefix("needs an ok record of "))
    cells = with_settings(cells, {"rate": ("training", "learning_rate")})
    cells = cells[cells["status"] == "ok"].assign(series=cells["attention"].str.partition(" ")[0])
    own = cells[(cells["inputs"] == TASK) & (cells["mechanism"] == "skeinformer")]
    own = _richest(own, ["seq_len", "hyperparameters", "settings", *_ALIKE], ["rate", "batch_size"])
    own = own[own.groupby("batch_size")["rate"].transform("nunique") > 1]
    same = ["inputs", "seq_len", "batch_size", "rate", "settings", *_ALIKE]
    sized = cells[cells["features"].notna()]
    sized = sized[sized.groupby([*same, "series"])["features"].transform("nunique") > 1]
    sized = _richest(sized, same, ["series", "features"])
    if own.empty and sized.empty:
        raise MissingRecords(f"{NEEDS} at several learning rates (skeinformer, {TASK}), or of several sizes d")
    drawn, axes = layout.panels(1, 3, share_y=False)
    (right, time, size), properties = axes[0], style.of_series(sized)
    _over_rates(right, own[own["metric"] == "accuracy"], "accuracy (%)", 100)
    _over_rates(time, own[(own["metric"] == "validation_seconds") & ~(own["busy"] > BUSY)], "training time (s)", 1)
    first = f"skeinformer, {TASK}" + "".join(f", n = {n:,}" for n in own["seq_len"].unique())
    second = ", ".join(f"{row.inputs}, n = {row.seq_len:,}" for row in sized[:1].itertuples())
    for panel, title in ((right, first), (time, first), (size, second)):
        layout.title(panel, title)
    for name, rows in sized[sized["metric"] == "accuracy"].groupby("series"):
        marks.errorbar(size, _over_seeds(rows, "features"), "features", properties[str(name)], 100)
    if len(sized):
        marks.length_axis(size, sized["features"].astype(int), "number of features d")
    size.set_ylabel("accuracy (%)")
    said = captions.by_panel({first: own, second: sized})
    return layout.finish(drawn, properties, _SENSITIVITY, said)


def _richest(cells: pd.DataFrame, fixed: list[str], over: list[str]) -> pd.DataFrame:
    """The group of cells with equal `fixed` columns that has most different values of `over`; newest cell of each."""
    groups = [rows for _, rows in cells.groupby(fixed)]
    most = max(groups, key=lambda rows: len(rows[over].drop_duplicates()), default=cells)
    return newest(most, [*over, "seed", "metric"])


def _over_seeds(rows: pd.DataFrame, x: str) -> pd.DataFrame:
    """One row for each x: median, least and greatest value."""
    values = rows.groupby(x)["value"]
    return pd.DataFrame({"value": values.median(), "low": values.min(), "high": values.max()}).reset_index()


def _over_rates(panel: Axes, rows: pd.DataFrame, label: str, factor: float) -> None:
    looks = {}
    for (batch, own), marker, shade in zip(rows.groupby("batch_size"), cycle(MARKERS), cycle(SHADES), strict=False):
        look = looks[str(batch)] = {"label": f"batch of {batch}", "marker": marker, "color": shade}
        marks.errorbar(panel, _over_seeds(own, "rate"), "rate", look, factor)
    panel.set_ylabel(label)
    panel.set_xlabel("learning rate")
    if len(rows):
        panel.legend(handles=layout.handles(looks), frameon=False, fontsize=layout.SMALLEST)
        panel.margins(x=0.15)
        marks.log_axis(panel.xaxis, "learning rate")
