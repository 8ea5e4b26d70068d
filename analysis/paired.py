"""Paired comparisons of trained models: differences of losses on the same data, their intervals and verdicts.

Two models with the same seed read the same examples in the same order and are tested on the same units (documents of a
text, groups of examples). A difference varies from seed to seed and from unit to unit, both at random. Its variance is
that of a crossed design with two random effects (Searle, Casella and McCulloch 1992, Variance Components, chapter 4).
Critical values are those of Cochran and Cox (1957, Experimental Designs): Student's of seeds and of units, weighted by
their parts of the variance. Satterthwaite's degrees of freedom are estimated from the same parts: where few seeds
agree by chance, not only the variance is too small but also the critical value, and families of 20 comparisons with
five seeds had a false positive in 27 of 200 simulated experiments. Families are corrected by Holm (1979): 5 % for
differences and 5 % for equivalences, each.

Where the same seeds chose the best of several learning rates (or of several controls) and are compared, the best looks
better than it is: of two rates that are as good as the other model, the better one was better than it in 4.3 % of
simulated experiments with five seeds, not in 2.5 %, of three in 5.6 %. So what speaks for a model is tested at the
level divided by the number of those it was chosen from (Bonferroni). Those that are clearly worse than the best do not
count: other seeds would not have chosen them.

Two assumptions do not always hold. The units of generated tasks are drawn anew for each seed, so they lie within seeds:
then intervals are too wide. Seeds of which some learn nothing at all are not normal: five that all learn only exclude
that more than 45 % do not (at 95 %), also where their losses are equivalent.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

Array = NDArray[np.float64]
Parts = Sequence[tuple[Any, Any]]
"""Of a variance: degrees of freedom and variance of each part, or arrays of them."""
SMALLEST = 1e-300
"""Smaller probabilities are 0."""

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
        parts: of the variance, by seeds and by units.
        between_seeds: the variance of the difference from one seed to another, on all units.
        between_units: the part of `variance` that more seeds do not lower.
        seeds: number of seeds.
        units: number of units.
        chosen_from: by these seeds the first and the second were chosen as the best of so many that are nearly as good.
    """

    value: float
    variance: float
    parts: Parts
    between_seeds: float
    between_units: float
    seeds: int
    units: int
    chosen_from: tuple[int, int] = (1, 1)

    def interval(self) -> tuple[float, float]:
        """Confidence interval that covers the difference with probability 1 - `LEVEL`.

        The upper end is what speaks for the first: of the best of several it is further away, as the lower end is if
        the second was chosen.
        """
        below, above = (float(_critical(LEVEL / 2 / of, self.parts)) for of in reversed(self.chosen_from))
        error = math.sqrt(self.variance)
        return self.value - below * error, self.value + above * error

    @property
    def p(self) -> float:
        """Two-sided p-value of the hypothesis that there is no difference; 1 if losses are not finite."""
        if self.variance == 0:
            return 1.0 if self.value == 0 else 0.0
        return min(1.0, 2 * self._better_of * _tail(abs(self.value) / math.sqrt(self.variance), self.parts))

    @property
    def _better_of(self) -> int:
        """From how many the better one was chosen."""
        first, second = self.chosen_from
        return second if self.value > 0 else first

    def p_equivalent(self, margin: float = MARGIN) -> float:
        """p-value of the hypothesis that the difference is beyond the margin: two one-sided tests (Schuirmann 1987)."""
        if self.variance == 0:
            return 0.0 if abs(self.value) < margin else 1.0
        error = math.sqrt(self.variance)
        sides = zip(self.chosen_from, (margin - self.value, margin + self.value), strict=True)
        return min(1.0, max(of * _tail(within / error, self.parts) for of, within in sides))

    def seeds_needed(self, comparisons: int = 1) -> int | None:
        """Seeds that settle the comparison with a chance of `POWER`, if the estimates are right.

        It is settled if a test at the level divided by `comparisons` finds the difference, or its equivalence. None if
        `MOST_SEEDS` are too few; with fewer than `FEWEST_SEEDS` nothing is settled.
        """
        level = LEVEL / comparisons
        seeds = np.arange(max(self.seeds + 1, FEWEST_SEEDS), MOST_SEEDS + 1)
        of_seeds = self.between_seeds / seeds
        error = np.sqrt(of_seeds + self.between_units)
        parts = [(seeds - 1, of_seeds), (self.units - 1, self.between_units)]
        differs = _critical(level / 2 / self._better_of, parts) + _critical(1 - POWER, parts)
        # Either of the two one-sided tests may miss it.
        missed = _critical((1 - POWER) / 2, parts)
        equal = _critical(level / max(self.chosen_from), parts)
        size = abs(self.value)
        enough = seeds[(differs * error < size) | ((equal + missed) * error < MARGIN - size)]
        return int(enough[0]) if enough.size else None


def difference(first: Array, second: Array, chosen_from: tuple[int, int] = (1, 1)) -> Difference:
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
        parts=((seeds - 1, float(of_seeds)), (units - 1, float(of_units))),
        between_seeds=float(of_seeds * seeds),
        between_units=float(max(of_units - of_rest, 0)),
        seeds=seeds,
        units=units,
        chosen_from=chosen_from,
    )


def _critical(level: float, parts: Parts) -> Any:
    """The value that a difference over its standard error exceeds with this probability, if there is no difference."""
    total = sum(part for _, part in parts)
    if not np.any(total):
        return _upper(level, reduce(np.minimum, (freedom for freedom, _ in parts)))
    return sum(part * _upper(level, freedom) for freedom, part in parts) / total


def _tail(value: float, parts: Parts) -> float:
    """The level whose critical value this is; it lies between the tails of Student's t of the parts."""
    if math.isnan(value):  # of losses that are not finite
        return 1.0
    if value < 0:
        return 1 - _tail(-value, parts)
    tails = [float(special.stdtr(freedom, -value)) for freedom, _ in parts]
    least, most = (math.log(max(tail, SMALLEST)) for tail in (min(tails), max(tails)))

    def too_much(log: float) -> float:
        return _critical(math.exp(log), parts) - value

    # The ends may be off by a rounding error.
    least, most = least - 1e-9, most + 1e-9
    return math.exp(optimize.brentq(too_much, least, most)) if too_much(least) > 0 else 0.0


def _upper(level: float, freedom: Any) -> Any:
    """The value that Student's t exceeds with this probability: `stats.t.isf`, 20 times faster."""
    return -special.stdtrit(freedom, level)


def corrected(ps: Sequence[float]) -> list[float]:
    """Holm's (1979) correction: the chance that any of the differences is a false positive stays at most LEVEL."""
    values = np.array(ps, dtype=float)
    order = np.argsort(values, kind="stable")
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(np.minimum(1, np.arange(len(ps), 0, -1) * values[order]))
    return [float(p) for p in adjusted]


def verdicts(family: Iterable[Difference], margin: float = MARGIN) -> list[tuple[float, str]]:
    """Of each comparison of a family: the p-value of no difference, corrected by Holm, and its verdict in a word.

    The first is `better`, `worse`, `as good as` the second (within the margin, corrected for itself) or `undecided`.
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
