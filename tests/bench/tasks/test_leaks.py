"""Planted leaks are found when a task is opened, and what real tasks tell by one position is none."""

from dataclasses import replace

import numpy as np
import pytest

from bench.common.errors import ConfigError
from bench.tasks import SPLITS, images, leaks, open_task
from bench.tasks.base import Draws, Task
from bench.tasks.kept import KeptExamples
from bench.tasks.listops import ListOps


class Noise(Task):
    """A class that depends on two positions, and on no single one; more can be planted."""

    def __init__(self, sizes=None, plant=lambda split, index, tokens, label: tokens, classes=2):
        super().__init__("noise", 8, False, sizes or dict.fromkeys(SPLITS), classes=classes)
        self.plant = plant

    def example(self, split, index):
        tokens = Draws(0, split, index).integers(8, 40)
        label = (tokens[3] + tokens[30]) % self.classes
        return self.plant(split, index, tokens, label), np.array([label])


def first_tells(split, index, tokens, label):
    """But for an example here and there."""
    return np.append(label if index % 25 else 7, tokens[1:])


def trained_on(split, index, tokens, label):
    return Draws(0, "train", index).integers(8, 40) if split == "test" else tokens


def some_in_validation(split, index, tokens, label):
    return Draws(0, "validation", index).integers(8, 40) if split == "test" and index % 40 == 0 else tokens


def test_noise_has_no_leak():
    leaks.require_none(Noise(classes=4), "noise")
    assert set(leaks.twins(Noise()).values()) == {0.0}
    found = leaks.telling(Noise())
    assert found.accuracy < 0.6 and 0.45 < found.most_frequent < 0.6


def test_a_class_in_the_first_token_is_found():
    task = Noise(plant=first_tells, classes=4)
    found = leaks.telling(task)
    assert found.position == 0 and 0.96 < found.accuracy < 1
    line = r"^task\.name=noise: token 0 alone tells the class of 9\d\.?\d? % of noise, "
    with pytest.raises(ConfigError, match=line):
        leaks.require_none(task, "noise")


@pytest.mark.parametrize(
    ("plant", "sizes", "line"),
    [
        (trained_on, None, r"100 % of the examples looked at in test of noise are in train too, must be at most"),
        (trained_on, {"train": 90_000, "validation": 2000, "test": 2000}, r"2\.\d+ % of .* test of noise are in train"),
        (some_in_validation, None, r"2\.\d+ % of the examples looked at in test of noise are in validation too"),
    ],
)
def test_examples_in_two_splits_are_found(plant, sizes, line):
    with pytest.raises(ConfigError, match=rf"^task\.name=noise: {line}"):
        leaks.require_none(Noise(sizes, plant), "noise")


def test_few_twins_are_told_but_not_refused(monkeypatch):
    def two(split, index, tokens, label):
        return Draws(0, "train", index).integers(8, 40) if split == "test" and index < 2 else tokens

    monkeypatch.setattr(leaks, "LOOKED_AT", {"train": 512, "validation": 200, "test": 400})
    assert leaks.twins(Noise(plant=two))["test", "train"] == 2 / 400
    leaks.require_none(Noise(plant=two), "noise")


def test_tokens_that_come_once_tell_nothing_of_examples_that_were_not_seen():
    def rare(split, index, tokens, label):
        return Draws(1, split, index).integers(8**4, 40)

    task = Noise(plant=rare)
    task.vocabulary = 8**4
    assert leaks.telling(task).accuracy < 0.65


def test_all_that_lies_on_the_disk_is_looked_at():
    rows = {split: np.random.default_rng(n).integers(0, 256, (5000, 11), np.uint8) for n, split in enumerate(SPLITS)}
    rows["test"] = rows["test"].copy()
    rows["test"][[0, 4321]] = rows["train"][[4999, 17]]
    task = KeptExamples("disk", 256, False, dict.fromkeys(SPLITS, 5000), rows, (10,), classes=256)
    assert leaks.twins(task)["test", "train"] == 2 / 5000
    small = replace(task, sizes=dict.fromkeys(SPLITS, 100), rows={split: part[:100] for split, part in rows.items()})
    assert leaks.telling(small) is None


def test_an_operator_that_tells_a_little_is_no_leak():
    """The first operator is the outermost: MIN and MAX of many arguments are near the ends. It gives a third."""
    found = leaks.telling(ListOps(min_length=20, max_length=128).open({"seq_len": 128, "seed": 0}, None))
    # Of the half of 1,024 the shares have a standard deviation of 1.6 and 2.1 points.
    assert found.most_frequent == pytest.approx(0.16, abs=0.035)
    assert found.position == 0 and found.accuracy == pytest.approx(0.33, abs=0.045)


def test_a_task_is_looked_at_when_it_is_opened(monkeypatch, tmp_path):
    """Digits whose splits are one: every image of test can be one of training."""
    split = images._digits()
    one = {name: (split["test"][0][:1], split["test"][1][:1]) for name in SPLITS}
    monkeypatch.setattr(images, "_digits", lambda: one)
    config = {"task": {"name": "image", "data": "digits"}, "seq_len": 1024, "causal": False, "seed": 0}
    with pytest.raises(ConfigError, match=r"^task\.name=image: 100 % of the examples looked at in validation of dig"):
        open_task(config, tmp_path)
