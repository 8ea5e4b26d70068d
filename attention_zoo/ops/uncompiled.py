"""What `torch.compile` leaves to Python. Only compiled code imports it: the decorator loads the compiler."""

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable
def call(function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function as it stands, at every call; a compiler would compile it anew for each state that it counts."""
    function(*arguments)
