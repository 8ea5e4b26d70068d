"""How near two results are, and how much of what is allowed that takes: `numerics.py` listens."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

# Called with an error and what is allowed, of one number or the worst of many.
listeners: list[Callable[[float, float], None]] = []
# Of every number given, that many units in the last place: an inner product and its gradient round some times.
ROUNDINGS = 8


def assert_within(error, allowed) -> None:
    """An error, as the test that calls defines it, is at most what is allowed."""
    error, allowed = (float(torch.as_tensor(x).detach()) for x in (error, allowed))
    for listener in listeners:
        listener(error, allowed)
    assert error <= allowed, f"error {error:.3g} where {allowed:.3g} is allowed"


def assert_near(
    actual: Any, expected: Any, tolerance: float, smallest: float = 0.0, rounding: Sequence[torch.Tensor] | None = None
) -> None:
    """Differences of whole tensors, one or several, by their norms: at most `tolerance` of the expected one's.

    `smallest`: the norm that an expected tensor has at least, where its terms cancel. `rounding`: what is allowed
    besides to each of several, in units of its `rounding_of`, where the function is ill conditioned.
    """
    several = isinstance(actual, Sequence)
    pairs = list(zip(actual, expected, strict=True)) if several else [(actual, expected)]
    for (one, other), moved in zip(pairs, rounding or [0.0] * len(pairs), strict=True):
        assert one.shape == other.shape and one.isfinite().all()
        other = other.detach().double()
        difference = torch.linalg.vector_norm(one.detach().double() - other)
        norm = torch.linalg.vector_norm(other).clamp_min(smallest)
        assert_within(difference, tolerance * norm + ROUNDINGS * moved)


def rounding_of(function: Callable[..., Sequence[torch.Tensor]], inputs: Sequence[Any], eps: float) -> list[Any]:
    """How far each result moves, by its norm, where every number given is one unit of its last place elsewhere.

    No algorithm that rounds to as many digits does much better, however good it is: the condition of the function at
    these inputs. The farthest of a few draws, for a single number may move by nothing.
    """
    generator, expected, moved = torch.Generator().manual_seed(5), function(*inputs), None
    for _ in range(4):
        signs = [None if x is None else torch.randint(2, x.shape, generator=generator).to(x) * 2 - 1 for x in inputs]
        others = [x if sign is None else x * (1 + eps * sign) for x, sign in zip(inputs, signs, strict=True)]
        distances = torch.stack(
            [
                torch.linalg.vector_norm(a.detach() - b.detach())
                for a, b in zip(function(*others), expected, strict=True)
            ]
        )
        moved = distances if moved is None else torch.maximum(moved, distances)
    return list(moved)
