"""ListOps of Long Range Arena: the value of a nested expression of digits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

import numpy as np

from bench.common.schema import require_setting, setting
from bench.tasks.base import Draws, Example
from bench.tasks.generated import GeneratedSettings

OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(median(values)),
    "SM": lambda values: sum(values) % 10,
}
SHARE = 0.25
"""Of nodes above the largest depth: the operators."""
MOST_ARGUMENTS = 10
DIGIT, OPERATOR, CLOSE = 1, 11, 15
"""Token ids: those of digits and of operators begin here, and what ends an operator's arguments; 0 is padding."""


@dataclass
class ListOps(GeneratedSettings):
    """Name the value of an expression, a digit: `[MAX 2 9 [MIN 4 7 ] 0 ]` is 9.

    Nangia and Bowman, 2018, in the version of Long Range Arena (Tay et al. 2021, section 2.2.1), by the rules of its
    code (google-research/long-range-arena, `lra_benchmarks/data/listops.py`). A node above the largest depth is an
    operator with chance 1/4, else a digit, every one as likely; at that depth it is a digit. An operator, every one as
    likely, has 2 to 10 arguments, each number as likely: minimum, maximum, median (rounded down) or sum modulo 10. A
    tree is kept where its length, one token for each digit and two for each operator, lies between the two bounds.

    Ids: 0 pads on the right, 1..10 are the digits 0..9, 11..14 MIN, MAX, MED and SM, 15 ends the arguments. Skeinformer
    has 32 ids and pads to n = 2048. No example comes twice, in a split or in two: every token multiplies the chance of
    a tree by a tenth at most, so that of 100,000 the chance of two that are equal is below 1e-10.
    """

    name: ClassVar[str] = "listops"
    causal: ClassVar[bool] = False
    classes: ClassVar[int | None] = 10
    padding: ClassVar[int | None] = 0

    examples: int | None = setting(96000, "examples to train on; null: fresh ones without end", minimum=1)
    min_length: int = setting(500, "expressions are longer, in tokens", minimum=20)
    max_length: int = setting(2000, "expressions are shorter, in tokens")
    max_depth: int = setting(10, "nodes above one another", minimum=2, maximum=100)

    @property
    def vocabulary_size(self) -> int:
        """As many as Skeinformer's model has."""
        return 32

    @property
    def shortest(self) -> tuple[int, str]:
        """The longest expression."""
        return self.max_length - 1, ", one less than task.max_length"

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Refuse also bounds with little room between them, and expressions that no tree has."""
        super().require_fits(config)
        least, longest = 2 * self.min_length, _longest(self.max_depth)
        allowed = f"at least {least}, twice task.min_length"
        require_setting("task.max_length", self.max_length, self.max_length >= least, allowed)
        too_few = f"too few for task.min_length={self.min_length}"
        allowed = f"larger: expressions have at most {longest} tokens, {too_few}"
        require_setting("task.max_depth", self.max_depth, longest > least, allowed)

    def draw(self, draws: Draws, seq_len: int) -> Example:
        """Tokens, and the value."""
        numbers = draws.uniform_stream()
        while True:
            tokens = _expression(numbers, self.max_depth, self.max_length)
            if self.min_length < len(tokens) < self.max_length:
                padded = np.zeros(seq_len, np.int64)
                padded[: len(tokens)] = tokens
                return padded, np.array([value(tokens)])


def _longest(max_depth: int) -> int:
    """Tokens of the largest tree."""
    return 1 if max_depth == 1 else 2 + MOST_ARGUMENTS * _longest(max_depth - 1)


def _expression(numbers: Iterator[float], max_depth: int, max_length: int) -> list[int]:
    """The tokens of a tree, each node from one number; what is too long is not finished."""
    tokens: list[int] = []
    missing: list[int] = []
    while len(tokens) < max_length:
        number = next(numbers)
        if len(missing) + 1 == max_depth:
            tokens.append(DIGIT + int(10 * number))
        elif number >= SHARE:
            tokens.append(DIGIT + int(10 * (number - SHARE) / (1 - SHARE)))
        else:
            arguments, operator = divmod(int(number / SHARE * (MOST_ARGUMENTS - 1) * len(OPERATORS)), len(OPERATORS))
            tokens.append(OPERATOR + operator)
            missing.append(2 + arguments)
            continue
        while missing:
            missing[-1] -= 1
            if missing[-1]:
                break
            missing.pop()
            tokens.append(CLOSE)
        if not missing:
            break
    return tokens


def value(tokens: list[int]) -> int:
    """The digit that an expression is, without its padding."""
    pending: list[list[int]] = [[]]
    apply = list(OPERATORS.values())
    for token in tokens:
        if token < OPERATOR:
            pending[-1].append(token - DIGIT)
        elif token < CLOSE:
            pending.append([token])
        else:
            operator, *arguments = pending.pop()
            pending[-1].append(apply[operator - OPERATOR](arguments))
    return pending[0][0]
