"""Table 3 of Skeinformer (Chen et al. 2022, Sketching as a Tool for Understanding ...): multiplications."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from analysis.selection import MissingRecords, disturbance, newest, table_of


class Cost(NamedTuple):
    """A row of Table 3: the paper's name, its leading term `factor n d p` in multiplications, how ours comes about.

    `quadratic` rows have n in place of d.
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


def table3(frame: pd.DataFrame) -> pd.DataFrame:
    """Multiplications of one head beside the paper's leading terms (Skeinformer, Table 3); half the FLOPs.

    A row per mechanism and length, of what was measured at the paper's p = 32 and d = 256. The paper leaves Reformer
    out, whose cost depends on the input.
    """
    cells = frame[(frame["bench"] == "flops") & (frame["status"] == "ok") & (frame["head_dim"] == PAPER_HEAD_DIM)]
    cells = cells[cells["mechanism"].isin(TABLE_3) & cells["features"].fillna(PAPER_FEATURES).eq(PAPER_FEATURES)]
    cells, _ = newest(cells[~cells["causal"].astype(bool)], ["attention", "seq_len", "metric"])
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
    return table_of(rows)
