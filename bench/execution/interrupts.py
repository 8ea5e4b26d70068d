"""How signals interrupt a sweep: at once, but never while a record is being saved."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bench.common import signals


class Interrupts:
    """Makes SIGTERM and a closed terminal (SIGHUP) interrupt as Ctrl-C does.

    Only the main thread may set handlers; in other threads this does nothing. Ignored signals stay ignored.

    Attributes:
        first: the number of the first signal that came; None if none did.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self._deferred = self._pending = False

    @contextmanager
    def caught(self, *others: signal.Signals) -> Iterator[None]:
        """Turn these signals, and `others`, into `KeyboardInterrupt`."""
        numbers = (*signals.TO_END, *others) if threading.current_thread() is threading.main_thread() else ()
        before = {number: handler for number in numbers if (handler := signal.getsignal(number)) != signal.SIG_IGN}
        for number in before:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                # From here on there are child processes to end, so an interrupt must raise.
                signal.signal(number, signal.default_int_handler if handler is signals.leave else handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let the body finish; an interrupt is raised after it."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        if self._pending:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.first = self.first or number
        if self._deferred:
            self._pending = True
        else:
            raise KeyboardInterrupt
