"""Errors, and how they are said in one line."""

from __future__ import annotations

LONGEST_LINE = 700


class ConfigError(Exception):
    """A configuration that cannot be run: one line that names the key, its value and what is allowed."""


class NonFiniteError(Exception):
    """A result holds NaN or infinity; the message names it, how many values, and the first index."""


class IncorrectError(Exception):
    """The mechanism's output differs from its float64 reference by more than rounding explains."""


def message(error: BaseException) -> str:
    """An error's message, of characters that every file and terminal takes; empty where it has none to give."""
    try:
        return str(error).strip().encode(errors="replace").decode()
    except Exception:  # whatever a foreign class does: it must not cost the error
        return ""


def one_line(error: BaseException) -> str:
    """The first line of an error's message, printable and bounded; its type where there is none."""
    first = (message(error).splitlines() or [type(error).__name__])[0].strip()
    first = "".join(each if each.isprintable() else "?" for each in first)  # no terminal obeys it
    return first if len(first) <= LONGEST_LINE else f"{first[:LONGEST_LINE]} ..."


def keyed(error: BaseException) -> str:
    """The first line of an error's message, after the configuration key that it is about."""
    key = getattr(error, "full_key", None)
    return f"{key}: {one_line(error)}" if key else one_line(error)
