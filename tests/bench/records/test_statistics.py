"""Intervals against their coverage on known distributions, crossovers against closed forms."""

import numpy as np
import pytest
from scipy import stats

from bench.records.statistics import (
    FEWEST,
    Interval,
    crossover,
    mean_interval,
    median_interval,
    power_law,
    ratio_interval,
    root_mean_square,
)


@pytest.mark.parametrize("n", [6, 7, 20])
def test_the_interval_covers_the_median(n):
    rng = np.random.default_rng(0)
    found = [median_interval(rng.lognormal(1.0, 0.5, n)) for _ in range(300)]
    covered = np.mean([one.low <= np.e <= one.high for one in found])
    # Binomial standard error 1.3 %; the plain percentile interval would have 88 % at n = 7, found with power 99 %.
    assert 0.925 <= covered <= 0.995


def test_identical_contestants_tie_in_95_percent():
    rng = np.random.default_rng(1)
    verdicts = []
    for _ in range(300):
        drift = np.linspace(1, 3, 20)
        a, b = (drift * rng.lognormal(0, 0.03, 20) for _ in "ab")
        verdicts.append(ratio_interval(a, b).verdict)
    assert 0.925 <= verdicts.count("tie") / 300 <= 0.985
    assert verdicts.count("faster") > 0 and verdicts.count("slower") > 0


def test_exchanging_the_two_inverts_the_ratio():
    rng = np.random.default_rng(2)
    a, b = rng.lognormal(0.2, 0.1, 15), rng.lognormal(0, 0.1, 15)
    forth, back = ratio_interval(a, b), ratio_interval(b, a)
    assert (forth.verdict, back.verdict) == ("faster", "slower")
    assert forth.median == pytest.approx(1 / back.median)
    # The ends come from the same resamples; interpolated quantiles mirror to rounding.
    assert (forth.low, forth.high) == pytest.approx((1 / back.high, 1 / back.low))


def test_few_rounds_are_no_claim():
    assert ratio_interval([2.0] * (FEWEST - 1), [1.0] * (FEWEST - 1)).verdict == "tie"
    assert ratio_interval([2.0] * FEWEST, [1.0] * FEWEST).verdict == "faster"
    few = median_interval([3.0, 1.0, 2.0])
    assert (few.low, few.value, few.high) == (1.0, 2.0, 3.0)


def test_the_crossover_of_power_laws_is_exact():
    # a = n^2 / 3000 overtakes b = n / 1 at n = 3000, and power laws are straight lines in log-log.
    lengths = [512, 1024, 2048, 4096, 8192]
    ratios = [np.full(8, n / 3000) for n in lengths]
    found = crossover(lengths, ratios)
    assert found.length == pytest.approx(3000) and found.faster == "b"
    assert (found.low, found.high) == pytest.approx((3000, 3000))
    assert crossover(lengths, [1 / rounds for rounds in ratios]).faster == "a"
    with pytest.raises(ValueError, match="lengths"):
        crossover(lengths[::-1], ratios)


def test_the_interval_of_the_crossover_covers_it():
    lengths = [1024, 2048, 4096, 8192]
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(60):
        noise = rng.lognormal(0, 0.1, (2, len(lengths), 15))
        ratios = [n / 3000 * noise[0, i] / noise[1, i] for i, n in enumerate(lengths)]
        found = crossover(lengths, ratios)
        hits += found is not None and found.low <= 3000 <= found.high
    assert hits >= 51  # 57 expected, three binomial standard errors of 1.7 below


def test_few_rounds_leave_the_interval_open():
    lengths, ratios = [1, 2, 4, 8], (0.5, 0.6, 1.5, 2.0)
    few, enough = ([np.full(rounds, ratio) for ratio in ratios] for rounds in (FEWEST - 1, FEWEST))
    found = crossover(lengths, few)
    assert (found.low, found.high) == (0, np.inf) and found.length == crossover(lengths, enough).length
    assert crossover(lengths, [*enough[:3], few[3]]).high == np.inf and crossover(lengths, enough).high < np.inf


