"""All cells as one readable table."""

import pandas as pd

from analysis.formats import number

_CONDITIONS = ["bench", "attention", "seq_len", "batch_size", "num_heads", "head_dim", "dtype", "causal"]
_INPUTS = ["inputs", "weights", "device_name"]


def by_cell(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: its conditions, its status, and the value and interval of each metric and pass as text.

    Columns that are equal in all rows are left out, except those that identify the cell.
    """
    # A comparison is named after its baseline; only its ratios are shown, not the time of each mechanism.
    compared = frame.loc[frame["baseline"].notna(), "cell_id"]
    dtypes = frame.dropna(subset="dtype").groupby("cell_id")["dtype"].agg(lambda own: ", ".join(own.unique()))
    frame = frame[frame["baseline"].notna() | ~frame["cell_id"].isin(compared)]
    columns, words = ([of(row) for _, row in frame.iterrows()] for of in (_column, _text))
    texts = frame.assign(column=columns, text=words)
    values = texts[texts["column"].notna()].pivot_table(
        index="cell_id", columns="column", values="text", aggfunc=", ".join, sort=False
    )
    first = frame.assign(
        attention=frame["baseline"].where(frame["baseline"].notna(), frame["attention"]),
        dtype=frame["cell_id"].map(dtypes),
    ).drop_duplicates("cell_id")
    over = frame.dropna(subset="over").drop_duplicates("cell_id").set_index("cell_id")
    over = over["samples"].astype(str) + " " + over["over"].astype(str)
    # A benchmark added by a user may name a metric like one of the conditions.
    cells = first.set_index("cell_id")[[*_CONDITIONS, *_INPUTS, "features", "status", "reason", "disturbance"]]
    cells = cells.join(over.rename("intervals over"))
    cells = cells.join(values.rename(columns={name: f"{name}, measured" for name in cells}))
    always = ["bench", "attention", "seq_len", "status", *(["intervals over"] if len(over) else [])]
    differing = [name for name in cells if name in always or cells[name].nunique(dropna=False) > 1]
    return cells[differing].sort_values(["bench", "attention", "seq_len"], kind="stable").reset_index(drop=True)


def _column(row: pd.Series) -> str | None:
    """The column of a row (metric, pass and unit); None for a metric that no table prints."""
    if pd.isna(row["factor"]) or pd.isna(row["metric"]):
        return None
    measured_pass = "" if pd.isna(row["pass"]) else f" {row['pass'].replace('_', ' + ')}"
    unit = f" ({row['shown_unit']})" if row["shown_unit"] else ""
    return f"{row['metric']}{measured_pass}{unit}"


def _text(row: pd.Series) -> str:
    if pd.isna(row["value"]) and not pd.isna(row["verdict"]):
        return str(row["verdict"])
    value, low, high = (number(float(row[name]) * row["factor"]) for name in ("value", "low", "high"))
    interval = "" if pd.isna(row["low"]) else f" [{low}, {high}]"
    who = "" if pd.isna(row["baseline"]) else f"{row['attention']} "
    verdict = "" if pd.isna(row["verdict"]) else f" {row['verdict']}"
    return f"{who}{value}{interval}{verdict}"
