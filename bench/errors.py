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
    """The first line of an error's message, bounded; its type where there is none."""
    return bounded((message(error).splitlines() or [type(error).__name__])[0].strip())


def bounded(text: str, longest: int = LONGEST_LINE) -> str:
    """The text as one line that terminals, tables and figures take: bounded, `?` for what is no character to print."""
    text = text if len(text) <= longest else f"{text[:longest]} ..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def keyed(error: BaseException) -> str:
    """The first line of an error's message, after the configuration key that it is about."""
    key = getattr(error, "full_key", None)
    return f"{key}: {one_line(error)}" if key else one_line(error)
