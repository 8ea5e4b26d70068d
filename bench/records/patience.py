"""What other rooms still call by its old name: delete when they write and read directly."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")


def patiently(action: Callable[[], Result], landmark: Path) -> Result:
    """Do it: a results folder that is gone is not waited for any more."""
    return action()
