"""Tables of recall without training: pairs per byte of state, and whether this capacity predicts trained recall."""

import bisect
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
"""The metric of trained recall: the share of answers that are right."""
PREDICTS, DOES_NOT = "predicts", "does not"
USEFUL = 0.7
"""Correlation below which ranks explain less than half of the variance of the other ranks."""
FEWEST = 6
"""Fewest mechanisms: with fewer, even a perfect rank correlation is not significant, or its interval contains 0."""
PERMUTATIONS = 9999
_KEYS = ["series", "keys", "head_dim"]


def capacities(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The comparable cells of bench=capacity, and sentences for the caption.

    One row for each series, kind of `keys` and head_dim: number of pairs (`value`, `low`, `high`); `state_bytes` with
    `state_bytes_low` and `state_bytes_high`; `capacity_per_byte`; `reached`, the share of draws in which even the most
    pairs tried were recalled; `share` of the pairs that had to be right. Cells that are not ok are left out.
    """
    rows = require_ok(frame[frame["bench"] == "capacity"], "bench=capacity")
    unpacked = with_settings(rows, {"keys": ("bench", "keys")})
    shares = [json.loads(text).get("bench", {}).get("share", 0.9) for text in rows["settings"]]
    settled, notes = settle(unpacked.assign(share=shares), facets=("head_dim",))
    settled = settled[settled["status"] == "ok"].assign(series=lambda cells: series(cells))
    data = newest(settled[settled["metric"] == "capacity"], _KEYS)
    for metric in ("state_bytes", "capacity_per_byte", "reached"):
        own = settled[settled["metric"] == metric].set_index("cell_id")[["value", "low", "high"]]
        data = data.join(own.set_axis([metric, f"{metric}_low", f"{metric}_high"], axis=1), on="cell_id")
    return data.sort_values(["keys", "head_dim", "series"]), notes


def bits_needed(pairs: float, share: float) -> float:
    """Lower bound on the bits of any state that recalls, on average, this share of the pairs.

    A state of b bits gives at most 2^b different answers (the counting argument of Jelassi et al. 2024, Repeat After
    Me, arXiv 2402.01032, section 2, for copying). Given the keys and the set of N values, the assignment of values to
    keys is one of N! equally likely permutations; an answer agrees in m places or more with at most `C(N, m) (N - m)!`
    of them, one in m!. If a share s is right on average, `2 s - 1` is right with probability 1/2 or more (Markov), so
    with m = (2 s - 1) N, `2^b >= m! / 2`. This is Theta(N log N) bits; Arora et al. 2024 (Based, arXiv 2402.18668,
    section 3.2) have Omega(N) for any recurrent model.
    """
    m = math.ceil((2 * share - 1) * pairs - 1e-9)
    return max(0.0, float(gammaln(max(m, 0) + 1)) / math.log(2) - 1)


def most_pairs(state_bytes: float, share: float) -> int:
    """The most pairs whose `bits_needed` fit into a state of so many bytes."""
    if share <= 0.5:
        raise ValueError(f"share={share}: must be above 0.5, for less there is no bound")
    return bisect.bisect_right(range(2**62), 8 * state_bytes, key=partial(bits_needed, share=share)) - 1


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """Pairs that a head's state recalls without training, its bytes, and the most pairs that any such state could.

    `pairs`: so many can be written before too few of them are read back right (less than 90 %, unless `bench.share` is
    set); the mean over draws, with its interval. `more than tried`: in so many draws even the most pairs that were
    tried are recalled, so the true number may be larger. `any state, at most`: with more pairs, no state of so many
    bytes can recall that share of them.
    """
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
    """Spearman's rank correlation with its 95 % interval, and the two-sided p-value of no correlation."""

    value: float
    low: float
    high: float
    p: float


def correlation(first: Array, second: Array) -> Correlation:
    """Rank correlation of two paired arrays, `(count,)` each.

    The interval is that of Bonett and Wright (2000, Sample size requirements for estimating Pearson, Kendall and
    Spearman correlations), in which |rho| is capped at its value after swapping one neighbouring pair. The p-value is
    that of a permutation test: exact for up to seven pairs, with `PERMUTATIONS` random permutations for more. All are
    NaN for fewer than `FEWEST` pairs, or if one array is constant.
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
    """Whether the first predicts the second: `predicts`, `does not` or `undecided`; `p` must be corrected.

    `does not` means that the interval lies below `USEFUL`, even if there is some correlation or a negative one.
    """
    if one.high < USEFUL:
        return DOES_NOT
    return PREDICTS if p < LEVEL else UNDECIDED


def matched(frame: pd.DataFrame) -> pd.DataFrame:
    """Trained recall (`recall`) beside capacity (`pairs`): one row for each mechanism, task, length and kind of keys.

    Records match if mechanism and hyperparameters are the same, as far as both have them; of several head_dims, the
    nearest to the model's is taken. Recall is the share of right answers on the test split, the median over seeds with
    its range (`recall_low`, `recall_high`); the pairs are the mean over draws with its interval.
    """
    capacity, _ = capacities(frame)
    trained, _ = trained_cells(frame, ["associative_recall"])
    rows = []
    for (kind, n), of_task in panels(over_seeds(trained, ACCURACY)):
        for keys, of_keys in capacity.groupby("keys"):
            for one in of_task.itertuples():
                own = of_keys[of_keys["mechanism"] == one.mechanism]
                own = own[own["hyperparameters"].map(partial(_alike, one.hyperparameters)).astype(bool)]
                if own.empty:
                    continue
                far = (np.log(own["head_dim"].astype(float)) - math.log(one.head_dim)).abs()
                near = own.loc[far.idxmin()]
                names = {"task": kind, "n": n, "keys": keys, "series": one.series, "head_dim": near["head_dim"]}
                names |= {"control": bool(one.control)}
                found = {"recall": one.value, "recall_low": one.low, "recall_high": one.high}
                found |= {"pairs": near["value"], "pairs_low": near["low"], "pairs_high": near["high"]}
                both = pd.DataFrame({"disturbance": [one.disturbance, near["disturbance"]]})
                rows.append(names | found | {"disturbance": disturbance(both)})
    if not rows:
        raise MissingRecords("needs bench=capacity and bench=train with task=associative_recall of one mechanism")
    return pd.DataFrame(rows)


def _alike(first: str, second: str) -> bool:
    """Whether hyperparameters (JSON) agree; those that one record lacks were added later and are ignored."""
    own, theirs = json.loads(first), json.loads(second)
    return all(own[key] == theirs[key] for key in own.keys() & theirs.keys())


def without_controls(rows: pd.DataFrame) -> Correlation:
    """The correlation over the mechanisms that are no controls: these are made to recall little."""
    own = rows[~rows["control"]]
    return correlation(own["pairs"].to_numpy(float), own["recall"].to_numpy(float))


def answers(found: pd.DataFrame) -> dict[tuple[str, int, str], tuple[Correlation, str]]:
    """The correlation over mechanisms and its `answer`, for each task, length and kind of keys of `matched`.

    The p-values are corrected for their number (Holm).
    """
    groups = found.groupby(["task", "n", "keys"], sort=False)
    each = {key: correlation(rows["pairs"].to_numpy(float), rows["recall"].to_numpy(float)) for key, rows in groups}
    known = [key for key, one in each.items() if not math.isnan(one.p)]
    ps = dict(zip(known, corrected([each[key].p for key in known]), strict=True))
    return {key: (one, answer(one, ps.get(key, math.nan))) for key, one in each.items()}


def capacity_and_recall(frame: pd.DataFrame) -> pd.DataFrame:
    """Whether capacity without training predicts trained recall: Spearman's correlation over mechanisms.

    One row for each task, length and kind of keys. The unit of replication is a mechanism: the interval extends to
    other mechanisms as far as these are a sample of them. `answer`: `predicts` by a permutation test, corrected for
    the rows (Holm); `does not` if the interval lies below 0.7 (half of the variance of ranks); else `undecided`.
    Controls are made to recall little: `without controls` is the correlation over the others, with its interval.
    """
    found = matched(frame)
    groups = found.groupby(["task", "n", "keys"], sort=False)
    rows = []
    for key, (one, word) in answers(found).items():
        group = groups.get_group(key)
        row = dict(zip(("task", "n", "keys"), key, strict=True)) | {"mechanisms": len(group), "answer": word}
        row |= {"Spearman": one.value, "low": one.low, "high": one.high, "p": one.p}
        others = without_controls(group)
        row |= {"without controls": others.value, "without, low": others.low, "without, high": others.high}
        dims = ", ".join(str(dim) for dim in sorted(set(group["head_dim"])))
        row |= {"head dim of the capacity": dims, "of": ", ".join(sorted(group["series"]))}
        rows.append(row | {"disturbed": disturbance(group)})
    return unless_quiet(pd.DataFrame(rows))
