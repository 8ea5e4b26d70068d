"""Configurations are plain data: which values are allowed, before anything uses them."""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from bench.common.errors import ConfigError, is_secret, without_credentials
from bench.records.store import LARGEST_NUMBER

LARGEST_INTEGER = 2**63 - 1


def shown(value: Any) -> str:
    """A value as text for a message, shortened if it is long."""
    try:
        text = repr(value)
    except ValueError:  # an integer with thousands of digits
        return f"{type(value).__name__}(...)"
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text):,} characters)"


def require_data(values: Mapping[str, Any]) -> None:
    """Refuse values that are not plain data, or cannot or must not be stored; the `ConfigError` names the key."""
    for key, value in leaves(values):
        require_no_secret(key)
        if isinstance(value, str):
            require_text(key, value)
        why = None
        if isinstance(value, bytes):
            why = "must not be bytes"
        elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            why = "must fit into 64 bits"
        elif isinstance(value, float) and LARGEST_NUMBER < abs(value) < math.inf:
            why = f"must be at most {LARGEST_NUMBER:g}"
        elif isinstance(value, str) and "${" in value and ":" in value:
            why = "must not use a resolver"
        if why:
            raise ConfigError(f"{key}={shown(value)}: {why}")


def require_text(key: str, text: str) -> None:
    """Refuse text that cannot or must not be stored; the message does not repeat a secret."""
    why = None
    if text != text.encode(errors="replace").decode():
        why = "must be Unicode"
    elif "\0" in text:
        why = "must not have a NUL character"
    if why:
        raise ConfigError(f"{key}={shown(text)}: {why}")
    if "://" in text and without_credentials(text) != text:
        why = "must not hold credentials, records keep it; for MLflow set MLFLOW_TRACKING_USERNAME and _PASSWORD"
        raise ConfigError(f"{key}: {why}")


def require_no_secret(key: str) -> None:
    """Refuse a key that looks like a secret, without its value: records keep the command line."""
    if is_secret(key):
        raise ConfigError(f"{key.lstrip('+~')}: looks like a secret, and records keep it; use an environment variable")


def leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """All values that are not containers, each with its dotted key."""
    if isinstance(node, dict) and node:
        for name, child in node.items():
            yield from leaves(child, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list) and node:
        for index, child in enumerate(node):
            yield from leaves(child, f"{key}[{index}]")
    else:
        yield key, node


def is_data(value: Any) -> bool:
    """Whether a default value can be written in a configuration file."""
    return value is None or isinstance(value, bool | int | float | str | list | tuple)


def spelled(values: Mapping[str, Any], floats: Collection[str] = ()) -> dict[str, Any]:
    """The values in one spelling: lists for tuples, 1.0 for 1 if the setting is a float, 0.0 for -0.0."""

    def one(value: Any, is_float: bool) -> Any:
        if isinstance(value, list | tuple):
            return [one(item, is_float) for item in value]
        return float(value) + 0.0 if isinstance(value, float) or (is_float and type(value) is int) else value

    return {key: one(value, key in floats) for key, value in values.items()}
