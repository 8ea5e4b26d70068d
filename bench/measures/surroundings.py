"""What a mechanism shares with the rest of its process, and must leave as it was."""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import torch
from torch import Tensor

from bench.common.errors import IncorrectError

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Surroundings:
    """Remembers the inputs and the state of the process, and says what was changed since."""

    def __init__(self, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
        self.inputs = dict(zip(("query", "key", "value"), inputs, strict=True))
        self.before = self._now()

    def require_unchanged(self, label: str, *, value_is_turned: bool = False) -> None:
        """Raise `IncorrectError` naming the first thing that the mechanism `label` changed.

        `value_is_turned`: the gate has changed the value's sign, so that it is not looked at.
        """
        for name, value in self._now().items():
            if value != self.before[name] and not (value_is_turned and name == "its input value"):
                shown = f" to {value}" if isinstance(value, str | bool | int) and "input" not in name else ""
                raise IncorrectError(f"{label}: changed {name}{shown}")

    def _now(self) -> dict[str, Any]:
        inputs = {f"its input {name}": _bit_sum(tensor) for name, tensor in self.inputs.items()}
        return inputs | {
            "torch's random state": torch.get_rng_state().numpy().tobytes(),
            "CUDA's random state": _cuda_random_state(),
            "Python's random state": random.getstate(),
            "NumPy's random state": _numpy_random_state(),
            "the default dtype": str(torch.get_default_dtype()),
            "the number of threads": torch.get_num_threads(),
            "the working directory": os.getcwd(),
            "the grad mode": torch.is_grad_enabled(),
            "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
            "the precision of float32 products": torch.get_float32_matmul_precision(),
        }


def _bit_sum(x: Tensor) -> int:
    """The sum of the numbers' bit patterns as integers, modulo 2^64: another one is another tensor."""
    return int(x.detach().view(_INTEGERS[x.element_size()]).sum(dtype=torch.int64))


def _cuda_random_state() -> bytes | None:
    # Asking a GPU that nothing runs on would start it.
    return torch.cuda.get_rng_state().numpy().tobytes() if torch.cuda.is_initialized() else None


def _numpy_random_state() -> bytes | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    _, words, *rest = numpy.random.get_state()
    return words.tobytes() + repr(rest).encode()
