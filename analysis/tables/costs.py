"""What cells cost beside what they measure: the correctness gate's time, and the memory that bounds a batch."""

from __future__ import annotations

import pandas as pd

from analysis.published import published
from analysis.selection import MissingRecords, disturbance, newest, require_ok, settle, table_of, with_disturbance


def gate_cost(frame: pd.DataFrame) -> pd.DataFrame:
    """What the correctness gate takes of the cells' time.

    One row per benchmark, pass and length: the gate's seconds, and its share of a cell from start to end.
    """
    cells = frame[(frame["status"] == "ok") & frame["check_s"].notna() & (frame["duration_s"] > 0)]
    cells = cells.drop_duplicates("cell_id")
    if cells.empty:
        raise MissingRecords("needs ok records that say how long their check took")
    cells = cells.assign(share=100 * cells["check_s"] / cells["duration_s"])
    rows = []
    for (bench, measured_pass, length), group in cells.groupby(["bench", "pass", "seq_len"], dropna=False):
        most = group.loc[group["share"].idxmax()]
        row = {"bench": bench, "pass": measured_pass, "n": length, "cells": len(group)}
        row |= {"gate, median (s)": group["check_s"].median(), "share of the cell, median (%)": group["share"].median()}
        row |= {"largest (%)": most["share"], "of": most["attention"], "disturbed": disturbance(group)}
        rows.append(row)
    return table_of(rows)


def largest_batches(frame: pd.DataFrame) -> pd.DataFrame:
    """Largest batches that fit into memory beside the paper's (Skeinformer, Table 2).

    A row for each mechanism: its largest batch at each length, then the paper's by task. Of models and conditions the
    most frequent are taken; of several limits of memory, each length has that of its newest cell. A cell that did not
    end says how. The paper's batches go no further than those it wants (128, 256, 64, 512 and 256, of 16 GiB).
    """
    rows, _ = settle(require_ok(frame[frame["bench"] == "largest_batch"], "bench=largest_batch"))
    limit = rows["cell_id"].map(rows[rows["metric"] == "limit"].set_index("cell_id")["value"])
    cells = rows.assign(gib=(limit / 2**30).fillna(0.0)).sort_values("ended", kind="stable")
    ok = cells[cells["metric"] == "largest_batch"]
    chosen = ok.groupby("seq_len")["gib"].last()
    failed = cells[(cells["status"] != "ok") & cells["seq_len"].isin(chosen.index)]
    cells, _ = newest(pd.concat([ok[ok["gib"] == ok["seq_len"].map(chosen)], failed]), ["attention", "seq_len"])
    batches = cells["value"].map("{:.0f}".format).where(cells["status"] == "ok", cells["status"])
    ours = cells.assign(batch=batches).pivot(index="attention", columns="seq_len", values="batch")
    ours.columns = [f"n = {n}" + (f", {chosen[n]:.3g} GiB" if chosen[n] else "") for n in ours.columns]
    paper = published("largest_batch")
    theirs = paper.pivot(index="attention", columns="at", values="printed")[list(dict.fromkeys(paper["at"]))]
    theirs.columns = [f"Skeinformer, {task}" for task in theirs.columns]
    disturbed = {attention: disturbance(own) for attention, own in cells.groupby("attention")}
    return with_disturbance(ours.join(theirs).reset_index(), (disturbed[attention] for attention in ours.index))
