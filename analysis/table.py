"""Tables for people: the records with one row per cell, and any table as a file."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from bench.records.store import write_atomically

_CONDITIONS = ["bench", "attention", "seq_len", "batch_size", "num_heads", "head_dim", "dtype", "causal"]
_INPUTS = ["inputs", "weights", "device_name"]
# What is printed of each benchmark, in which unit, times which factor; a ratio and a norm are as they are.
_PRINTED = {
    "latency": ("ms", 1e-6),
    "peak_memory": ("MiB", 2**-20),
    "decode_latency": ("µs", 1e-3),
    "state_bytes": ("MiB", 2**-20),
    "speedup": ("x", 1),
    "absolute": ("", 1),
    "relative": ("", 1),
    "kernel_error": ("", 1),
    "kernel_expected": ("", 1),
    "sketch_error": ("", 1),
    "smallest_weight": ("", 1),
    "negative_share": ("", 1),
    "flops_analytic": ("GFLOP", 1e-9),
    "flops_counted": ("GFLOP", 1e-9),
}


def by_cell(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: its conditions, its status, and each metric's and pass's value and interval as text.

    Columns that say the same (or nothing) in every row are left out, except for what names the cell.
    """
    # A comparison has a row for each candidate; it is named after its baseline.
    frame = frame[(frame["bench"] != "compare") | (frame["metric"] != "latency")]
    texts = frame.assign(column=_columns(frame), text=frame.apply(_text, axis=1))
    values = texts[texts["column"].notna()].pivot_table(
        index="cell_id", columns="column", values="text", aggfunc=", ".join, sort=False
    )
    first = frame.assign(attention=frame["baseline"].fillna(frame["attention"])).drop_duplicates("cell_id")
    cells = first.set_index("cell_id")[[*_CONDITIONS, *_INPUTS, "features", "status", "reason"]].join(values)
    keep = ("bench", "attention", "seq_len", "status")
    told = [name for name in cells if name in keep or cells[name].nunique(dropna=False) > 1]
    return cells[told].sort_values(["bench", "attention", "seq_len"], kind="stable").reset_index(drop=True)


def markdown(table: pd.DataFrame) -> str:
    """The table in GitHub's Markdown."""
    cells = [["" if pd.isna(value) else number(value) for value in row] for row in table.to_numpy(object)]
    rows = [list(table.columns), ["---"] * len(table.columns), *cells]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)


def write(table: pd.DataFrame, out_dir: str | Path, name: str) -> list[Path]:
    """Write `name`.md and, with every digit, `name`.csv."""
    texts = {"md": markdown(table) + "\n", "csv": table.to_csv(index=False)}
    paths = [Path(out_dir) / f"{name}.{suffix}" for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_atomically(path, text.encode())
    return paths


def number(value: object) -> str:
    """A float with four significant digits and all digits before its point; other values as they are."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _columns(frame: pd.DataFrame) -> pd.Series:
    passes = frame["pass"].fillna("").str.replace("_", " + ")
    units = frame["metric"].map({metric: unit for metric, (unit, _) in _PRINTED.items()})
    names = frame["metric"].where(frame["metric"].isin([*_PRINTED, *_largest(frame)]))
    return (names + " " + passes).str.strip() + units.map(lambda unit: f" ({unit})" if unit else "")


def _largest(frame: pd.DataFrame) -> set[str]:
    return {metric for metric in frame["metric"].dropna() if metric.startswith("largest_")}


def _text(row: pd.Series) -> str:
    factor = _PRINTED.get(row["metric"], ("", 1))[1]
    value, low, high = (number(float(row[name]) * factor) for name in ("value", "low", "high"))
    interval = "" if pd.isna(row["low"]) else f" [{low}, {high}]"
    who = f"{row['attention']} " if row["metric"] == "speedup" else ""
    verdict = "" if pd.isna(row["verdict"]) else f" {row['verdict']}"
    return f"{who}{value}{interval}{verdict}"
