"""A process that is asked to end: by Ctrl-C, SIGTERM or a terminal that closes."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def answer(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    """Let a handler answer from now on; who ignores a signal goes on ignoring it."""
    for number in TO_END:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def run(main: Callable[[], int]) -> int:
    """Run a command; asked to end, it says so in one line, and the exit code is 130."""
    answer(_interrupt)
    try:
        return main()
    except KeyboardInterrupt:
        answer(signal.SIG_IGN)  # another one would only break what ends
        print("interrupted: what was written is whole; the same command does the rest", file=sys.stderr)
        return 130


def leave(number: int, frame: FrameType | None) -> None:
    """End at once in one line, while there is nothing to be ended: an import of torch must not make anybody wait.

    An exception would be swallowed where a library tries whether something can be imported.
    """
    os.write(2, b"interrupted: nothing was started\n")
    os._exit(130)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
