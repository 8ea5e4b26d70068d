"""Tables of costs: time of the correctness gate, largest batch that fits into memory, multiplications."""

from typing import NamedTuple

import pandas as pd

from analysis.published import published
from analysis.selection import MissingRecords, disturbance, newest, require_ok, settle, unless_quiet


def gate_cost(frame: pd.DataFrame) -> pd.DataFrame:
    """What the check of correctness before each measurement takes.

    For each benchmark, pass and length: the median over cells of the check's seconds, and of its share of a cell's
    whole time; then the largest share, and whose it is.
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
    return unless_quiet(pd.DataFrame(rows))


def largest_batches(frame: pd.DataFrame) -> pd.DataFrame:
    """Largest batches that fit into memory beside the paper's (Skeinformer, Table 2).

    One row for each mechanism: its largest batch at each length, then the paper's by task. Only the most frequent model
    and conditions are shown; if there are several memory limits, each length uses that of its newest cell. A failed
    cell shows its status. The paper tries no larger batches than it needs (128, 256, 64, 512 and 256, in 16 GiB).
    """
    rows, _ = settle(require_ok(frame[frame["bench"] == "largest_batch"], "bench=largest_batch"))
    limit = rows["cell_id"].map(rows[rows["metric"] == "limit"].set_index("cell_id")["value"])
    cells = rows.assign(gib=(limit / 2**30).fillna(0.0)).sort_values("ended", kind="stable")
    ok = cells[cells["metric"] == "largest_batch"]
    chosen = ok.groupby("seq_len")["gib"].last()
    failed = cells[(cells["status"] != "ok") & cells["seq_len"].isin(chosen.index)]
    cells = newest(pd.concat([ok[ok["gib"] == ok["seq_len"].map(chosen)], failed]), ["attention", "seq_len"])
    batches = cells["value"].map("{:.0f}".format).where(cells["status"] == "ok", cells["status"])
    ours = cells.assign(batch=batches).pivot(index="attention", columns="seq_len", values="batch")
    ours.columns = [f"n = {n}" + (f", {chosen[n]:.3g} GiB" if chosen[n] else "") for n in ours.columns]
    paper = published("largest_batch")
    theirs = paper.pivot(index="attention", columns="at", values="printed")[list(dict.fromkeys(paper["at"]))]
    theirs.columns = [f"Skeinformer, {task}" for task in theirs.columns]
    causes = [disturbance(cells[cells["attention"] == attention]) for attention in ours.index]
    return unless_quiet(ours.join(theirs).reset_index().assign(disturbed=causes))


class Cost(NamedTuple):
    """A row of Table 3: the paper's name, its leading term `factor n d p` in multiplications, and what ours counts.

    In `quadratic` rows the term is `factor n n p`.
    """

    name: str
    factor: int
    ours: str
    quadratic: bool = False


TABLE_3 = {
    "softmax": Cost("Standard", 2, "scores and weighted values", quadratic=True),
    "bigbird": Cost(
        "Big Bird", 5, "8 blocks of 64 keys for each query, all keys for 2 blocks of queries; these count once here"
    ),
    "performer": Cost(
        "Performer", 3, "phi(Q), phi(K), phi(K)^T V and phi(Q) (phi(K)^T V): 4 n d p, not 3; and the normalisers"
    ),
    "nystromformer": Cost(
        "Nystromformer",
        4,
        "also the pseudo-inverse: 6 iterations of 4 products, 24 d^3, more than 4 n d p up to n = 12k",
    ),
    "linformer": Cost("Linformer", 4, "projections of K and V, scores, weighted values"),
    "informer": Cost("Informer", 3, "d sampled scores for each query, d exact rows, and the mean of V"),
    "skeinformer": Cost("Skeinformer", 4, "pilot rows and sampled columns, and the fill of the other columns"),
}
PAPER_HEAD_DIM, PAPER_FEATURES = 32, 256


def multiplications(frame: pd.DataFrame) -> pd.DataFrame:
    """Multiplications of one head beside the paper's leading terms (Skeinformer, Table 3).

    One row per mechanism and length, at the paper's p = 32 and d = 256. Ours are half the FLOPs of the mechanism's own
    formula; those that were counted while it ran stand beside them. The paper leaves out Reformer, whose cost depends
    on the input.
    """
    cells = frame[(frame["bench"] == "flops") & (frame["status"] == "ok") & (frame["head_dim"] == PAPER_HEAD_DIM)]
    cells = cells[cells["mechanism"].isin(TABLE_3) & cells["features"].fillna(PAPER_FEATURES).eq(PAPER_FEATURES)]
    cells = newest(cells[~cells["causal"].astype(bool)], ["attention", "seq_len", "metric"])
    if cells.empty:
        raise MissingRecords(f"needs ok records of bench=flops at head_dim={PAPER_HEAD_DIM}, d={PAPER_FEATURES}")
    rows = []
    for mechanism, paper in TABLE_3.items():
        for (label, n), cell in cells[cells["mechanism"] == mechanism].groupby(["attention", "seq_len"]):
            leading = paper.factor * n * (n if paper.quadratic else PAPER_FEATURES) * PAPER_HEAD_DIM
            attended = cell["batch_size"].iloc[0] * cell["num_heads"].iloc[0]
            ours = cell.set_index("metric")["value"] / (2 * attended)
            term = f"{paper.factor} n^2 p" if paper.quadratic else f"{paper.factor} n d p"
            row = {"method": paper.name, "attention": label, "n": n, "paper's leading term": term}
            row |= {"paper (M)": leading / 1e6, "ours (M)": ours["flops_analytic"] / 1e6}
            row |= {"counted (M)": ours["flops_counted"] / 1e6, "ours / paper": ours["flops_analytic"] / leading}
            rows.append(row | {"what ours counts": paper.ours, "disturbed": disturbance(cell)})
    return unless_quiet(pd.DataFrame(rows))
