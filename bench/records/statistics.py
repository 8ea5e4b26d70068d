"""Medians, ratios and crossovers with their intervals. Needs numpy only, for the table after a sweep.

Intervals of medians are bootstrap percentile intervals of the median (Efron 1979) at the expanded level of Hesterberg
2015, "What Teachers Should Know About the Bootstrap": the plain percentile interval covers only 88 % with seven
samples, the expanded one about 95 % (93.4 to 98.4 % with an odd number of samples). Intervals of means are Student's,
over independent units.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 2000
# With n samples, their whole range covers the median with probability 1 - 2^(1 - n) only: 94 % for five.
FEWEST = 6
# Two units say little about a third: Student's quantile is 12.7, and the spread of two values is very uncertain.
FEWEST_UNITS = 3
# Exact quantiles where the series of `_student_quantile` is too inaccurate.
_STUDENT = {1: 12.7062, 2: 4.3027, 3: 3.1824}


@dataclass(frozen=True)
class Interval:
    """A median, mean or exponent and its 95 % interval (NaN if there are too few units)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Ratio:
    """How many times faster b is than a: the median over rounds of a / b, its 95 % interval, a verdict on b."""

    median: float
    low: float
    high: float
    verdict: str
    """`faster`, `slower`, or `tie` if the interval contains 1 or there are fewer than `FEWEST` rounds."""


@dataclass(frozen=True)
class Crossover:
    """The length from which b stays faster than a (or a than b), and its 95 % interval.

    `low` is 0 if b may be ahead from the start, `high` is infinite if it may never get ahead for good.
    """

    length: float
    low: float
    high: float
    faster: str
    """`a` or `b`: the one that is ahead from `length` on."""


@dataclass(frozen=True)
class Comparison:
    """Two mechanisms in the same rounds at one length: `ratios` are the baseline's time over the other's in each."""

    baseline: str
    label: str
    seq_len: int
    batch_size: int
    ratios: ArrayLike = field(compare=False)
    setting: str = ""
    """All other settings; points of one curve have the same."""
    where: tuple[str, ...] = ()
    """Some of these settings in words."""


@dataclass(frozen=True)
class Overtaking:
    """Which mechanism is ahead from which length on, at one batch size or one number of tokens per batch."""

    baseline: str
    label: str
    batch: str
    """`batch size 4` or `8192 tokens per batch`, whichever is constant over the lengths."""
    where: tuple[str, ...]
    """As in `Comparison`."""
    crossover: Crossover
    faster: str
    """The mechanism that is ahead at the end."""
    slower: str


def median_interval(samples: ArrayLike) -> Interval:
    """The median of the samples with its bootstrap interval, or their range if there are fewer than `FEWEST`.

    Deterministic. Raises ValueError if there are no samples or one is not finite.
    """
    values = _observations("samples", samples)
    low, high = _percentiles(_resampled_medians(values, np.random.default_rng(0)), len(values))
    return Interval(float(np.median(values)), float(low), float(high))


def ratio_interval(a: ArrayLike, b: ArrayLike) -> Ratio:
    """How many times faster b is than a, from times of both in the same rounds.

    The ratios a / b are taken round by round, so that what slows a whole round cancels. They are taken in logarithms,
    so that exchanging a and b inverts the result exactly. Raises ValueError if the rounds do not pair up, if there are
    none, or if a time is not positive.
    """
    a, b = _times("a", a), _times("b", b)
    if len(a) != len(b):
        raise ValueError(f"b: must have as many rounds as a ({len(a)}), has {len(b)}")
    interval = median_interval(np.log(a / b))
    median, low, high = np.exp([interval.value, interval.low, interval.high]).tolist()
    tie = low <= 1 <= high or len(a) < FEWEST
    return Ratio(median, low, high, "tie" if tie else "faster" if low > 1 else "slower")


