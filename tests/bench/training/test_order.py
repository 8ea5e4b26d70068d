"""Which examples a step learns from."""

from collections import Counter

import pytest

from bench.training.loop import number_of, training_indices


@pytest.mark.parametrize(("size", "batch_size"), [(24, 8), (10, 4), (7, 20), (1, 3)])
def test_every_epoch_has_each_example_once(size, batch_size):
    steps = 3 * size  # batch_size epochs and more
    seen = [index for step in range(steps) for index in training_indices(3, step, batch_size, size)]
    for epoch in range(len(seen) // size):
        assert sorted(seen[epoch * size : (epoch + 1) * size]) == list(range(size))


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [tuple(training_indices(seed, epoch, 50, 50)) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9 and tuple(range(50)) not in orders
    assert orders[4] == tuple(training_indices(1, 1, 50, 50))


def test_without_end_nothing_comes_twice():
    seen = Counter(index for step in range(40) for index in training_indices(0, step, 16, None))
    assert len(seen) == 640 and set(seen.values()) == {1}


def test_the_number_of_a_key_is_large_and_its_own():
    numbers = {number_of(seed, "order", epoch) for seed in range(30) for epoch in range(30)}
    assert len(numbers) == 900 and all(0 <= n < 2**63 for n in numbers)
    assert number_of(1, 23) != number_of(12, 3)
