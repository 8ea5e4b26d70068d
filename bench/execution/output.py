"""What a child prints: taken from it as it comes, however much that is, and only the end is kept."""

from __future__ import annotations

import contextlib
import os

KEPT = 4000
# What a pipe holds on Linux: one reading empties it.
PIPE = 1 << 16


class Output:
    """A pipe for the standard output and error of a child. Its writing end stays open here, so that it has no end.

    Attributes:
        write_end: a descriptor for the child.
    """

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._tail = b""

    def fileno(self) -> int:
        """The reading end, to wait for."""
        return self._read_end

    def take(self) -> None:
        """Read what is there; never waits."""
        with contextlib.suppress(BlockingIOError):
            self._tail = (self._tail + os.read(self._read_end, PIPE))[-KEPT:]

    def tail(self) -> str:
        """The end of all that was printed."""
        self.take()
        return self._tail.decode(errors="replace")

    def close(self) -> None:
        """Forget it."""
        os.close(self._read_end)
        os.close(self.write_end)