def crossover(lengths: Sequence[float], ratios: Sequence[ArrayLike]) -> Crossover | None:
    """Where one of a and b overtakes the other for good; None if the measured lengths show no crossing.

    The median log ratio is interpolated linearly over the logarithm of the length, between the two measured lengths
    around its last change of sign. The interval comes from resampling the rounds of every length; fewer than `FEWEST`
    decide nothing, as in `ratio_interval`: it is open at both ends. It says nothing of another run: every length is a
    cell of its own, and repeated cells differ by more than their rounds do.

    Args:
        lengths: sequence lengths; raises ValueError if they do not ascend.
        ratios: for each length, the time of a over that of b in each round, positive.
    """
    x = np.log(np.asarray(lengths, dtype=float))
    if len(x) == 0 or len(x) != len(ratios) or np.any(np.diff(x) <= 0):
        raise ValueError(f"lengths={list(lengths)}: must ascend and match ratios ({len(ratios)})")
    logs = [np.log(_times("ratios", values)) for values in ratios]
    medians = np.array([np.median(values) for values in logs])
    ahead = bool(medians[-1] > 0)
    length = _last_crossing(x, medians, ahead)
    if not 0 < length < np.inf:
        return None
    if min(len(values) for values in logs) < FEWEST:
        return Crossover(float(length), 0.0, math.inf, "b" if ahead else "a")
    generator = np.random.default_rng(0)
    resampled = np.stack([_resampled_medians(values, generator) for values in logs], axis=1)
    crossings = np.array([_last_crossing(x, row, ahead) for row in resampled])
    low, high = _percentiles(crossings, min(len(values) for values in logs), method="inverted_cdf")
    return Crossover(float(length), float(low), float(high), "b" if ahead else "a")


def overtakings(comparisons: Iterable[Comparison]) -> list[Overtaking]:
    """The crossovers of all pairs, sorted by name; if a length has several comparisons, the last one counts.

    Lengths form a curve if their batches agree: in size or in tokens, whichever has fewer different values.
    """
    pairs: dict[tuple[str, str, str], list[Comparison]] = defaultdict(list)
    for each in comparisons:
        pairs[each.baseline, each.label, each.setting].append(each)
    overtaken = []
    for (baseline, label, _), points in sorted(pairs.items()):
        for batch, curve in _curves(points):
            crossed = crossover(sorted(curve), [curve[length].ratios for length in sorted(curve)])
            if crossed is not None:
                order = (label, baseline) if crossed.faster == "b" else (baseline, label)
                overtaken.append(Overtaking(baseline, label, batch, points[0].where, crossed, *order))
    return overtaken


def _curves(points: Sequence[Comparison]) -> list[tuple[str, dict[int, Comparison]]]:
    sizes = {point.batch_size for point in points}
    same_size = len(sizes) <= len({point.batch_size * point.seq_len for point in points})
    curves: dict[int, dict[int, Comparison]] = defaultdict(dict)
    for point in points:
        curves[point.batch_size * (1 if same_size else point.seq_len)][point.seq_len] = point
    name = "batch size {}" if same_size else "{} tokens per batch"
    return [(name.format(batch), curve) for batch, curve in sorted(curves.items())]


def mean_interval(units: ArrayLike) -> Interval:
    """The mean with its interval by Student's t.

    Args:
        units: one value for each independent unit of replication. If a unit was measured several times, pass the mean
            (Cameron and Miller 2015, "A Practitioner's Guide to Cluster-Robust Inference"): what the measurements share
            is no extra evidence, and constant differences between them, as between heads, are no error.
    """
    values = _observations("units", units)
    value, half = float(values.mean()), _half_width(values)
    return Interval(value, value - half, value + half)


def root_mean_square(units: ArrayLike) -> Interval:
    """The root mean square, with its interval by the delta method and Student's t; `units` as in `mean_interval`.

    Pass one value per unit; where a unit was measured several times, their root mean square.
    """
    squares = np.square(_observations("units", units))
    root = float(np.sqrt(squares.mean()))
    half = _half_width(squares) / (2 * root) if root else _half_width(squares)
    return Interval(root, root - half, root + half)


