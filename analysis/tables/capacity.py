"""Recall without training, in tables: pairs by the bytes of a state, and whether they foretell trained recall."""

import json
import math
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import gammaln

from analysis.paired import LEVEL, UNDECIDED, Array, corrected
from analysis.selection import MissingRecords, disturbance, newest, require_ok, series, settle, unless_quiet
from analysis.training import over_seeds, panels, trained_cells, with_settings

ACCURACY = "token_accuracy"
"""What trained recall is: the share of all answers that are right."""
PREDICTS, DOES_NOT = "predicts", "does not"
USEFUL = 0.7
"""The correlation below which ranks do not explain half of the variance of others."""
FEWEST = 6
"""Mechanisms: of fewer even the same order is by chance, or its interval contains 0."""
PERMUTATIONS = 9999
_KEYS = ["series", "keys", "head_dim"]


def capacities(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The cells of bench=capacity that may stand side by side, and sentences for a caption.

    A row for each series, kind of `keys` and head_dim: `value`, `low` and `high` of the pairs; `state_bytes` with
    `state_bytes_low` and `state_bytes_high`; `capacity_per_byte`; `reached`, of how many draws the capacity is more
    than was tried; `share`, that had to be right. Cells that did not end ok are left out.
    """
    rows = require_ok(frame[frame["bench"] == "capacity"], "bench=capacity")
    unpacked = with_settings(rows, {"keys": ("bench", "keys")})
    shares = [json.loads(text).get("bench", {}).get("share", 0.9) for text in rows["settings"]]
    settled, notes = settle(unpacked.assign(share=shares), facets=("head_dim",))
    settled = settled[settled["status"] == "ok"].assign(series=lambda cells: series(cells))
    data = newest(settled[settled["metric"] == "capacity"], _KEYS)
    for metric in ("state_bytes", "capacity_per_byte", "reached"):
        own = settled[settled["metric"] == metric].set_index("cell_id")
        ends = {metric: "value"} | (
            {f"{metric}_low": "low", f"{metric}_high": "high"} if metric == "state_bytes" else {}
        )
        data = data.assign(**{name: data["cell_id"].map(own[of]) for name, of in ends.items()})
    return data.sort_values(["keys", "head_dim", "series"]), notes


def bits_needed(pairs: float, share: float) -> float:
    """The fewest bits of any state from which, in the mean, this share of so many pairs is told apart.

    A state of b bits leads to at most 2^b different answers (the counting of Jelassi et al. 2024, Repeat After Me,
    arXiv 2402.01032, section 2, for copying). Given the keys and the set of N values, which value is whose is one of N!
    orders, all alike; an answer agrees in m places or more with at most `C(N, m) (N - m)!` of them, one in m!. Where a
    share s is right in the mean, `2 s - 1` is right with a probability of a half (Markov), so that with m = (2 s - 1) N
    there must be `2^b >= m! / 2`. It is Theta(N log N) bits; Arora et al. 2024 (Based, arXiv 2402.18668, section 3.2)
    have Omega(N) for any recurrent model.
    """
    m = math.ceil((2 * share - 1) * pairs - 1e-9)
    return max(0.0, float(gammaln(max(m, 0) + 1)) / math.log(2) - 1)


def most_pairs(state_bytes: float, share: float) -> int:
    """The most pairs that `bits_needed` allows in so many bytes."""
    if share <= 0.5:
        raise ValueError(f"share={share}: must be above 0.5, for less there is no bound")
    low, high = 0, 2
    while bits_needed(high, share) <= 8 * state_bytes:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bits_needed(middle, share) <= 8 * state_bytes else (low, middle)
    return low


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """Pairs that a head's state gives back without training, by its bytes, and the most that any state could."""
    data, _ = capacities(frame)
    bound = [
        most_pairs(size, share) if share > 0.5 else np.nan
        for size, share in zip(data["state_bytes"], data["share"], strict=True)
    ]
    columns = {"attention": data["series"], "keys": data["keys"], "head dim": data["head_dim"]}
    columns |= {"pairs": data["value"], "low": data["low"], "high": data["high"], "draws": data["samples"]}
    columns |= {"more than tried (%)": 100 * data["reached"], "state (KiB)": data["state_bytes"] / 2**10}
    columns |= {"pairs per KiB": 2**10 * data["capacity_per_byte"], "any state, at most": bound}
    columns |= {"disturbed": [disturbance(data.loc[[row]]) for row in data.index]}
    return unless_quiet(pd.DataFrame(columns).reset_index(drop=True))


class Correlation(NamedTuple):
    """Spearman's rank correlation with its 95 % interval, and the p of none at all, in either direction."""

    value: float
    low: float
    high: float
    p: float


def correlation(first: Array, second: Array) -> Correlation:
    """Of numbers that belong together one by one, `(count,)` each.

    The interval is that of Bonett and Wright (2000, Sample size requirements for estimating Pearson, Kendall and
    Spearman correlations), where no correlation is nearer to 1 than one exchange of neighbours leaves it.
    The p is that of a permutation test: exact for up to seven, of `PERMUTATIONS` drawn ones for more. NaN of fewer than
    `FEWEST`, and where one of the two is the same everywhere.
    """
    count = len(first)
    if count < FEWEST or np.ptp(first) == 0 or np.ptp(second) == 0:
        return Correlation(*[math.nan] * 4)
    ranks, others = (stats.zscore(stats.rankdata(each)) for each in (first, second))
    value = float(ranks @ others / count)
    most = 1 - 12 / (count**3 - count)
    bounded = min(max(value, -most), most)
    half = stats.norm.isf(LEVEL / 2) * math.sqrt((1 + bounded**2 / 2) / (count - 3))
    low, high = (math.tanh(math.atanh(bounded) + end) for end in (-half, half))
    permuted = stats.permutation_test(
        (ranks,),
        lambda each, axis: (each * others).sum(axis),
        permutation_type="pairings",
        vectorized=True,
        n_resamples=PERMUTATIONS,
        rng=np.random.default_rng(0),
    )
    return Correlation(value, min(low, value), max(high, value), float(permuted.pvalue))


def answer(one: Correlation, p: float) -> str:
    """Whether the first foretells the second: `predicts`, `does not` or `undecided`; `p` is corrected.

    It does not where the interval lies below `USEFUL`, even if there is some correlation, or the reverse.
    """
    if one.high < USEFUL:
        return DOES_NOT
    return PREDICTS if p < LEVEL else UNDECIDED


def matched(frame: pd.DataFrame) -> pd.DataFrame:
    """Trained recall (`recall`) beside capacity (`pairs`): a row for each mechanism, task, length and kind of keys.

    The same mechanism with the same hyperparameters, as far as both records have them; of several head_dims that of the
    model, else the nearest. Recall is the median over seeds of the right answers of the test split, with its range
    (`recall_low`, `recall_high`); the pairs are the mean over draws with its interval.
    """
    capacity, _ = capacities(frame)
    trained, _ = trained_cells(frame, ["associative_recall"])
    rows = []
    for (kind, n), of_task in panels(over_seeds(trained, ACCURACY)):
        for keys, of_keys in capacity.groupby("keys"):
            for one in of_task.itertuples():
                same = of_keys["hyperparameters"].map(partial(_alike, one.hyperparameters)).astype(bool)
                own = of_keys[same & (of_keys["mechanism"] == one.mechanism)]
                if own.empty:
                    continue
                far = (np.log(own["head_dim"].astype(float)) - math.log(one.head_dim)).abs()
                near = own.loc[far.idxmin()]
                names = {"task": kind, "n": n, "keys": keys, "series": one.series, "head_dim": near["head_dim"]}
                found = {"recall": one.value, "recall_low": one.low, "recall_high": one.high}
                found |= {"pairs": near["value"], "pairs_low": near["low"], "pairs_high": near["high"]}
                cells = of_task.loc[[one.Index]], own.loc[[far.idxmin()]]
                rows.append(names | found | {"disturbed": disturbance(pd.concat(cells))})
    if not rows:
        raise MissingRecords("needs bench=capacity and bench=train with task=associative_recall of one mechanism")
    return pd.DataFrame(rows)


def _alike(first: str, second: str) -> bool:
    """Whether hyperparameters (JSON) agree; those that one record lacks are newer than it."""
    own, theirs = json.loads(first), json.loads(second)
    return all(own[key] == theirs[key] for key in own.keys() & theirs.keys())


def answers(found: pd.DataFrame) -> dict[tuple[str, int, str], tuple[Correlation, str]]:
    """Of each task, length and kind of keys of `matched`: the correlation over mechanisms, and what is answered.

    Corrected for their number (Holm).
    """
    groups = found.groupby(["task", "n", "keys"], sort=False)
    each = {key: correlation(rows["pairs"].to_numpy(float), rows["recall"].to_numpy(float)) for key, rows in groups}
    known = [key for key, one in each.items() if not math.isnan(one.p)]
    ps = dict(zip(known, corrected([each[key].p for key in known]), strict=True))
    return {key: (one, answer(one, ps.get(key, math.nan))) for key, one in each.items()}


def capacity_and_recall(frame: pd.DataFrame) -> pd.DataFrame:
    """Whether capacity without training foretells trained recall: Spearman's correlation over mechanisms.

    A row for each task, length and kind of keys. The unit of replication is a mechanism: the interval says what others
    would do, as far as these are a sample of them. `answer`: `predicts` by a permutation test, corrected for the rows
    (Holm); `does not` where the interval lies below 0.7, half of the variance of ranks; else `undecided`.
    """
    found = matched(frame)
    groups = found.groupby(["task", "n", "keys"], sort=False)
    rows = []
    for key, (one, word) in answers(found).items():
        group = groups.get_group(key)
        row = dict(zip(("task", "n", "keys"), key, strict=True)) | {"mechanisms": len(group), "answer": word}
        row |= {"Spearman": one.value, "low": one.low, "high": one.high, "p": one.p}
        dims = ", ".join(str(dim) for dim in sorted(set(group["head_dim"])))
        row |= {"head dim of the capacity": dims, "of": ", ".join(sorted(group["series"]))}
        causes = {cause for text in group["disturbed"].dropna() for cause in text.split("; ")}
        rows.append(row | {"disturbed": "; ".join(sorted(causes)) or None})
    return unless_quiet(pd.DataFrame(rows))
