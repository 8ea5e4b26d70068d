"""Loss by kind of token: tokens that repeat something, by the distance to it, and all others."""

import math
import re

import numpy as np
import pandas as pd

from analysis.controls import diagnose, notes
from analysis.plots import captions, layout, marks, style
from analysis.plots.layout import Picture
from analysis.selection import MissingRecords
from analysis.training import PANEL, panels, trained_cells
from bench.records.statistics import mean_interval

SHARE = "share_"
NEEDS = "needs bench=train of a language model and a control with losses by kind of token"
WIDE = 3.0
"""Least width of a panel in inches."""
_EXPLANATION = (
    "Test loss of each kind of token minus that of the best negative control, paired by seed: means over {} seeds, "
    "bars 95 % intervals over these (Student's t), not corrected for their number; below 0 is better. Recalled: the "
    "last of a pair of tokens (or words of bytes) that came earlier in the context and is rare in the training text, "
    "by the distance to its latest occurrence; other: the rest. Differences times shares sum to that of the loss."
)


@layout.styled()
def figure(frame: pd.DataFrame) -> Picture:
    """Loss minus the best negative control's, by the distance to what a token repeats."""
    data, more = trained_cells(frame, ["language_modelling"])
    properties = style.of_series(data)
    found = by_kind(data)
    if found.empty:
        raise MissingRecords(NEEDS)
    groups = list(found.groupby(PANEL))
    drawn, axes = layout.grid(len(groups), 2, width=4.2, least=WIDE)
    for panel, ((kind, n), rows) in zip(axes, groups, strict=True):
        layout.title(panel, f"{kind}, n = {n:,}")
        panel.axhline(0, color="0.4", linewidth=0.8, zorder=1, **layout.SQUARE)
        of_kinds = rows.drop_duplicates("token").reset_index(drop=True)
        names = sorted(rows["series"].unique(), key=[*properties].index)
        for place, name in enumerate(names):
            own = rows[rows["series"] == name].set_index("token").reindex(of_kinds["token"])
            at = np.arange(len(own)) + 0.7 * ((place + 0.5) / len(names) - 0.5)
            marks.errorbar(panel, own.assign(at=at), "at", {**properties[name], "linestyle": "none"})
        labels = [f"{_shown(token)}\n{100 * share:.2g} %" for token, share in of_kinds[["token", "share"]].to_numpy()]
        panel.set_xticks(range(len(labels)), labels, fontsize=layout.SMALLEST)
        panel.grid(visible=False, axis="x")
        panel.set_xlabel("tokens back to what is repeated; share of tokens")
        panel.set_ylabel(f"loss minus that of\n{layout.shown(rows['against'].iloc[0])} (nats)", fontsize=7)
    legend = {name: line for name, line in properties.items() if name in set(found["series"])}
    seeds = " to ".join(str(count) for count in dict.fromkeys((found["seeds"].min(), found["seeds"].max())))
    said = _EXPLANATION.format(seeds)
    return layout.finish(drawn, legend, *notes(data), said, *more, captions.conditions(data))


def by_kind(data: pd.DataFrame) -> pd.DataFrame:
    """Difference of the loss of each kind of token to the task's best negative control; `data` are trained cells.

    Returns:
        `kind`, `seq_len`, `series`, `against`, `token` (nearest first), its `share` of all tokens, and `value` with
        `low` and `high`: mean and interval in nats over the `seeds` that both have; the interval is NaN for fewer than
        three. The values of a series, weighted by the shares, sum to the difference of the losses.
    """
    tables = []
    for (kind, n), rows in panels(data[data["inputs"] == "language_modelling"]):
        anchor = diagnose(rows).negative
        parts = {str(name): _parts(own) for name, own in rows.groupby("series")}
        if anchor is None or parts[anchor].empty:
            continue
        shares = rows[rows["metric"].str.startswith(SHARE, na=False)].groupby("metric")["value"].first()
        for name, own in parts.items():
            differences = (own - parts[anchor]).dropna(how="all").dropna(how="all", axis=1)
            for token in sorted(differences, key=_distance) if name != anchor else ():
                known = differences[token].dropna()
                one = mean_interval(known)
                values = {"value": one.value, "low": one.low, "high": one.high, "seeds": len(known)}
                place = {"kind": kind, "seq_len": n, "series": name, "against": anchor}
                tables.append({**place, "token": token, "share": shares[f"{SHARE}{token}"], **values})
    return pd.DataFrame(tables)


def _parts(rows: pd.DataFrame) -> pd.DataFrame:
    """The losses of one series: one row for each seed, one column for each kind of token."""
    kinds = rows.loc[rows["metric"].str.startswith(SHARE, na=False), "metric"].str.removeprefix(SHARE)
    found = rows[rows["metric"].isin("loss_" + kinds)]
    tokens = found["metric"].str.removeprefix("loss_")
    return found.assign(token=tokens).pivot_table(index="seed", columns="token", values="value")


def _distance(token: str) -> float:
    """Sort key: the smallest distance, 64 for `recalled_64_127`; infinite for tokens that repeat nothing."""
    numbers = re.findall(r"\d+", token)
    return 0.0 if "below" in token else float(numbers[0]) if numbers else math.inf


def _shown(token: str) -> str:
    """`recalled_64_127` as `64-127`."""
    return re.sub(r"(\d)_(\d)", r"\1-\2", token.removeprefix("recalled_")).replace("_", " ")
