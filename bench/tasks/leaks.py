"""What cannot be right in a task with classes: examples in two splits, and one position that tells the class."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.common.errors import ConfigError
from bench.tasks.base import Task
from bench.tasks.kept import KeptExamples

LOOKED_AT = {"train": 2048, "validation": 512, "test": 512}
"""Examples of each split that are drawn, so that it takes seconds."""
KEPT = 65536
"""Examples of a split that lie on the disk."""
LARGEST_SHARE = 0.01
"""Of the examples of a split that are in another one: collections of reviews and images have a few twins."""
SAMPLE, FEWEST = 1024, 200
"""Examples that tell how much a position tells, and of how few nothing can be said."""
ERRORS = 0.1
"""A position tells the class where it leaves less than this part of the errors of who knows the most frequent class."""


class Telling(NamedTuple):
    """The position that tells most, the share of examples whose class it tells, and that of the most frequent class."""

    position: int
    accuracy: float
    most_frequent: float


def require_none(task: Task, name: str) -> None:
    """Refuse a task with a leak that no real data have; it may tell a little by one position, as ListOps' first does.

    Raises:
        ConfigError: naming the splits and how many examples they share, or the position.
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
    """The share of the examples looked at of a split whose tokens are, all of them, also those of one of another."""
    looked_at = dict.fromkeys(LOOKED_AT, KEPT) if isinstance(task, KeptExamples) else LOOKED_AT
    hashes = {
        split: [_hash(task.example(split, index)[0]) for index in _indices(task, split, most)]
        for split, most in looked_at.items()
    }
    pairs = (("validation", "train"), ("test", "train"), ("test", "validation"))
    return {(split, other): float(np.isin(hashes[split], hashes[other]).mean()) for split, other in pairs}


def telling(task: Task) -> Telling | None:
    """What one position tells: learned from half of a sample of the training split, tried on the other half."""
    indices = _indices(task, "train", SAMPLE)
    if len(indices) < FEWEST or task.classes is None:
        return None
    examples = [task.example("train", index) for index in indices]
    tokens = np.stack([tokens.reshape(-1) for tokens, _ in examples], 1)
    classes = np.concatenate([label for _, label in examples])
    # Every other one, for a data set may be sorted.
    right = [_right(row, classes, task.vocabulary, task.classes) for row in tokens]
    best = int(np.argmax(right))
    frequencies = np.bincount(classes[1::2], minlength=task.classes) / len(classes[1::2])
    return Telling(best, right[best], float(frequencies.max()))


def _right(tokens: NDArray[np.int64], classes: NDArray[np.int64], vocabulary: int, count: int) -> float:
    """The share of right answers for odd examples, where a token means its most frequent class in the even ones."""
    seen = np.bincount(tokens[::2] * count + classes[::2], minlength=vocabulary * count).reshape(vocabulary, count)
    return float((seen.argmax(1)[tokens[1::2]] == classes[1::2]).mean())


def _indices(task: Task, split: str, most: int) -> list[int]:
    """So many examples of a split at most, from all over it."""
    size = task.size(split)
    if size is None or size <= most:
        return list(range(most if size is None else size))
    return np.linspace(0, size - 1, most).astype(int).tolist()


def _hash(tokens: NDArray[np.int64]) -> bytes:
    return hashlib.blake2b(tokens.tobytes(), digest_size=16).digest()
