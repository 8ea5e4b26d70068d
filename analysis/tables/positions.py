"""Language models: at which positions in its context is a mechanism ahead of the best control?"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis import controls
from analysis.paired import Array
from analysis.selection import MissingRecords, disturbance, unless_quiet
from analysis.training import panels, trained_cells
from bench.records.statistics import mean_interval

FIRST = 64
"""The end of the first range of positions; each later range ends at twice the end of the one before."""


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """Each language model's test loss minus that of the best negative control, by the position of a token.

    Below 0 nats the mechanism is better. `more` is the difference minus that in the range of positions before: below
    0, the mechanism gains more from the longer context. 95 % intervals (Student's t) are over seeds, of the same test
    text.
    """
    data, _ = trained_cells(frame, ["language_modelling"])
    made = pd.DataFrame([row for key, rows in panels(data) for row in _rows(rows, key)])
    if made.empty:
        raise MissingRecords(controls.NEEDS)
    # The positive control first: a page shows only the head of a long table.
    positive = {one.positive for one in controls.diagnoses(data).values()}
    return unless_quiet(made.sort_values("attention", key=lambda names: ~names.isin(positive), kind="stable"))


def _rows(rows: pd.DataFrame, key: tuple[str, int]) -> list[dict[str, object]]:
    """The rows of one task and length (`key`)."""
    found, by_series = controls.diagnose(rows), controls.losses(rows, "loss_by_position")
    names = {"task": key[0], "n": key[1], "task is": found.word}
    best = by_series.get(found.negative or "", controls.Losses())
    return [
        {**names, "attention": name, "against": found.negative, **numbers, "seeds": len(seeds)}
        | {"disturbed": disturbance(rows[rows["series"].isin([name, found.negative])])}
        for name, own in by_series.items()
        if name != found.negative and len(seeds := sorted(own.keys() & best.keys())) > 1
        for numbers in _by_range(np.stack([own[seed] - best[seed] for seed in seeds]))
    ]


def _by_range(differences: Array) -> Iterator[dict[str, object]]:
    """The differences `(seeds, positions)` within each range, and how much more they are than in the range before."""
    before = None
    for start, end in ranges(differences.shape[1]):
        own = np.nanmean(differences[:, start:end], axis=1)  # NaN where nothing is asked
        difference, more = mean_interval(own), None if before is None else mean_interval(own - before)
        yield {
            "positions": f"{start + 1:,} to {end:,}",
            **{"difference (nats)": difference.value, "low": difference.low, "high": difference.high},
            **{"more (nats)": more and more.value, "more, low": more and more.low, "more, high": more and more.high},
        }
        before = own


def ranges(length: int) -> list[tuple[int, int]]:
    """(start, end) of ranges of positions, counted from 0: 0 to 64, 64 to 128, 128 to 256 and so on."""
    ends = [min(FIRST, length)]
    while ends[-1] < length:
        ends.append(min(2 * ends[-1], length))
    return list(zip([0, *ends[:-1]], ends, strict=True))
