"""What mechanisms have learned, in a table: over seeds, on the test split."""

from __future__ import annotations

import pandas as pd

from analysis.frame import MissingRecords, newest, series


def trained(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each task, length and mechanism: median and range over seeds of loss (nats) and whole examples right.

    Args:
        frame: from `analysis.frame.load`.

    Raises:
        MissingRecords: no cell of bench=train ended ok.
    """
    data = frame[(frame["bench"] == "train") & (frame["status"] == "ok")]
    if data.empty:
        raise MissingRecords("needs an ok record of bench=train")
    keys = ["inputs", "seq_len", "series", "settings", "dtype"]
    data, _ = newest(data.assign(series=series(data)), [*keys, "seed", "metric"])
    rows = []
    for (task, seq_len, name, _, dtype), cells in data.groupby(keys, sort=False):
        loss, right, speed = (
            cells.loc[cells["metric"] == metric, "value"] for metric in ("loss", "example_accuracy", "steps_per_second")
        )
        rows.append(
            {
                "task": task,
                "n": seq_len,
                "attention": name,
                "dtype": dtype,
                "seeds": cells["seed"].nunique(),
                "loss (nats)": loss.median(),
                "lowest": loss.min(),
                "highest": loss.max(),
                "right (%)": 100 * right.median(),
                "lowest right (%)": 100 * right.min(),
                "steps/s": speed.median(),
            }
        )
    return pd.DataFrame(rows).sort_values(["task", "n", "loss (nats)"], kind="stable").reset_index(drop=True)