def test_no_crossing_is_none_and_the_last_one_counts():
    lengths = [1, 2, 4, 8]
    assert crossover(lengths, [np.full(8, 2.0)] * 4) is None
    found = crossover(lengths, [np.full(8, ratio) for ratio in (2.0, 0.5, 0.5, 2.0)])
    assert found.length == pytest.approx(4 * 2**0.5) and found.faster == "b"


def test_an_uncertain_end_leaves_the_interval_open():
    ratios = [np.full(10, 0.5), np.random.default_rng(4).lognormal(0.01, 0.5, 10)]
    ratios[1] *= 1.02 / np.median(ratios[1])
    found = crossover([1024, 2048], ratios)
    assert 1024 < found.length < 2048 and found.high == np.inf


@pytest.mark.parametrize("units", [3, 4, 8, 30])
def test_the_interval_of_a_mean_is_students(units):
    values = np.random.default_rng(units).normal(size=units)
    found, half = mean_interval(values), stats.t.ppf(0.975, units - 1) * values.std(ddof=1) / units**0.5
    expected = values.mean(), values.mean() - half, values.mean() + half
    assert (found.value, found.low, found.high) == pytest.approx(expected, rel=0.004)
    for interval in (mean_interval, root_mean_square):
        assert np.isnan([interval([1.0, 2.0]).low, interval([1.0]).high]).all(), "one or two have none"


@pytest.mark.parametrize(
    ("a", "b", "named"),
    [([], [], "a:"), ([1.0], [1.0, 2.0], "b:"), ([1.0, 0.0], [1.0, 1.0], "positive"), ([np.nan], [1.0], "finite")],
)
def test_rounds_that_do_not_pair_up_are_refused(a, b, named):
    with pytest.raises(ValueError, match=named):
        ratio_interval(a, b)


def test_the_root_mean_square_and_its_error():
    found = root_mean_square([17**0.5, 1.0, 3.0])
    assert found.value == pytest.approx(3)  # mean squares of the units: 17, 1 and 9
    # The standard error of their mean is 8 / root 3; the slope of the root at 9 is 1/6.
    assert found.high - found.value == pytest.approx(4.3027 * 8 / 3**0.5 / 6)
    assert root_mean_square([0.0] * 3) == Interval(0.0, 0.0, 0.0)


def test_the_exponent_of_a_power_law_is_exact():
    sizes = [8, 32, 128]
    found = power_law(sizes, [np.full(5, 3 * r**-0.7) for r in sizes])
    assert (found.value, found.low, found.high) == pytest.approx((-0.7, -0.7, -0.7))
    for few, trials in (([8], [[1.0]]), ([8, 8], [[1.0], [1.0]]), ([8, 16], [[1.0]])):
        with pytest.raises(ValueError, match="sizes"):
            power_law(few, trials)


def test_the_interval_of_the_exponent_covers_it():
    rng, sizes = np.random.default_rng(5), [8, 16, 32, 64]
    found = [power_law(sizes, [r**-0.5 * rng.lognormal(0, 0.2, 20) for r in sizes]) for _ in range(200)]
    covered = np.mean([one.low <= -0.5 <= one.high for one in found])
    assert 0.9 <= covered <= 0.995  # 95 % expected, binomial standard error 1.5 %


def test_an_exponent_of_few_draws_has_a_range_and_of_two_none():
    small, large = [1.0, 1.5, 2.0], [0.5, 0.7, 0.8]
    few = power_law((8, 32), [small, large])
    assert (few.low, few.high) == pytest.approx(np.log([0.5 / 2.0, 0.8 / 1.0]) / np.log(4))
    two = power_law((8, 32), [small[:2], large[:2]])
    assert np.isnan([two.low, two.high]).all() and two.value < 0
