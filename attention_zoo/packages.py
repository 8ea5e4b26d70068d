"""What optional mechanisms check: whether the package that they take their arithmetic from is installed."""

from __future__ import annotations

import importlib.util

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
