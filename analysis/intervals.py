"""The kinds of intervals and their units of replication, in words for captions and tables."""

import pandas as pd

from bench.records.metrics import BOOTSTRAP, RANGE, STUDENT

BARS = {BOOTSTRAP: "95% bootstrap interval", RANGE: "range", STUDENT: "95% interval (Student's t)"}


def bars(rows: pd.DataFrame) -> str:
    """What the error bars are, in words: `95% interval (Student's t) over 8 sequences, range over 5 rounds`.

    Also says which rows have no interval.
    """
    rows = rows.dropna(subset=["interval"])
    known = rows["low"].notna()
    kinds = [f"{BARS[kind]} {over(of_kind)}" for kind, of_kind in rows[known].groupby("interval")]
    none = [] if known.all() else [f"none {over(rows[~known])}, which are too few"]
    return ", ".join([*kinds, *none])


def each(rows: pd.DataFrame) -> list[str]:
    """The text of `bars` for each row, as a column of a table."""
    return [bars(rows.loc[[row]]) for row in rows.index]


def over(rows: pd.DataFrame) -> str:
    """The units of replication of the rows: `over 2 or 8 sequences`."""
    rows = rows.dropna(subset=["over"])
    counts = " or ".join(f"{count:,}" for count in sorted(set(rows["samples"])))
    return f"over {counts} {' and '.join(sorted(set(rows['over'])))}"
