"""Errors, and how they are said in one line."""

from __future__ import annotations


class ConfigError(Exception):
    """A configuration that cannot be run: one line that names the key, its value and what is allowed."""


class NonFiniteError(Exception):
    """A result holds NaN or infinity; the message names it, how many values, and the first index."""


class IncorrectError(Exception):
    """The mechanism's output differs from its float64 reference by more than rounding explains."""


def one_line(error: BaseException) -> str:
    """The first line of an error's message."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def keyed(error: BaseException) -> str:
    """The first line of an error's message, after the configuration key that it is about."""
    key = getattr(error, "full_key", None)
    return f"{key}: {one_line(error)}" if key else one_line(error)
