"""How signals interrupt a sweep: at once, but never in the middle of saving a record."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bench.common import signals


class Interrupts:
    """SIGTERM and a closing terminal interrupt as Ctrl-C does.

    Only the main thread may set handlers; other threads leave it to the program. A signal that is ignored stays so.

    Attributes:
        first: the number of the first signal that came, if one did.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self._deferred = self._pending = False

    @contextmanager
    def caught(self, *others: signal.Signals) -> Iterator[None]:
        """Turn these signals, and others, into `KeyboardInterrupt`."""
        numbers = (*signals.TO_END, *others) if threading.current_thread() is threading.main_thread() else ()
        before = {number: handler for number in numbers if (handler := signal.getsignal(number)) != signal.SIG_IGN}
        for number in before:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                # By now there is something to be ended.
                signal.signal(number, signal.default_int_handler if handler is signals.leave else handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let what is done here finish; the interrupt comes after it."""
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
