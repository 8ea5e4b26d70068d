"""How far a task is with what it reads or draws before its first step."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
Report = Callable[[str, float], None]
"""Takes how far it is, in words, and how many more seconds went into it."""


def no_report(text: str, seconds: float) -> None:
    """Report to nobody."""


_report: ContextVar[Report] = ContextVar("report", default=no_report)


@contextlib.contextmanager
def reporting(report: Report) -> Iterator[None]:
    """What is counted inside is reported there; readers deep inside a task need not pass it on."""
    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)


class ItemProgress:
    """Counts items while they are made, and reports how far it is.

    Args:
        what: the items in words, `images drawn`.
        total: how many there will be; None is unknown.
    """

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what, self._total, self._done = what, total, 0
        self._began = self._last = time.monotonic()
        self._report = _report.get()  # now: the tokenizers take pieces from threads of their own

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, each as it is made."""
        for item in items:
            self._done += 1
            now = time.monotonic()
            self._report(self._text(now), now - self._last)
            self._last = now
            yield item

    def _text(self, now: float) -> str:
        if self._total is None:
            return f"{self._done:,} {self._what}"
        left = (now - self._began) / self._done * (self._total - self._done)
        return f"{self._done:,}/{self._total:,} {self._what}, {left / 60:.1f} min left"
