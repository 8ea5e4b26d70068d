"""Paired comparisons, judged by planted truths."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from analysis.paired import (
    BETTER,
    EQUIVALENT,
    FEWEST_SEEDS,
    LEVEL,
    MARGIN,
    UNDECIDED,
    WORSE,
    Difference,
    corrected,
    difference,
    verdict,
    verdicts,
)

SEEDS, UNITS = 5, 32


def losses(rng, gain=0.0, seeds=SEEDS, sd_seeds=0.026, sd_units=0.02, sd_rest=0.05):
    """Of a control, and of a mechanism that is the control plus noise, less a gain; the noise has a part of each kind.

    The spread from seed to seed is that of the differences published before.
    """
    text, run = rng.normal(2, 0.3, UNITS), rng.normal(0, 0.1, (seeds, 1))
    control = text + run
    noise = rng.normal(0, sd_seeds, (seeds, 1)) + rng.normal(0, sd_units, UNITS)
    return control - gain + noise + rng.normal(0, sd_rest, (seeds, UNITS)), control


def simulated(gain, experiments, **spread):
    rng = np.random.default_rng(1)
    found = [difference(*losses(rng, gain, **spread)) for _ in range(experiments)]
    return [verdict(one) for one in found]


def test_a_control_plus_noise_is_ranked_in_at_most_65_of_1000():
    for spread in ({}, {"sd_units": 0.0}, {"sd_units": 0.1}, {"sd_seeds": 0.005}):
        said = simulated(0.0, 1000, **spread)
        assert said.count(BETTER) + said.count(WORSE) <= 65, spread


def test_a_gain_of_a_tenth_of_a_nat_is_found_with_five_seeds():
    said = simulated(0.1, 300)
    assert said.count(BETTER) >= 0.8 * 300 and WORSE not in said
    assert simulated(-0.1, 100).count(WORSE) >= 80


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_of_losses_that_are_not_finite_nothing_is_said(wrong, rng):
    first, second = losses(rng)
    first[0, 0] = wrong
    with np.errstate(invalid="ignore"):
        one = difference(first, second)
    assert (one.p, one.p_equivalent(), verdict(one)) == (1, 1, UNDECIDED)


@pytest.mark.parametrize("of", [(3, 1), (1, 3), (2, 2)])
def test_the_best_of_equals_is_ranked_no_more_often(of):
    """Each of them is as good as the other model: the same seeds choose the best one and compare it."""
    rng = np.random.default_rng(10)
    said, uncorrected = [], []
    for _ in range(1000):
        shared = rng.normal(2, 0.3, UNITS)
        best = []
        for n in of:
            noise = rng.normal(0, 0.026, (n, SEEDS, 1)) + rng.normal(0, 0.02, (n, SEEDS, UNITS))
            best.append(min(shared + noise, key=np.mean))
        said.append(verdict(difference(*best, of)))
        uncorrected.append(verdict(difference(*best)))
    for word in (BETTER, WORSE):
        assert said.count(word) <= 35, word
    if 1 in of:  # of two choices each hides the other's
        assert max(map(uncorrected.count, (BETTER, WORSE))) > 35, "without the correction more are"


def test_what_speaks_for_the_best_of_several_is_tested_at_a_part_of_the_level():
    """By Student's t with four degrees: of three rates, the end that says better is that of a third of 2.5 %."""
    error = 0.01
    one = Difference(-0.03, error**2, ((4, error**2), (31, 0.0)), 0, 0, 5, 32, chosen_from=(3, 1))
    low, high = one.interval()
    assert low == pytest.approx(-0.03 - error * stats.t.isf(0.025, 4))
    assert high == pytest.approx(-0.03 + error * stats.t.isf(0.025 / 3, 4))
    assert one.p == pytest.approx(6 * stats.t.sf(3, 4))
    # The other way round, the same is said.
    other = dataclasses.replace(one, value=0.03, chosen_from=(1, 3))
    assert other.interval() == pytest.approx((-high, -low)) and other.p == one.p
    # What speaks against it is tested at the whole level.
    assert dataclasses.replace(one, value=0.03).p == pytest.approx(2 * stats.t.sf(3, 4))
    assert dataclasses.replace(one, value=0.0).p_equivalent() == pytest.approx(3 * stats.t.sf(2, 4))
    needed = [dataclasses.replace(one, chosen_from=of, between_seeds=0.03**2).seeds_needed() for of in ((1, 1), (3, 1))]
    assert needed[0] < needed[1]


