"""What a record keeps of a training's curves."""

import pytest

from bench.measures.train import LOGGED_POINTS, Train, logged


@pytest.mark.parametrize("steps", [1, LOGGED_POINTS, LOGGED_POINTS + 1, 4 * LOGGED_POINTS, 100_000])
def test_losses_of_all_steps_are_kept_and_gradient_norms_of_some(steps):
    curve = {name: [start + step for step in range(1, steps + 1)] for name, start in ENDS.items()}
    kept = Train.curves(logged(curve) | {"validation": []})
    assert [point.step for point in kept["train_loss"]] == list(range(1, steps + 1))
    for name, start in ENDS.items():
        assert all(point.value == pytest.approx(start + point.step, rel=1e-2) for point in kept[name])
    for name in ("gradient_norm", "learning_rate"):
        apart = {after.step - before.step for before, after in zip(kept[name], kept[name][1:], strict=False)}
        assert len(apart) <= 1 and min(steps, LOGGED_POINTS) / 2 <= len(kept[name]) <= LOGGED_POINTS


ENDS = {"train_loss": 0.0, "gradient_norm": 1000.0, "learning_rate": -1e6}


def test_older_records_have_every_step():
    measured = {"curve": {"gradient_norm": [3.0, 2.0]}, "validation": []}
    assert [point.step for point in Train.curves(measured)["gradient_norm"]] == [1, 2]
