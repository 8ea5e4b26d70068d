"""Controls: whether a task can tell mechanisms apart, and how each mechanism compares with the controls.

If a model learns no more from the whole context than from a window, or from each token alone, nothing is ranked. The
positive control is exact softmax. Negative controls are the mechanisms registered as controls (`local`, `identity`,
`v_mean`) and models without attention. Whether a task is diagnostic, and which control is the best, is told by
accuracy in classification, by loss in every other task; differences to it are of losses in all.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.paired import BETTER, FEWEST_SEEDS, UNDECIDED, WORSE, Array, Difference, difference, verdict, verdicts
from analysis.selection import MissingRecords, disturbance, unless_quiet
from analysis.training import panels, trained_cells

BY_UNIT = "loss_by_unit"
ACCURACY = "accuracy"
POINTS = 0.02
"""Share of examples: a classification task is diagnostic if softmax is more accurate than each control by more."""
DIAGNOSTIC, BLIND = "diagnostic", "not diagnostic here"
INTERVALS = "95 % intervals over both that allow for the choice of learning rates"
"""In words for captions."""
NO_ATTENTION = "identity"
"""The control whose tokens see no others: what learns no more than it has learned nothing from the context."""


class Losses(dict[int, Array]):
    """Losses per unit of replication (or error rates), by seed.

    Attributes:
        chosen_from: by these seeds the model was chosen as the best of so many that are not clearly worse, of learning
            rates or of controls.
    """

    def __init__(self, by_seed: Mapping[int, Array] | None = None, chosen_from: int = 1) -> None:
        super().__init__(by_seed or {})
        self.chosen_from = chosen_from


@dataclass(frozen=True)
class Diagnosis:
    """Whether the controls show that a task at a length can tell mechanisms apart.

    Attributes:
        is_diagnostic: the positive control beats every negative one; in classification by more than `POINTS`.
        sentence: why, with the smallest difference and its interval, which allows for the choice of the best control
            as those of all comparisons do (`as_chosen`).
        positive: the series of the best positive control (by loss; in classification by accuracy) or None.
        negative: the same of the negative controls.
    """

    is_diagnostic: bool
    sentence: str
    positive: str | None
    negative: str | None

    @property
    def word(self) -> str:
        """`diagnostic` or `not diagnostic here`."""
        return DIAGNOSTIC if self.is_diagnostic else BLIND


def error_rates(rows: pd.DataFrame) -> dict[str, Losses]:
    """For classification: error rates per unit, in the form of `losses`.

    Every series has the same number of units; a unit without examples has NaN.
    """
    found = losses(rows, ACCURACY)
    units = max((len(each) for of in found.values() for each in of.values()), default=0)

    def wrong(right: Array) -> Array:
        return np.pad(1 - right, (0, units - len(right)), constant_values=np.nan)

    return {
        name: Losses({seed: wrong(right) for seed, right in of.items()}, of.chosen_from) for name, of in found.items()
    }


def losses(rows: pd.DataFrame, metric: str = BY_UNIT) -> dict[str, Losses]:
    """Test losses (or another metric) per unit of replication, by series and seed, of one task and length.

    Models were `chosen_from` so many rates, if the rows have this column (`analysis.training.trained_cells`).
    """
    is_found = (rows["metric"] == metric) & rows["seed"].notna()
    found = rows[is_found]
    # Older units of a text are stretches of 4,096 tokens, several of one file: their neighbours are alike.
    are_stretches = (found["inputs"] == "language_modelling") & found["units"].isna() & metric.endswith("_by_unit")
    names = found["series"].astype(str)
    near = found["chosen_from"] if "chosen_from" in found else pd.Series(1, found.index)
    by_series = {name: Losses(chosen_from=int(own.max())) for name, own in near.groupby(names)}
    for name, seed, raw, merge in zip(found["series"], found["seed"], found["raw"], are_stretches, strict=True):
        by_series[str(name)][int(seed)] = _merged(raw) if merge else raw
    return by_series


def units_of(rows: pd.DataFrame) -> str:
    """What the units of replication of one task are, in words."""
    older = "groups of stretches" if (rows["inputs"] == "language_modelling").all() else "groups of examples"
    return str(next(iter(rows["units"].dropna()), older))


def _merged(by_stretch: Array, count: int = 4) -> Array:
    """About so many neighbouring units as one unit, without a change of the mean."""
    parts = np.array_split(by_stretch, max(1, len(by_stretch) // count))
    return np.array([part.sum() for part in parts]) * len(parts) / len(by_stretch)


def compared(first: Losses, second: Losses) -> Difference | None:
    """The difference over the seeds that both series have; None if these or the units are fewer than two.

    Runs with another number of units were tested on something else: the most frequent number is taken.
    """
    units = Counter(len(first[seed]) for seed in first.keys() & second.keys() if len(first[seed]) == len(second[seed]))
    count = units.most_common(1)[0][0] if units else 0
    seeds = sorted(seed for seed in first.keys() & second.keys() if len(first[seed]) == len(second[seed]) == count)
    if len(seeds) < 2 or count < 2:
        return None
    differences = of_tested_units([first[seed] - second[seed] for seed in seeds])
    if differences.shape[1] < 2:
        return None
    return difference(differences, np.zeros_like(differences), (first.chosen_from, second.chosen_from))


def of_tested_units(by_seed: Collection[Array]) -> Array:
    """`(seeds, units)` without units of which no seed tested an example; where one seed did not, it has its mean."""
    values = np.stack(tuple(by_seed))
    values = values[:, ~np.isnan(values).all(0)]
    return np.where(np.isnan(values), np.nanmean(values, 1, keepdims=True), values)


def diagnose(rows: pd.DataFrame) -> Diagnosis:
    """The diagnosis of one task and length."""
    of_classes = bool((rows["metric"] == ACCURACY).any())
    by_series = error_rates(rows) if of_classes else losses(rows)
    positives, negatives = _candidates(rows, by_series)
    positive, negative = (
        min(names, key=lambda name: mean(by_series[name]), default=None) for names in (positives, negatives)
    )
    if positive is None or negative is None:
        missing = "a control (local, identity)" if negative is None else "an exact softmax"
        return Diagnosis(False, f"{missing} with losses by unit is missing", positive, negative)
    found: list[tuple[bool, float, str]] = []
    units, best = units_of(rows), best_of(positives, positive, by_series)
    # All controls are to be beaten, so none is chosen: the choice of the best one is only in what is said.
    chosen = {**by_series, negative: best_of(negatives, negative, by_series)}
    for name in negatives:
        one = compared(best, by_series[name])
        if one is None or one.seeds < FEWEST_SEEDS:
            has = 0 if one is None else one.seeds
            return Diagnosis(False, f"{positive} and {name} share {has} seeds, not {FEWEST_SEEDS}", positive, negative)
        pair = [f"{each}, {_right(by_series[each])}" if of_classes else each for each in (positive, name)]
        sentence = f"{pair[0]} against {pair[1]}: {said(compared(best, chosen[name]) or one, of_classes, units)}"
        is_better = one.interval()[1] < -POINTS if of_classes else verdict(one) == BETTER
        is_better = is_better and unless_diverged(BETTER, (positive, name), rows) == BETTER
        found.append((bool(is_better), -one.value, sentence))
    is_diagnostic, _, sentence = min(found)
    return Diagnosis(is_diagnostic, sentence, positive, negative)


def _candidates(rows: pd.DataFrame, by_series: Mapping[str, Losses]) -> tuple[list[str], list[str]]:
    """The series of positive and those of negative controls."""
    kinds = rows.drop_duplicates("series").set_index("series")
    exact = kinds["exact"] & (kinds["function"] == "softmax")
    return [name for name in by_series if exact[name]], [name for name in by_series if kinds["control"][name]]


def as_chosen(rows: pd.DataFrame, by_series: Mapping[str, Losses], found: Diagnosis) -> dict[str, Losses]:
    """The same losses or error rates, those of the best controls as the best of all controls of their kind."""
    both = zip(_candidates(rows, by_series), (found.positive, found.negative), strict=True)
    chosen = {best: best_of(names, best, by_series) for names, best in both if best and best in by_series}
    return {**by_series, **chosen}


def best_of(names: Collection[str], best: str, by_series: Mapping[str, Losses]) -> Losses:
    """The losses of the best of these series, as of a model that was chosen from all that are not clearly worse."""
    own = by_series[best]
    worse = {name for name in names if (one := compared(by_series[name], own)) and one.interval()[0] > 0}
    return Losses(own, sum(by_series[name].chosen_from for name in names if name not in worse))


def mean(by_seed: Mapping[int, Array]) -> float:
    """The mean over seeds and units."""
    return float(np.mean([np.nanmean(of) for of in by_seed.values()]))


def _right(errors: Losses) -> str:
    """`34.1 % right`, the mean over seeds and units: that of guessing says that nobody learned the task."""
    return f"{100 * (1 - mean(errors)):.1f} % right"


def said(one: Difference, of_classes: bool, units: str) -> str:
    """`-0.051 nats, 95 % interval -0.060 to -0.042 over 5 seeds and 32 units`; classification: points of accuracy."""
    ends, over = one.interval(), f"over {one.seeds} seeds and {one.units} {units}"
    if of_classes:
        low, high = sorted(-100 * end for end in ends)
        return f"{-100 * one.value:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f} {over}"
    return f"{_nats(one.value)} nats, 95 % interval {_nats(ends[0])} to {_nats(ends[1])} {over}"


def _nats(value: float) -> str:
    """Three digits after the point, or, if these are zero, one that is not."""
    return f"{value:+.3f}" if abs(value) >= 0.0005 or value == 0 else f"{value:+.1g}"


def diagnoses(data: pd.DataFrame) -> dict[tuple[str, int], Diagnosis]:
    """The diagnosis of each task and length; `data` comes from `analysis.training.trained_cells`."""
    return {key: diagnose(rows) for key, rows in panels(data)}


def notes(data: pd.DataFrame) -> list[str]:
    """Caption sentences that say which panels are diagnostic and which are not; a shared reason is named once."""
    found = diagnoses(data)
    by_reason: dict[tuple[str, str], dict[str, list[int]]] = {}
    for (kind, n), one in found.items():
        by_reason.setdefault((one.word, one.sentence), {}).setdefault(kind, []).append(n)
    sentences = []
    for word in (BLIND, DIAGNOSTIC):
        reasons = [
            f"{_panels(tasks, len(by_reason) == 1 < len(found))} ({sentence})"
            for (of_word, sentence), tasks in by_reason.items()
            if of_word == word
        ]
        sentences += [f"{word[0].upper()}{word[1:]}: {'; '.join(reasons)}."] if reasons else []
    return sentences


def _panels(tasks: dict[str, list[int]], is_all: bool) -> str:
    if is_all:
        return "all that is shown"
    return ", ".join(f"{kind}, n = {' and '.join(f'{n:,}' for n in lengths)}" for kind, lengths in tasks.items())


def control_comparisons(frame: pd.DataFrame) -> pd.DataFrame:
    """Each mechanism against the best negative control, softmax and no attention: differences of test losses, verdicts.

    Below 0 nats the mechanism is better; 95 % intervals are over seeds and `units`, groups of test examples. They and
    `p (Holm)` allow for what the same seeds chose: the learning rate and the best control. `p (Holm)` is corrected over
    the comparisons of a task and length, each counted once. If the task is not diagnostic, nothing is ranked; what
    diverged with a seed is neither better nor as good. `seeds needed` settle an undecided comparison with a chance of
    80 %, if the estimates are right; `hours needed` is the time to train both; empty if more seeds alone would not
    settle it.
    """
    data, _ = trained_cells(frame)
    table = pd.DataFrame([row for key, rows in panels(data) for row in comparisons(rows, key)])
    if table.empty:
        raise MissingRecords(NEEDS)
    return unless_quiet(table)


NEEDS = "needs bench=train of a mechanism and a control with losses by unit and two seeds or more"


def unless_diverged(word: str, pair: tuple[str, str], rows: pd.DataFrame) -> str:
    """The verdict on the first of a pair, or undecided: seeds that are left are those with which it went well."""
    diverged = set(rows.loc[rows["status"] == "nonfinite", "series"])
    ahead = {BETTER: set(pair[:1]), WORSE: set(pair[1:])}.get(word, set(pair))
    return UNDECIDED if ahead & diverged else word


def comparisons(rows: pd.DataFrame, key: tuple[str, int]) -> list[dict[str, Any]]:
    """The rows of `control_comparisons` for one task and length (`key`)."""
    found = diagnose(rows)
    by_series = as_chosen(rows, losses(rows), found)
    anchors = [name for name in (found.negative, found.positive) if name]
    if NO_ATTENTION in by_series and NO_ATTENTION not in anchors:
        anchors.append(NO_ATTENTION)
    # Two anchors are compared once.
    pairs = [(name, anchor) for i, anchor in enumerate(anchors) for name in by_series if name not in anchors[: i + 1]]
    both = {pair: compared(*(by_series[name] for name in pair)) for pair in pairs}
    known = {pair: one for pair, one in both.items() if one is not None}
    cells = rows.drop_duplicates("cell_id")[["series", "duration_s", "disturbance"]]
    hours = cells.groupby("series")["duration_s"].mean() / 3600
    table = []
    for ((name, anchor), one), (p, word) in zip(known.items(), verdicts(known.values()), strict=True):
        needed = one.seeds_needed(len(known)) if word == UNDECIDED else None
        word = unless_diverged(word, (name, anchor), rows)
        row: dict[str, Any] = {"task": key[0], "n": key[1], "attention": name, "against": anchor, **numbers(one, p)}
        row |= {"verdict": word if found.is_diagnostic else BLIND, "seeds needed": needed}
        row |= {"hours needed": needed and needed * (hours[name] + hours[anchor])}
        table.append(row | {"disturbed": disturbance(cells[cells["series"].isin([name, anchor])])})
    return [*table, *(_other_way_round(row) for row in table if row["attention"] in anchors)]


def numbers(one: Difference, p: float) -> dict[str, float]:
    """A comparison's columns in a table; `p` is corrected for its family."""
    low, high = one.interval()
    known = {"difference (nats)": one.value, "low": low, "high": high, "p (Holm)": p}
    return known | {"seeds": one.seeds, "units": one.units}


def _other_way_round(row: dict[str, Any]) -> dict[str, Any]:
    """The same comparison, read from its second mechanism."""
    names = {"attention": row["against"], "against": row["attention"]}
    ends = {"difference (nats)": -row["difference (nats)"], "low": -row["high"], "high": -row["low"]}
    return row | names | ends | {"verdict": {BETTER: WORSE, WORSE: BETTER}.get(row["verdict"], row["verdict"])}
