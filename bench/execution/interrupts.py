"""How a sweep is interrupted: at once, but never in the middle of saving a record."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bench.common import signals


class Interrupts:
    """SIGTERM and a closing terminal interrupt as Ctrl-C does.

    Only the main thread may say so; other threads leave it to the program. Who ignores a signal goes on ignoring it.

    Attributes:
        arrived: the first signal that came, if one did.
    """

    def __init__(self) -> None:
        self.arrived: int | None = None
        self._saving = self._pending = False

    @contextmanager
    def caught(self, *others: signal.Signals) -> Iterator[None]:
        """Turn these signals, and others, into `KeyboardInterrupt`."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        numbers = (*signals.TO_END, *others) if in_main_thread else ()
        before = {number: signal.getsignal(number) for number in numbers}
        heeded = [number for number, handler in before.items() if handler != signal.SIG_IGN]
        for number in heeded:
            signal.signal(number, self._arrived)
        try:
            yield
        finally:
            for number in heeded:
                # By now there is something to be ended.
                earlier = before[number]
                signal.signal(number, signal.default_int_handler if earlier is signals.leave else earlier)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Let what is done here finish; the interrupt comes after it."""
        self._saving = True
        try:
            yield
        finally:
            self._saving = False
        if self._pending:
            raise KeyboardInterrupt

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        self.arrived = self.arrived or number
        if self._saving:
            self._pending = True
        else:
            raise KeyboardInterrupt
