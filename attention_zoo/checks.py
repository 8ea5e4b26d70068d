"""Checks of hyperparameters: one line that names the key, its value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def require(name: str, value: Any, holds: bool, allowed: str) -> None:
    """Raise `ValueError` naming `name`, its `value` and what is `allowed` unless `holds`."""
    if not holds:
        raise ValueError(f"{name}={value!r}: must be {allowed}")


def check_int(name: str, value: Any, minimum: int = 1) -> int:
    """Return `value` if it is an integer of at least `minimum`, else raise `ValueError`."""
    is_int = isinstance(value, int) and not isinstance(value, bool)
    require(name, value, is_int and value >= minimum, f"an integer of at least {minimum}")
    return value


def check_float(name: str, value: Any, *, above: float = -math.inf, minimum: float = -math.inf) -> float:
    """Return `value` as a finite float that is > `above` and >= `minimum`, else raise `ValueError`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    bounds = [f"above {above}"] * (above > -math.inf) + [f"at least {minimum}"] * (minimum > -math.inf)
    allowed = " ".join(["a finite number", *bounds])
    require(name, value, is_number and value > above and value >= minimum, allowed)
    return float(value)


def check_bool(name: str, value: Any) -> bool:
    """Return `value` if it is a bool, else raise `ValueError`."""
    require(name, value, isinstance(value, bool), "true or false")
    return value


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`, else raise `ValueError`."""
    require(name, value, value in choices, f"one of {', '.join(choices)}")
    return value


def check_power_of_two(name: str, value: Any, minimum: int = 1) -> int:
    """Return `value` if it is a power of two of at least `minimum`, else raise `ValueError`."""
    check_int(name, value, 1)
    require(name, value, value & (value - 1) == 0 and value >= minimum, f"a power of two, at least {minimum}")
    return value
