"""Powers of many numbers."""

from __future__ import annotations

from torch import Tensor


def power_(x: Tensor, degree: int) -> Tensor:
    """`x^degree` in place, by squaring where it can."""
    while degree % 2 == 0:
        x, degree = x.square_(), degree // 2
    return x if degree == 1 else x.pow_(degree)
