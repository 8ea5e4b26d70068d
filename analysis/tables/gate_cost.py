"""What the correctness gate costs: its share of the cells' time."""

from __future__ import annotations

import pandas as pd

from analysis.selection import MissingRecords, disturbance, table_of


def gate_cost(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per benchmark, pass and length: the gate's seconds, and its share of a cell from start to end.

    Args:
        frame: from `analysis.frame.load`.

    Raises:
        MissingRecords: no ok cell says how long its gate took.
    """
    cells = frame[(frame["status"] == "ok") & frame["check_s"].notna() & (frame["duration_s"] > 0)].drop_duplicates(
        "cell_id"
    )
    if cells.empty:
        raise MissingRecords("needs ok records that say how long their check took")
    cells = cells.assign(share=100 * cells["check_s"] / cells["duration_s"])
    rows = []
    for (bench, measured_pass, length), group in cells.groupby(["bench", "pass", "seq_len"], dropna=False):
        most = group.loc[group["share"].idxmax()]
        rows.append(
            {
                "bench": bench,
                "pass": measured_pass,
                "n": length,
                "cells": len(group),
                "gate, median (s)": group["check_s"].median(),
                "share of the cell, median (%)": group["share"].median(),
                "largest (%)": most["share"],
                "of": most["attention"],
                "disturbed": disturbance(group),
            }
        )
    return table_of(rows)
