"""Paired comparisons of trained models: differences of losses on the same data, their intervals and verdicts.

Two models with the same seed read the same examples in the same order and are tested on the same units (documents of
a text, groups of examples). A difference varies from seed to seed and from unit to unit, both at random. Its variance
is that of a crossed design with two random effects (Searle, Casella and McCulloch 1992, Variance Components, chapter
4), with Satterthwaite's (1946) degrees of freedom. Families of comparisons are corrected by Holm (1979).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Array = NDArray[np.float64]

LEVEL = 0.05
MARGIN = 0.02
"""Equivalence margin in nats: losses whose difference lies within it are as good as each other."""
POWER = 0.8
FEWEST_SEEDS = 5
MOST_SEEDS = 1000
BETTER, WORSE, EQUIVALENT, UNDECIDED = "better", "worse", "as good as", "undecided"


@dataclass(frozen=True)
class Difference:
    """The mean difference of two losses, in nats: below 0 the first is better.

    Attributes:
        value: the mean over seeds and units.
        variance: the variance of the mean.
        freedom: degrees of freedom of its Student's t distribution.
        between_seeds: the variance of the difference from one seed to another, on all units.
        between_units: the part of `variance` that more seeds do not lower.
        seeds: number of seeds.
        units: number of units.
    """

    value: float
    variance: float
    freedom: float
    between_seeds: float
    between_units: float
    seeds: int
    units: int

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Confidence interval that covers the difference with probability 1 - level."""
        half = _upper(level / 2, self.freedom) * math.sqrt(self.variance)
        return self.value - half, self.value + half

    @property
    def p(self) -> float:
        """Two-sided p-value of the hypothesis that there is no difference."""
        if self.variance == 0:
            return 1.0 if self.value == 0 else 0.0
        return float(2 * stats.t.sf(abs(self.value) / math.sqrt(self.variance), self.freedom))

    def p_equivalent(self, margin: float = MARGIN) -> float:
        """p-value of the hypothesis that the difference is beyond the margin: two one-sided tests (Schuirmann 1987)."""
        within = margin - abs(self.value)
        if self.variance == 0:
            return 0.0 if within > 0 else 1.0
        return float(stats.t.sf(within / math.sqrt(self.variance), self.freedom))

    def seeds_needed(self, comparisons: int = 1, margin: float = MARGIN) -> int | None:
        """Seeds that settle the comparison with a chance of `POWER`, if the estimates are right.

        It is settled if a test at the level divided by `comparisons` finds the difference, or its equivalence. None if
        `MOST_SEEDS` are too few; with fewer than `FEWEST_SEEDS` nothing is settled.
        """
        level = LEVEL / comparisons
        for seeds in range(max(self.seeds + 1, FEWEST_SEEDS), MOST_SEEDS + 1):
            of_seeds = self.between_seeds / seeds
            error = math.sqrt(of_seeds + self.between_units)
            parts = [(seeds - 1, of_seeds), (self.units - 1, self.between_units)]
            freedom = _freedom(of_seeds + self.between_units, parts)
            differs = (_upper(level / 2, freedom) + _upper(1 - POWER, freedom)) * error < abs(self.value)
            # Either of the two one-sided tests may miss it.
            missed = _upper((1 - POWER) / 2, freedom)
            if differs or (_upper(level, freedom) + missed) * error < margin - abs(self.value):
                return seeds
        return None


def difference(first: Array, second: Array) -> Difference:
    """Difference of two arrays of losses `(seeds, units)`, paired by seed and unit; both sizes must be at least two."""
    differences = first - second
    seeds, units = differences.shape
    by_seed, by_unit, mean = differences.mean(1), differences.mean(0), float(differences.mean())
    rest = differences - by_seed[:, None] - by_unit + mean
    # Mean squares over their counts: the variance of the mean due to seeds and rest, units and rest, or the rest alone.
    of_seeds = by_seed.var(ddof=1) / seeds
    of_units = by_unit.var(ddof=1) / units
    of_rest = (rest**2).sum() / ((seeds - 1) * (units - 1)) / (seeds * units)
    variance = max(of_seeds + of_units - of_rest, of_seeds, of_units)
    return Difference(
        value=mean,
        variance=float(variance),
        freedom=_freedom(variance, [(seeds - 1, of_seeds), (units - 1, of_units)]),
        between_seeds=float(of_seeds * seeds),
        between_units=float(max(of_units - of_rest, 0)),
        seeds=seeds,
        units=units,
    )


def _freedom(variance: float, parts: Sequence[tuple[int, float]]) -> float:
    """Satterthwaite's degrees of freedom of a sum of variances (each with its own); at least the smallest of theirs."""
    least = min(freedom for freedom, _ in parts)
    if variance == 0:
        return least
    return float(max(variance**2 / sum(part**2 / freedom for freedom, part in parts), least))


def _upper(level: float, freedom: float) -> float:
    """The value that Student's t exceeds with this probability: `stats.t.isf`, 20 times faster."""
    return -float(special.stdtrit(freedom, level))


def corrected(ps: Sequence[float]) -> list[float]:
    """Holm's (1979) correction: the chance that any of the differences is a false positive stays at most LEVEL."""
    values = np.array(ps, dtype=float)
    order = np.argsort(values, kind="stable")
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(np.minimum(1, np.arange(len(ps), 0, -1) * values[order]))
    return [float(p) for p in adjusted]


def verdicts(family: Iterable[Difference], margin: float = MARGIN) -> list[tuple[float, str]]:
    """Of each comparison of a family: the p-value of no difference, corrected by Holm, and its verdict in a word.

    The first is `better`, `worse`, `as good as` the second (within the margin, corrected as well) or `undecided`.
    """
    family = list(family)
    ps, equivalent = corrected([one.p for one in family]), corrected([one.p_equivalent(margin) for one in family])
    return [(p, _word(one, p, other)) for one, p, other in zip(family, ps, equivalent, strict=True)]


def verdict(one: Difference) -> str:
    """The verdict of a comparison that is a family of its own."""
    return verdicts([one])[0][1]


def _word(one: Difference, p: float, p_equivalent: float) -> str:
    if one.seeds < FEWEST_SEEDS:
        return UNDECIDED
    if p_equivalent < LEVEL:
        return EQUIVALENT
    if p < LEVEL:
        return BETTER if one.value < 0 else WORSE
    return UNDECIDED
