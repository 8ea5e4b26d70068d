"""Checks of hyperparameters and inputs: one line that names the key, its value and what is allowed."""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor


def require(name: str, value: Any, holds: bool, allowed: str) -> None:
    """Raise `ValueError` naming `name`, its `value` and what is `allowed` unless `holds`."""
    if not holds:
        raise ValueError(f"{name}={value!r}: must be {allowed}")


def check_int(name: str, value: Any, minimum: int = 1) -> int:
    """Return `value` if it is an integer of at least `minimum`, else raise `ValueError`."""
    is_int = isinstance(value, Integral) and not isinstance(value, bool)  # numpy's, too
    require(name, value, is_int and value >= minimum, f"an integer of at least {minimum}")
    return int(value)


def check_seed(value: Any) -> int:
    """Return `value` if it is a seed that fits into an int64, else raise `ValueError`."""
    require("seed", value, check_int("seed", value, 0) < 2**63, "below 2**63")
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


def check_indices(name: str, indices: Tensor, length: int, device: torch.device) -> Tensor:
    """Return 1-d int64 `indices` from 0 to `length` - 1 on `device`, else raise `ValueError`."""
    require(f"{name}.dtype", indices.dtype, indices.dtype == torch.int64, "torch.int64")
    require(f"{name}.shape", tuple(indices.shape), indices.dim() == 1, "1-d")
    outside = [index for index in indices.tolist() if not 0 <= index < length]
    require(name, outside, not outside, f"between 0 and {length - 1}")
    return indices.to(device)


def check_tensors(query: Tensor, key: Tensor, value: Tensor, heads: int, head_dim: int) -> None:
    """Raise `ValueError` unless these are `(batch, heads, seq_len, head_dim)`, of one dtype and on one device."""
    expected = f"(batch, {heads}, seq_len, {head_dim})"
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        shape = tuple(tensor.shape)
        matches = len(shape) == 4 and shape[1] == heads and shape[3] == head_dim
        require(f"{name}.shape", shape, matches, expected)
        require(f"{name}.dtype", tensor.dtype, tensor.dtype == query.dtype, f"query's {query.dtype}")
        require(f"{name}.device", tensor.device, tensor.device == query.device, f"query's {query.device}")
    require("value.shape", tuple(value.shape), value.shape == key.shape, f"key's {tuple(key.shape)}")
    require("key.shape", tuple(key.shape), len(key) == len(query), f"of query's batch size {len(query)}")
