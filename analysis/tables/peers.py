"""The zoo's mechanisms beside the same ones from other packages: speed in the same rounds, and peak memory."""

import pandas as pd

from analysis import intervals
from analysis.selection import MissingRecords, newest, unless_quiet
from bench.records.statistics import ratio_interval

# The package's variant -> ours with the same work, or the nearest to it; see `third_party.lucidrains` for differences.
COUNTERPARTS = {
    "lucidrains_linformer": "linformer",
    "lucidrains_local_5": "bigbird_r0",
    "lucidrains_nystromformer": "nystromformer",
    "lucidrains_performer": "performer",
    "lucidrains_reformer": "reformer",
}
CONDITIONS = ["causal", "pass", "dtype", "seq_len"]
SIZES = ["batch_size", "num_heads", "head_dim"]
MIB = 2.0**-20


def peers(frame: pd.DataFrame) -> pd.DataFrame:
    """The zoo's mechanisms beside the same ones from other packages, by mask, pass, dtype and length.

    Speed over the package is its time divided by ours in the same rounds (above 1: ours is faster), the median with its
    interval and verdict. Peak memory is of both, if `bench=memory` measured it.
    """
    timed, shared = _of(frame, "compare", "latency"), [*CONDITIONS, *SIZES, "device_name"]
    both = timed.merge(timed, on=["cell_id", "ended", *shared], suffixes=("", "_peer"))
    both = both[both["attention_peer"].map(COUNTERPARTS) == both["attention"]]
    if both.empty:
        raise MissingRecords("needs an ok record of bench=compare with a mechanism and its peer from the package index")
    both = newest(both, ["attention_peer", *shared])
    ratios = [ratio_interval(theirs, ours) for theirs, ours in zip(both["raw_peer"], both["raw"], strict=True)]
    for name in ("median", "low", "high", "verdict"):
        both[name] = [getattr(ratio, name) for ratio in ratios]
    memory = newest(_of(frame, "memory", "peak_memory"), ["attention", *shared])
    peaks = memory.set_index(["attention", *shared])["value"] * MIB
    both = both.join(peaks.rename("mib"), on=["attention", *shared])
    both = both.join(peaks.rename("peer_mib"), on=["attention_peer", *shared])
    names = {"attention_peer": "peer", "median": "speed", "disturbance": "disturbed"}
    rows = both.drop(columns="disturbed").rename(columns=names).sort_values(["attention", *CONDITIONS])
    rows = rows.assign(interval=intervals.each(rows))
    columns = ["attention", "peer", *CONDITIONS, "speed", "low", "high", "interval", "verdict", "mib", "peer_mib"]
    return unless_quiet(rows[[*columns, "disturbed"]].reset_index(drop=True))


def _of(frame: pd.DataFrame, bench: str, metric: str) -> pd.DataFrame:
    """The rows of the zoo's mechanisms and their peers, with labels without the dtype."""
    rows = frame[(frame["bench"] == bench) & (frame["metric"] == metric)]
    names = zip(rows["attention"].astype(str), rows["dtype"], strict=True)
    rows = rows.assign(attention=[name.removesuffix(f" dtype={dtype}") for name, dtype in names])
    return rows[rows["attention"].isin([*COUNTERPARTS, *COUNTERPARTS.values()])]
