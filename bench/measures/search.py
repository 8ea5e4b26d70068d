"""The largest size that fits into memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.records.outcomes import classify

if TYPE_CHECKING:
    import torch


def largest(fits: Callable[[int], bool], first: int, limit: int) -> int:
    """Double until a size does not fit, then bisect between the last that did and the first that did not.

    Exact up to 128, and to a 64th above it.

    Args:
        fits: whether a size does; each is asked once.
        first: where the doubling starts.
        limit: no larger size is tried.

    Returns:
        The size; 0 where none fits.
    """
    low, high = 0, first
    while high <= limit and fits(high):
        low, high = high, min(2 * high, limit) if high < limit else limit + 1
    high = min(high, limit + 1)
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def runs(device: torch.device, call: Callable[[], Any]) -> bool:
    """Whether a call has memory enough; frees what it allocated either way, and raises what is not about memory."""
    import torch

    # Leaving this frame, and with it the exception's, frees what a failed attempt had allocated.
    try:
        call()
    except Exception as error:
        if classify(error)[0] != "oom":
            raise
        return False
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return True
