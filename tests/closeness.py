"""How near two results are, and how much of what is allowed that takes: `numerics.py` listens."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

# Called with an error and what is allowed, of one number or the worst of many.
listeners: list[Callable[[float, float], None]] = []


def assert_within(error, allowed) -> None:
    """An error, as the test that calls defines it, is at most what is allowed."""
    error, allowed = (float(torch.as_tensor(x).detach()) for x in (error, allowed))
    for listener in listeners:
        listener(error, allowed)
    assert error <= allowed, f"error {error:.3g} where {allowed:.3g} is allowed"


def assert_near(actual: Any, expected: Any, tolerance: float, smallest: float = 0.0) -> None:
    """Differences of whole tensors, one or several, by their norms: at most `tolerance` of the expected one's.

    `smallest`: the norm that an expected tensor has at least, where its terms cancel.
    """
    pairs = zip(actual, expected, strict=True) if isinstance(actual, Sequence) else [(actual, expected)]
    for one, other in pairs:
        assert one.shape == other.shape and one.isfinite().all()
        other = other.detach().double()
        difference = torch.linalg.vector_norm(one.detach().double() - other)
        assert_within(difference, tolerance * torch.linalg.vector_norm(other).clamp_min(smallest))
