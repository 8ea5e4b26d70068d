"""One use of a kernel at one shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Call:
    """What can be compiled on tensors without memory (`meta`), and run and timed on a GPU.

    `make` takes a device, makes the inputs there and returns the launch. `name` is unique and tells operation, pass
    and shape, such as `polynomial forward p4 h64 causal`.
    """

    name: str
    dtype: torch.dtype
    make: Callable[[torch.device], Callable[[], Any]]