def test_what_is_equal_up_to_little_noise_is_as_good():
    assert simulated(0.0, 100, sd_seeds=0.003, sd_units=0.003, sd_rest=0.01).count(EQUIVALENT) >= 95
    # A difference of the margin itself passes as none in at most five of a hundred.
    said = simulated(0.02, 1000, sd_seeds=0.005, sd_units=0.003, sd_rest=0.01)
    assert said.count(EQUIVALENT) <= 65


def test_equivalence_is_two_one_sided_tests():
    """Each at the level: Student's t with four degrees has a tail of 0.05 above 2.132."""
    for value in (-0.012, 0.012):
        for ratio, is_equivalent in ((2.14, True), (2.12, False)):
            error = (MARGIN - abs(value)) / ratio
            one = Difference(value, error**2, ((4, error**2), (31, 0.0)), 0, 0, 5, 32)
            assert (one.p_equivalent() < LEVEL) == is_equivalent


def test_intervals_cover():
    rng = np.random.default_rng(2)
    inside = 0
    for _ in range(1000):
        low, high = difference(*losses(rng, 0.05)).interval()
        inside += low < -0.05 < high
    assert 930 <= inside <= 990


def test_a_family_is_wrong_in_one_of_twenty():
    """Eight mechanisms that are the control plus noise; they share its noise, too."""
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(400):
        shared = losses(rng)[0]
        family = [difference(losses(rng)[0] - losses(rng)[1] + shared, shared) for _ in range(8)]
        wrong += min(corrected([one.p for one in family])) < 0.05
    assert wrong <= 32


def test_without_noise_of_units_it_is_the_paired_t_test():
    rng = np.random.default_rng(4)
    first, second = rng.normal(2, 0.1, (2, SEEDS, 1)) + rng.normal(0, 1e-9, (2, SEEDS, UNITS))
    one, expected = difference(first, second), stats.ttest_rel(first.mean(1), second.mean(1))
    assert one.p == pytest.approx(expected.pvalue, rel=1e-4)
    interval = expected.confidence_interval()
    assert one.interval() == pytest.approx((interval.low, interval.high), rel=1e-4)


def test_without_noise_of_seeds_it_is_the_paired_t_test_of_units():
    rng = np.random.default_rng(7)
    first, second = rng.normal(2, 0.1, (2, 1, 6)) + rng.normal(0, 1e-9, (2, SEEDS, 6))
    one, expected = difference(first, second), stats.ttest_rel(first.mean(0), second.mean(0))
    assert one.p == pytest.approx(expected.pvalue, rel=1e-4)
    assert one.units == 6


def test_the_variance_is_that_of_a_crossed_design():
    """By the mean squares of a table, sums of squares one by one."""
    table = np.random.default_rng(8).normal(np.add.outer([0, 2, -1, 1], [1, -2, 0]))
    mean, (a, b) = table.mean(), table.shape
    of_seeds = sum(b * (table[i].mean() - mean) ** 2 for i in range(a)) / (a - 1)
    of_units = sum(a * (table[:, j].mean() - mean) ** 2 for j in range(b)) / (b - 1)
    cells = [(i, j) for i in range(a) for j in range(b)]
    rest = sum((table[i, j] - table[i].mean() - table[:, j].mean() + mean) ** 2 for i, j in cells) / (a - 1) / (b - 1)
    one = difference(table, np.zeros_like(table))
    assert rest < min(of_seeds, of_units)
    assert one.variance == pytest.approx((of_seeds + of_units - rest) / (a * b))
    assert one.between_seeds == pytest.approx(of_seeds / b), "what more seeds lower, with the rest"
    assert one.between_units == pytest.approx((of_units - rest) / (a * b))
    assert np.ravel(one.parts) == pytest.approx([a - 1, of_seeds / (a * b), b - 1, of_units / (a * b)])


