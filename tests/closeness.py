"""How near two results are, and how much of what is allowed that takes: `numerics.py` listens."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

# Of float32: sums of products that are rounded once each, or, on tensor cores, are made of three and cut.
ROUNDED, ON_TENSOR_CORES = 5e-6, 2e-5
_has_tensor_cores = torch.cuda.is_available()

# Called with an error and what is allowed, of one number or the worst of many.
listeners: list[Callable[[float, float], None]] = []


def use_tensor_cores() -> None:
    """Kernels are interpreted as if they ran there."""
    global _has_tensor_cores
    _has_tensor_cores = True


def of_float32() -> float:
    """What results of kernels in float32 are allowed, of their norm."""
    return ON_TENSOR_CORES if _has_tensor_cores else ROUNDED


def assert_within(error, allowed) -> None:
    """An error, as the test that calls defines it, is at most what is allowed."""
    error, allowed = (float(torch.as_tensor(x).detach()) for x in (error, allowed))
    for listener in listeners:
        listener(error, allowed)
    assert error <= allowed, f"error {error:.3g} where {allowed:.3g} is allowed"


def assert_near(
    actual: Any, expected: Any, tolerance: float, smallest: float = 0.0, besides: Sequence[Any] | None = None
) -> None:
    """Differences of whole tensors, one or several, by their norms: at most `tolerance` of the expected one's.

    `smallest`: the norm that an expected tensor has at least, where its terms cancel. `besides`: what is allowed to
    each of several on top of that, as `with_rounding` gives it.
    """
    pairs = list(zip(actual, expected, strict=True)) if isinstance(actual, Sequence) else [(actual, expected)]
    for (one, other), more in zip(pairs, besides or [0.0] * len(pairs), strict=True):
        assert one.shape == other.shape and one.isfinite().all()
        other = other.detach().double()
        difference = torch.linalg.vector_norm(one.detach().double() - other)
        assert_within(difference, tolerance * torch.linalg.vector_norm(other).clamp_min(smallest) + more)


def with_rounding(
    function: Callable[..., Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor | None],
    dtype: torch.dtype = torch.float32,
    roundings: int = 8,
) -> tuple[Sequence[torch.Tensor], list[torch.Tensor]]:
    """The results in float64, and by how much, of their norms, rounding to a dtype may move each.

    Every number given is moved by one unit of its last place: the condition of the function at these inputs, the worst
    of a few draws, since one number may move by nothing. That so many `roundings` times.
    """
    generator = torch.Generator().manual_seed(5)
    expected = function(*inputs)
    draws = [function(*(None if x is None else elsewhere(x, dtype, generator) for x in inputs)) for _ in range(4)]
    moved = [[torch.linalg.vector_norm((a - b).detach()) for a, b in zip(one, expected, strict=True)] for one in draws]
    return expected, [roundings * max(of_one) for of_one in zip(*moved, strict=True)]


def elsewhere(x: torch.Tensor, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Numbers moved by a unit of their last place in a dtype, up or down."""
    return x * (1 + torch.finfo(dtype).eps * (2 * torch.randint(2, x.shape, generator=generator).to(x) - 1))
