"""Paired comparisons of what mechanisms have learned: differences on the same data, and what can be said of them.

Two models of one seed read the same examples in the same order and are tested on the same units (stretches of a text,
groups of examples). A difference varies from seed to seed and from unit to unit; both are chance, so that its variance
has the parts of a crossed design with two random effects (Searle, Casella and McCulloch 1992, Variance Components,
chapter 4) and the degrees of freedom of Satterthwaite (1946). Families are corrected by Holm (1979).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

LEVEL = 0.05
MARGIN = 0.02
"""Nats below which two losses are called as good as each other."""
FEWEST_SEEDS = 5
MOST_SEEDS = 1000
BETTER, WORSE, EQUIVALENT, UNDECIDED = "better", "worse", "as good as", "undecided"


@dataclass(frozen=True)
class Difference:
    """The mean difference of two losses, in nats: below 0 the first is better.

    Attributes:
        value: the mean over seeds and units.
        variance: of the mean.
        freedom: degrees of freedom of its Student's t.
        between_seeds: the variance of the difference from one seed to another, on all units.
        between_units: the part of `variance` that more seeds do not lower.
        seeds: how many.
        units: how many.
    """

    value: float
    variance: float
    freedom: float
    between_seeds: float
    between_units: float
    seeds: int
    units: int

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """That covers the difference with a probability of 1 - level."""
        half = stats.t.isf(level / 2, self.freedom) * math.sqrt(self.variance)
        return self.value - half, self.value + half

    @property
    def p(self) -> float:
        """The probability of so large a difference, in either direction, where there is none."""
        if self.variance == 0:
            return 1.0 if self.value == 0 else 0.0
        return float(2 * stats.t.sf(abs(self.value) / math.sqrt(self.variance), self.freedom))

    def is_equivalent(self, margin: float = MARGIN) -> bool:
        """Two one-sided tests (Schuirmann 1987): the interval of twice the level lies inside the margin."""
        low, high = self.interval(2 * LEVEL)
        return -margin < low and high < margin

    def seeds_needed(self, comparisons: int = 1, margin: float = MARGIN) -> int | None:
        """Seeds that would decide, if the difference is what it seems to be; None where no number of them would.

        Either the interval, of a level divided by the `comparisons`, would not reach 0, or that of equivalence would
        lie inside the margin.
        """
        for seeds in range(self.seeds + 1, MOST_SEEDS + 1):
            of_seeds = self.between_seeds / seeds
            error = math.sqrt(of_seeds + self.between_units)
            parts = [(seeds - 1, of_seeds), (self.units - 1, self.between_units)]
            freedom = _freedom(of_seeds + self.between_units, parts)
            differs = stats.t.isf(LEVEL / 2 / comparisons, freedom) * error < abs(self.value)
            if differs or stats.t.isf(LEVEL, freedom) * error < margin - abs(self.value):
                return seeds
        return None


def difference(first: Array, second: Array) -> Difference:
    """Of losses `(seeds, units)`, row by row of one seed and column by column of one unit; two of each at least."""
    differences = first - second
    seeds, units = differences.shape
    by_seed, by_unit, mean = differences.mean(1), differences.mean(0), float(differences.mean())
    rest = differences - by_seed[:, None] - by_unit + mean
    # Mean squares over what they are divided by: each is the variance of the mean that its effect and the rest make.
    of_seeds = by_seed.var(ddof=1) / seeds
    of_units = by_unit.var(ddof=1) / units
    of_rest = (rest**2).sum() / ((seeds - 1) * (units - 1)) / (seeds * units)
    variance = max(of_seeds + of_units - of_rest, of_seeds, of_units)
    return Difference(
        value=mean,
        variance=float(variance),
        freedom=_freedom(variance, [(seeds - 1, of_seeds), (units - 1, of_units)]),
        between_seeds=float(max(of_seeds - of_rest, 0) * seeds),
        between_units=float(max(of_units - of_rest, 0)),
        seeds=seeds,
        units=units,
    )


def _freedom(variance: float, parts: Sequence[tuple[int, float]]) -> float:
    """Satterthwaite's, of parts with their own degrees; no fewer than the smallest of these."""
    least = min(freedom for freedom, _ in parts)
    if variance == 0:
        return least
    return float(max(variance**2 / sum(part**2 / freedom for freedom, part in parts), least))


def corrected(ps: Sequence[float]) -> list[float]:
    """Each p, corrected for their number: the chance that any is wrongly said to differ stays LEVEL (Holm 1979)."""
    values = np.array(ps, dtype=float)
    order = np.argsort(values, kind="stable")
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(np.minimum(1, np.arange(len(ps), 0, -1) * values[order]))
    return [float(p) for p in adjusted]


def verdict(one: Difference, p: float, margin: float = MARGIN) -> str:
    """What may be said of the first: `better`, `worse`, `as good as` or `undecided`; `p` is corrected."""
    if one.seeds < FEWEST_SEEDS:
        return UNDECIDED
    if one.is_equivalent(margin):
        return EQUIVALENT
    if p < LEVEL:
        return BETTER if one.value < 0 else WORSE
    return UNDECIDED
