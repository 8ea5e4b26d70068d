"""What optional mechanisms share: whether the package that computes is installed, and what it finds around it."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator

import torch

from attention_zoo.base import AttentionInfo, UnsupportedError


def require_package(info: AttentionInfo, *modules: str) -> None:
    """Check that the `modules` of `info.package` are there, without importing them: that may start a GPU.

    The extra of this library that installs them is named like the mechanism up to the first `_`.

    Raises:
        UnsupportedError: a module is missing.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            extra = info.name.partition("_")[0]
            raise UnsupportedError(
                f"{info.name}: needs the package {info.package}: pip install 'attention-zoo[{extra}]' "
                f"(no module {module})"
            )


@contextlib.contextmanager
def usual_defaults() -> Iterator[None]:
    """What packages count on where they name no dtype and no device: float32 and the CPU."""
    default = torch.get_default_dtype()
    if default == torch.float32 and torch.get_default_device() == torch.device("cpu"):
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(default)
