"""Products as tensor cores make them, where they can be done by hand."""

import numpy as np
import pytest
from tensor_cores import cut, multiplied, parts, three_products

ULP = 2.0**-23


@pytest.mark.parametrize("x", [1.0, -np.pi, 1 + 2.0**-12, 3e38, 1e-30, 0.0])
def test_a_number_is_its_two_parts_but_for_what_no_11_bits_hold(x):
    high, low = parts(np.float32([x]))
    assert abs(float(high[0]) + float(low[0]) - np.float64(np.float32(x))) <= 2.0**-22 * abs(x)
    for part in (high, low):
        assert not part.view(np.uint32)[0] & 0x1FFF


def test_parts_are_the_nearest_and_what_is_below_24_bits_is_dropped_towards_zero():
    assert [parts(np.float32([1 + 2.0**-n]))[0].item() for n in (11, 12)] == [1 + 2.0**-10, 1]
    assert cut(np.array([1 + 0.9 * ULP, -1 - 0.9 * ULP])).tolist() == [1, -1]
    assert np.float64(cut(np.array([0.1]))[0]) <= 0.1
    assert three_products(np.float32([[np.inf]]), np.float32([[2.0]])) == np.inf


def test_some_products_are_added_before_their_sum_is_cut():
    ones, half = np.ones((1, 16), np.float32), np.full((16, 1), 0.3 * ULP, np.float32)
    half[0] = 1
    at_once = float(multiplied(ones, half, np.zeros((1, 1), np.float32), 16)[0, 0])
    one_by_one = float(multiplied(ones, half, np.zeros((1, 1), np.float32), 1)[0, 0])
    assert at_once == 1 + 4 * ULP and one_by_one == 1


def test_three_products_are_those_of_numbers_with_22_bits():
    generator = np.random.default_rng(0)
    one, other = (generator.standard_normal(size).astype(np.float32) for size in ((8, 32), (32, 8)))
    exact = one.astype(np.float64) @ other.astype(np.float64)
    terms = np.abs(one).astype(np.float64) @ np.abs(other)
    error = np.abs(three_products(one, other) - exact) / terms
    assert 0 < error.max() < 2.0**-20
    one_product = multiplied(parts(one)[0], parts(other)[0], np.zeros((8, 8), np.float32), 8)
    assert (np.abs(one_product - exact) / terms).max() > 2.0**-14
