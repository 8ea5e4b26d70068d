"""What a record keeps of a training's curves."""

import pytest

from bench.measures.train import LOGGED_POINTS, Train, logged

SLOPES = {"train_loss": 1, "gradient_norm": 2, "learning_rate": 3}
"""What each curve has at a step, over the step."""


@pytest.mark.parametrize("steps", [1, LOGGED_POINTS, LOGGED_POINTS + 1, 7 * LOGGED_POINTS])
def test_losses_of_all_steps_are_kept_and_gradient_norms_of_some(steps):
    curve = {name: [slope * step for step in range(1, steps + 1)] for name, slope in SLOPES.items()}
    kept = Train.curves(logged(curve) | {"validation": []})
    assert [point.step for point in kept["train_loss"]] == list(range(1, steps + 1))
    for name, slope in SLOPES.items():  # three digits
        assert all(point.value == pytest.approx(slope * point.step, rel=5.01e-3) for point in kept[name])
    for name in ("gradient_norm", "learning_rate"):
        assert min(steps, LOGGED_POINTS) / 2 <= len(kept[name]) <= LOGGED_POINTS


def test_older_records_have_every_step():
    measured = {"curve": {"gradient_norm": [3.0, 2.0]}, "validation": []}
    assert [point.step for point in Train.curves(measured)["gradient_norm"]] == [1, 2]


def test_a_record_may_keep_fewer_losses_and_says_of_which_steps():
    measured = {"curve": {"train_loss": [3.0, 2.0], "gradient_norm": [4.0]}, "logged_every": 8, "train_loss_every": 4}
    kept = Train.curves(measured | {"validation": []})
    steps = {name: [point.step for point in kept[name]] for name in measured["curve"]}
    assert steps == {"train_loss": [4, 8], "gradient_norm": [8]}
