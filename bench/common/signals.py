"""How a process ends on Ctrl-C, SIGTERM or a closed terminal (SIGHUP)."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def answer(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    """Set a handler for these signals; signals that are ignored stay ignored."""
    for number in TO_END:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def run(main: Callable[[], int]) -> int:
    """Run a command; if a signal ends it, print one line and return exit code 130."""
    answer(signal.default_int_handler)
    try:
        return main()
    except KeyboardInterrupt:
        answer(signal.SIG_IGN)  # a second signal would only disturb the shutdown
        print("interrupted: what was written is whole; the same command does the rest", file=sys.stderr)
        return 130


def leave(number: int, frame: FrameType | None) -> None:
    """End at once, with one line, while there is nothing to clean up: nobody should wait for an import of torch.

    An exception would not do: libraries that test whether an import works would swallow it.
    """
    os.write(2, b"interrupted: nothing was started\n")
    os._exit(130)