def _half_width(values: Array) -> float:
    """Half the width of the interval of the values' mean."""
    if len(values) < FEWEST_UNITS:
        return math.nan
    return float(_student_quantile(len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))


def power_law(sizes: Sequence[float], trials: Sequence[ArrayLike]) -> Interval:
    """The exponent b of `root mean square = a size^b`: least squares in logarithms, and its 95 % bootstrap interval.

    The interval is the range of the resampled exponents for fewer than `FEWEST` trials, NaN for fewer than
    `FEWEST_UNITS`. `trials` has one dimension of independent observations for each size. Raises ValueError for
    fewer than two sizes, and for trials without observations or with one that is not finite.
    """
    x = np.log(np.asarray(sizes, dtype=float))
    if len(set(x)) < 2 or len(x) != len(trials):
        raise ValueError(f"sizes={list(sizes)}: must be at least two, with trials for each")
    squares = [np.square(_observations("trials", values)) for values in trials]
    generator = np.random.default_rng(0)
    resampled = [_resampled(values, generator).mean(axis=1) for values in squares]
    weights = (x - x.mean()) / np.square(x - x.mean()).sum()
    exponent = weights @ np.log([values.mean() for values in squares]) / 2
    least = min(len(values) for values in squares)
    ends = _percentiles(weights @ np.log(resampled) / 2, least) if least >= FEWEST_UNITS else (math.nan, math.nan)
    return Interval(float(exponent), *map(float, ends))


def _observations(name: str, samples: ArrayLike) -> Array:
    values = np.asarray(samples, dtype=float)
    if values.ndim != 1 or len(values) == 0 or not np.isfinite(values).all():
        raise ValueError(f"{name}: must be one dimension of at least one finite number, got {values!r:.80}")
    return values


def _times(name: str, samples: ArrayLike) -> Array:
    values = _observations(name, samples)
    if values.min() <= 0:
        raise ValueError(f"{name}: times must be positive")
    return values


def _resampled(values: Array, generator: np.random.Generator) -> Array:
    return values[generator.integers(len(values), size=(RESAMPLES, len(values)))]


def _resampled_medians(values: Array, generator: np.random.Generator) -> Array:
    return np.median(_resampled(values, generator), axis=1)


def _percentiles(resampled: Array, n: int, method: str = "linear") -> Array:
    """The ends of the expanded percentile interval of a statistic of n observations; its range if n is too small."""
    degrees = max(n - 1, 1)
    tail = NormalDist().cdf(-np.sqrt(n / degrees) * _student_quantile(degrees)) if n >= FEWEST else 0.0
    return np.quantile(resampled, [tail, 1 - tail], method=method)  # type: ignore[call-overload, no-any-return]


def _student_quantile(degrees: int) -> float:
    """Upper quantile of Student's t: Abramowitz and Stegun, equation 26.7.5, to 0.01 from 4 degrees on."""
    if degrees in _STUDENT:
        return _STUDENT[degrees]
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    second, third = 5 * z**5 + 16 * z**3 + 3 * z, 3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z
    return z + (z**3 + z) / (4 * degrees) + second / (96 * degrees**2) + third / (384 * degrees**3)


def _last_crossing(x: Array, log_ratios: Array, ahead: bool) -> float:
    """The length at the last change of sign to `ahead`; 0 if it never changes, infinite if it does not end `ahead`."""
    positive = log_ratios > 0
    if positive[-1] != ahead:
        return math.inf
    behind = np.flatnonzero(positive != ahead)
    if len(behind) == 0:
        return 0.0
    i = behind[-1]
    fraction = log_ratios[i] / (log_ratios[i] - log_ratios[i + 1])
    return float(np.exp(x[i] + fraction * (x[i + 1] - x[i])))
