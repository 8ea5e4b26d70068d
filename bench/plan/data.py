"""Configurations are data: what a value may be before anything is done with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.common.errors import ConfigError, is_secret, one_line, without_credentials

LARGEST = 2**63 - 1
LONGEST = 4096
# Each may double what another one stands for.
MOST_INTERPOLATIONS = 16
MOST_CHARACTERS = 200_000


def shown(value: Any) -> str:
    """A value for a message, bounded."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"{type(value).__name__}(...)"
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text):,} characters)"


def require_data(values: Mapping[str, Any]) -> None:
    """Refuse what is no data, cannot be stored, or must not be.

    Raises:
        ConfigError: naming the key.
    """
    interpolations = characters = 0
    for key, value in leaves(values):
        _require_leaf(key, value)
        if isinstance(value, str):
            interpolations += value.count("${")
            characters += len(value)
        if interpolations > MOST_INTERPOLATIONS:
            raise ConfigError(f"{key}={shown(value)}: a configuration must have at most {MOST_INTERPOLATIONS} ${{...}}")
        if characters > MOST_CHARACTERS:
            raise ConfigError(f"{key}={shown(value)}: a configuration must have at most {MOST_CHARACTERS} characters")


def require_text(key: str, text: str, longest: int = LONGEST) -> None:
    """Refuse text that cannot be stored, or must not be, without repeating it.

    Raises:
        ConfigError: naming the key.
    """
    if len(text) > longest:
        raise ConfigError(f"{key}={shown(text)}: must have at most {longest:,} characters")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{key}={shown(text)}: must be Unicode: {one_line(error)}") from None
    if "\0" in text:
        raise ConfigError(f"{key}={shown(text)}: must not have a NUL character")
    if "://" in text and without_credentials(text) != text:
        raise ConfigError(
            f"{key}: must not hold credentials, records keep it; for MLflow set MLFLOW_TRACKING_USERNAME and _PASSWORD"
        )


def require_no_secret(key: str) -> None:
    """Refuse a key whose value is nobody's business: command lines are kept in records.

    Raises:
        ConfigError: naming the key, without its value.
    """
    if is_secret(key):
        raise ConfigError(f"{key.lstrip('+~')}: looks like a secret, and records keep it; use an environment variable")


def leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that holds no others, by its dotted key."""
    if isinstance(node, dict) and node:
        for name, child in node.items():
            yield from leaves(child, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list) and node:
        for index, child in enumerate(node):
            yield from leaves(child, f"{key}[{index}]")
    else:
        yield key, node


def _require_leaf(key: str, value: Any) -> None:
    require_no_secret(key)
    if key.startswith("_") or "._" in key:
        raise ConfigError(f"{key}={shown(value)}: keys that start with _ are not allowed, configs are data")
    if isinstance(value, str):
        require_text(key, value)
        if "${" in value and ":" in value:
            raise ConfigError(f"{key}={shown(value)}: must not use a resolver")
    elif isinstance(value, bytes):
        raise ConfigError(f"{key}={shown(value)}: must not be bytes")
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise ConfigError(f"{key}={shown(value)}: must fit into 64 bits")


def is_data(value: Any) -> bool:
    """Whether a default can be written into a configuration."""
    return value is None or isinstance(value, bool | int | float | str | list | tuple)
