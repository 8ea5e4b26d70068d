"""Loss of a model at longer contexts than it was trained on."""

import re

import pandas as pd

from analysis.controls import BY_UNIT, notes
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import MissingRecords
from analysis.training import PANEL, over_seeds, panels, trained_cells, within

_AT = re.compile(r"loss_at_(\d+)_by_unit")
_EXPLANATION = (
    "Loss of the same weights on the test split in contexts of other lengths, on about as many tokens: medians over "
    "seeds, bars from the least to the greatest. Grey line: the length they were trained on."
)


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """Test loss at longer contexts than a model was trained on; one panel for each task and trained length."""
    tested = {str(name): int(found[1]) for name in frame["metric"].dropna().unique() if (found := _AT.fullmatch(name))}
    if not tested:
        raise MissingRecords("needs bench=train with training.test_lengths")
    # A newer training that was not tested at other lengths hides none that was.
    cells = frame.loc[frame["metric"].isin(tested), "cell_id"]
    data, more = trained_cells(frame[frame["cell_id"].isin(cells)], ["language_modelling"])
    longer = [over_seeds(data, metric).assign(at=n) for metric, n in tested.items()]
    keys = [*PANEL, "series"]
    own = over_seeds(data, BY_UNIT).merge(pd.concat(longer)[keys].drop_duplicates(), on=keys)
    values = pd.concat([own.assign(at=own["seq_len"]), *longer])
    properties = {name: line for name, line in style.of_series(data).items() if name in set(values["series"])}
    groups = panels(values)
    drawn, axes = layout.grid(len(groups))
    for panel, ((kind, n), rows) in zip(axes, groups, strict=True):
        layout.title(panel, f"{kind}, trained at n = {n:,}")
        panel.axvline(n, color="0.8", linewidth=3, zorder=0, gid="trained", **layout.SQUARE)
        marks.over_lengths(panel, rows, rows, properties, x="at", label="context length of the test (tokens)")
        marks.value_axis(panel.yaxis, "test loss (nats)")
    data = within(data, [key for key, _ in groups])
    shown = data[data["series"].isin(properties)]
    return layout.finish(drawn, properties, *notes(data), _EXPLANATION, *more, captions.conditions(shown))
