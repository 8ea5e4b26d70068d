"""A process that is asked to end: by Ctrl-C, SIGTERM or a terminal that closes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def answer(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    """Let a handler answer from now on; who ignores a signal goes on ignoring it."""
    for number in TO_END:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def leave(number: int, frame: FrameType | None) -> None:
    """End at once in one line, while there is nothing to be ended: an import of torch must not make anybody wait.

    An exception would be swallowed where a library tries whether something can be imported.
    """
    os.write(2, b"interrupted: nothing was started\n")
    os._exit(130)