def test_critical_values_are_students_weighted_by_the_parts_of_the_variance():
    one = Difference(0.0, 4.0, ((4, 3.0), (31, 1.0)), 0, 0, 5, 32)
    critical = 0.75 * stats.t.isf(0.025, 4) + 0.25 * stats.t.isf(0.025, 31)
    assert one.interval()[1] == pytest.approx(2 * critical)
    at_the_end = Difference(2 * critical, 4.0, one.parts, 0, 0, 5, 32)
    assert at_the_end.p == pytest.approx(0.05) and one.p == pytest.approx(1.0)
    assert Difference(1e6, 4.0, ((1000, 3.0), (1000, 1.0)), 0, 0, 5, 32).p == 0.0


def test_a_family_is_not_wrong_more_often_where_few_seeds_agree_by_chance():
    """Of 20 comparisons of five seeds, whose part of the variance is four times that of the units."""
    rng = np.random.default_rng(9)
    wrong = 0
    for _ in range(200):
        noise = [2 * rng.normal(size=(SEEDS, 1)) + (UNITS / SEEDS) ** 0.5 * rng.normal(size=UNITS) for _ in range(20)]
        wrong += min(corrected([difference(one, np.zeros_like(one)).p for one in noise])) < 0.05
    assert wrong <= 15


def test_corrected_is_holm():
    assert corrected([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert corrected([0.9, 0.8]) == [1.0, 1.0] and corrected([]) == []


@pytest.mark.parametrize("comparisons", [1, 20])
def test_seeds_needed_find_the_difference_in_four_of_five_experiments(comparisons):
    """Of a difference that no margin makes equivalent, and that only seeds spread: by the noncentral t distribution."""
    one = Difference(0.03, 0.026**2 / 5, ((4, 0.026**2 / 5), (31, 0.0)), 0.026**2, 0.0, 5, 32)

    def power(seeds):
        needed = stats.t.isf(0.025 / comparisons, seeds - 1)
        return stats.nct.sf(needed, seeds - 1, 0.03 / (0.026 / seeds**0.5))

    seeds = one.seeds_needed(comparisons)
    assert power(seeds) == pytest.approx(0.8, abs=0.05) and power(seeds - 2) < 0.8
    wide = losses(np.random.default_rng(5), 0.02, sd_units=2.0)
    assert difference(*wide).seeds_needed() is None, "only more text would decide"


def test_fewer_seeds_than_a_verdict_needs_are_never_enough():
    rng = np.random.default_rng(3)
    two = difference(*(x[:2] for x in losses(rng, 0.5)))
    assert two.seeds == 2 and two.seeds_needed() == FEWEST_SEEDS


def test_a_family_of_equivalences_is_corrected_too():
    """Each of 20 differences of the margin itself passes in at most one of 20 experiments; any of them, in as few."""
    rng = np.random.default_rng(8)
    spread = {"sd_seeds": 0.005, "sd_units": 0.003, "sd_rest": 0.01}
    wrong = 0
    for _ in range(200):
        family = [difference(*losses(rng, MARGIN, **spread)) for _ in range(20)]
        wrong += EQUIVALENT in [word for _, word in verdicts(family)]
    assert wrong <= 20


def test_four_seeds_decide_nothing():
    one = difference(*losses(np.random.default_rng(6), 1.0, seeds=4))
    assert verdict(one) == UNDECIDED
