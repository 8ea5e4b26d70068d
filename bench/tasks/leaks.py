"""Checks a classification task for leaks: the same example in two splits, or a class that one position determines."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.common.errors import ConfigError
from bench.tasks.base import Task
from bench.tasks.kept import KeptExamples

LOOKED_AT = {"train": 2048, "validation": 512, "test": 512}
"""Examples of each split that are drawn, so that the check takes seconds."""
KEPT = 65536
"""The most examples of a split that are read from disk."""
LARGEST_SHARE = 0.01
"""Allowed share of a split's examples that are also in another: reviews and images have a few duplicates."""
SAMPLE, FEWEST = 1024, 200
"""Examples to check positions with; with fewer than the second number nothing is concluded."""
ERRORS = 0.1
"""A position is a leak if it leaves less than this share of the errors of always choosing the most frequent class."""


class Telling(NamedTuple):
    """The most informative position, the accuracy from it alone, and the share of the most frequent class."""

    position: int
    accuracy: float
    most_frequent: float


def require_none(task: Task, name: str) -> None:
    """Refuse a task with a leak that real data do not have; a weakly informative position is allowed, as in ListOps.

    Raises:
        ConfigError: names the splits and the share of common examples, or the position.
    """
    for (split, other), share in twins(task).items():
        if share > LARGEST_SHARE:
            line = f"{100 * share:.3g} % of the examples looked at in {split} of {task.source} are in {other} too"
            raise ConfigError(f"task.name={name}: {line}, must be at most {100 * LARGEST_SHARE:g} %")
    found = telling(task)
    if found is not None and 1 - found.accuracy < ERRORS * (1 - found.most_frequent):
        line = f"token {found.position} alone tells the class of {100 * found.accuracy:.3g} % of {task.source}"
        raise ConfigError(f"task.name={name}: {line}, it must need others")


def twins(task: Task) -> dict[tuple[str, str], float]:
    """For pairs of splits, the share of checked examples of the first that have an equal one in the second."""
    looked_at = dict.fromkeys(LOOKED_AT, KEPT) if isinstance(task, KeptExamples) else LOOKED_AT
    hashes = {
        split: [blake2b(task.example(split, index)[0].tobytes()).digest() for index in _indices(task, split, most)]
        for split, most in looked_at.items()
    }
    pairs = (("validation", "train"), ("test", "train"), ("test", "validation"))
    return {(split, other): float(np.isin(hashes[split], hashes[other]).mean()) for split, other in pairs}


def telling(task: Task) -> Telling | None:
    """The most informative position: learned from half of a sample of the training split, tested on the other half."""
    indices = _indices(task, "train", SAMPLE)
    if len(indices) < FEWEST or task.classes is None:
        return None
    examples = [task.example("train", index) for index in indices]
    tokens = np.stack([tokens.reshape(-1) for tokens, _ in examples], 1)
    classes = np.concatenate([label for _, label in examples])
    # Every second example, since a data set may be sorted.
    right = [_right(row, classes, task.vocabulary, task.classes) for row in tokens]
    best = int(np.argmax(right))
    frequencies = np.bincount(classes[1::2], minlength=task.classes) / len(classes[1::2])
    return Telling(best, right[best], float(frequencies.max()))


def _right(tokens: NDArray[np.int64], classes: NDArray[np.int64], vocabulary: int, count: int) -> float:
    """The accuracy on odd examples when a token predicts its most frequent class in the even ones."""
    seen = np.bincount(tokens[::2] * count + classes[::2], minlength=vocabulary * count).reshape(vocabulary, count)
    return float((seen.argmax(1)[tokens[1::2]] == classes[1::2]).mean())


def _indices(task: Task, split: str, most: int) -> list[int]:
    """The indices of at most `most` examples, spread over the split."""
    size = task.size(split) or most
    return np.linspace(0, size - 1, min(size, most)).astype(int).tolist()
