"""All cells as one readable table."""

import pandas as pd

from analysis.formats import number
from analysis.selection import parsed
from bench.records.table import settings_apart

_IDENTITY = ["bench", "attention", "seq_len"]
# Settings with a column of their own: with other mechanisms they may differ, too, which `settings` would not say.
_OF_CONFIG = ["num_heads", "head_dim", "dtype", "impl", "seed"]
_CONDITIONS = [*_IDENTITY, "batch_size", *_OF_CONFIG, "causal", "inputs", "weights", "features"]
_CONDITIONS += ["device_name", "threads", "torch"]


def by_cell(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: its conditions, its status, and the value and interval of each metric and pass as text.

    `settings` says what else tells a cell from those of its benchmark, mechanism, sizes, mask and inputs.
    """
    # A comparison is named after its baseline; only its ratios are shown, not the time of each mechanism.
    compared = frame.loc[frame["baseline"].notna(), "cell_id"]
    joined = {
        name: frame.dropna(subset=name).groupby("cell_id")[name].agg(lambda own: ", ".join(own.unique()))
        for name in ("dtype", "impl")  # a comparison's mechanisms may have their own
    }
    frame = frame[frame["baseline"].notna() | ~frame["cell_id"].isin(compared)]
    columns, words = ([of(row) for _, row in frame.iterrows()] for of in (_column, _text))
    texts = frame.assign(column=columns, text=words)
    values = texts[texts["column"].notna()].pivot_table(
        index="cell_id", columns="column", values="text", aggfunc=", ".join, sort=False
    )
    first = frame.assign(attention=frame["baseline"].where(frame["baseline"].notna(), frame["attention"]))
    cells = first.drop_duplicates("cell_id").set_index("cell_id").assign(**joined)
    cells["settings"] = _settings(cells)
    over = frame.dropna(subset="over").drop_duplicates("cell_id").set_index("cell_id")
    over = over["samples"].astype(str) + " " + over["over"].astype(str)
    cells = cells[[*_CONDITIONS, "settings", "status", "reason", "disturbance", "ended"]]
    cells = cells.join(over.rename("intervals over"))
    # A benchmark added by a user may name a metric like one of the conditions.
    cells = cells.join(values.rename(columns={name: f"{name}, measured" for name in cells}))
    return cells.sort_values([*_IDENTITY, "ended"], kind="stable").reset_index(drop=True)


def shortened(cells: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The table without the conditions that are equal in all rows, and these as text: `batch_size=1, dtype=float32`.

    Of the other columns only empty ones are left out, and `ended`, unless rows would look the same without it.
    """
    equal = [name for name in _CONDITIONS if name not in _IDENTITY and cells[name].nunique(dropna=False) == 1]
    left_out = [*equal, *(name for name in cells if name not in equal and cells[name].isna().all())]
    if not cells.duplicated([*_CONDITIONS, "settings"]).any():
        left_out.append("ended")
    said = (f"{name}={cells[name].iloc[0]}" for name in equal if cells[name].notna().all())
    return cells.drop(columns=left_out), ", ".join(said)


def _settings(cells: pd.DataFrame) -> list[str | None]:
    """What tells each cell from those of its name, apart from what has a column; None if nothing does."""
    configs = ({k: v for k, v in config.items() if k not in _OF_CONFIG} for config in parsed(cells["config"]))
    return [text or None for text in settings_apart([*configs])]


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
