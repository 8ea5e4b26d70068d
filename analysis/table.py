"""Tables for people: the records with one row per cell, and any table as a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from bench.errors import bounded
from bench.records.store import write_atomically
from bench.table import in_cell

_CONDITIONS = ["bench", "attention", "seq_len", "batch_size", "num_heads", "head_dim", "dtype", "causal"]
_INPUTS = ["inputs", "weights", "device_name"]


def by_cell(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: its conditions, its status, and each metric's and pass's value and interval as text.

    Columns that say the same (or nothing) in every row are left out, except for what names the cell.
    """
    # A cell of several mechanisms is named after its baseline, and what it says of one of them is left out.
    compared = frame.loc[frame["baseline"].notna(), "cell_id"]
    dtypes = frame.dropna(subset="dtype").groupby("cell_id")["dtype"].agg(lambda own: ", ".join(own.unique()))
    frame = frame[frame["baseline"].notna() | ~frame["cell_id"].isin(compared)]
    texts = frame.assign(column=_of_rows(_column, frame), text=_of_rows(_text, frame))
    values = texts[texts["column"].notna()].pivot_table(
        index="cell_id", columns="column", values="text", aggfunc=", ".join, sort=False
    )
    first = frame.assign(
        attention=frame["baseline"].where(frame["baseline"].notna(), frame["attention"]),
        dtype=frame["cell_id"].map(dtypes),
    ).drop_duplicates("cell_id")
    # A benchmark that nobody knows here may call what it measured as a condition is called.
    cells = first.set_index("cell_id")[[*_CONDITIONS, *_INPUTS, "features", "status", "reason", "disturbance"]]
    cells = cells.join(values.rename(columns={name: f"{name}, measured" for name in cells}))
    keep = ("bench", "attention", "seq_len", "status")
    telling = [name for name in cells if name in keep or cells[name].nunique(dropna=False) > 1]
    return cells[telling].sort_values(["bench", "attention", "seq_len"], kind="stable").reset_index(drop=True)


def markdown(table: pd.DataFrame) -> str:
    """The table in GitHub's Markdown."""
    cells = [["" if pd.isna(value) else number(value) for value in row] for row in table.to_numpy(object)]
    rows = [list(table.columns), ["---"] * len(table.columns), *cells]
    return "\n".join(f"| {' | '.join(in_cell(cell) for cell in row)} |" for row in rows)


def latex(table: pd.DataFrame) -> str:
    """The table as a `tabular` of the package booktabs, numbers to the right."""
    cells = [["" if pd.isna(value) else number(value) for value in row] for row in table.to_numpy(object)]
    sides = "".join("r" if pd.api.types.is_numeric_dtype(table[name]) else "l" for name in table)
    head, *rows = (" & ".join(map(_in_latex, row)) + r" \\" for row in [map(str, table.columns), *cells])
    lines = [rf"\begin{{tabular}}{{{sides}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines)


FORMATS: dict[str, Callable[[pd.DataFrame], str]] = {
    "md": lambda table: markdown(table) + "\n",
    "csv": lambda table: table.to_csv(index=False),
    "tex": lambda table: latex(table) + "\n",
}
"""Of files; CSV has every digit."""
DEFAULT = ("md", "csv")


def write(table: pd.DataFrame, out_dir: str | Path, name: str, formats: Sequence[str] = DEFAULT) -> list[Path]:
    """Write `name` in some of `FORMATS`; returns the files."""
    paths = []
    for suffix in formats:
        path = Path(out_dir) / f"{name}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, FORMATS[suffix](table).encode())
        paths.append(path)
    return paths


def number(value: object) -> str:
    """A float with four significant digits and all digits before its point; other values as they are."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


_LATEX = str.maketrans(
    {
        **{sign: rf"\{sign}" for sign in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "µ": r"\textmu{}",
    }
)


def _in_latex(text: str) -> str:
    return bounded(text).translate(_LATEX)


def _of_rows(text: Callable[[pd.Series], str | None], frame: pd.DataFrame) -> pd.Series:
    return pd.Series([text(row) for _, row in frame.iterrows()], index=frame.index, dtype=object)


def _column(row: pd.Series) -> str | None:
    """Of a row that people read, its metric, pass and unit."""
    if pd.isna(row["factor"]) or pd.isna(row["metric"]):
        return None
    measured_pass = "" if pd.isna(row["pass"]) else f" {row['pass'].replace('_', ' + ')}"
    unit = f" ({row['shown_unit']})" if row["shown_unit"] else ""
    return f"{row['metric']}{measured_pass}{unit}"


def _text(row: pd.Series) -> str:
    value, low, high = (number(float(row[name]) * row["factor"]) for name in ("value", "low", "high"))
    interval = "" if pd.isna(row["low"]) else f" [{low}, {high}]"
    who = "" if pd.isna(row["baseline"]) else f"{row['attention']} "
    verdict = "" if pd.isna(row["verdict"]) else f" {row['verdict']}"
    return f"{who}{value}{interval}{verdict}"
