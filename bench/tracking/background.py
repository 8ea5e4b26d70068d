"""A thread that does one task after another, and lives only while there is one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Background:
    """Tasks in the order in which they come; after one that fails, those that wait are dropped.

    The thread keeps nobody: a program that ends takes it along, wherever it is.

    Args:
        failed: told what a task raised, in that thread.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._tasks: deque[Callable[[], object]] = deque()
        self._changing = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a task is being done."""
        return self._thread is not None

    def add(self, task: Callable[[], object]) -> None:
        """Do it when all before it are done."""
        with self._changing:
            self._tasks.append(task)
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="mirror", daemon=True)
                thread.start()
                self._thread = thread

    def drop(self) -> None:
        """Forget the tasks that have not begun."""
        with self._changing:
            self._tasks.clear()

    def wait(self, seconds: float) -> bool:
        """Wait until all is done, at most so long; returns whether it is."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return not self.busy

    def _work(self) -> None:
        while True:
            with self._changing:
                if not self._tasks:
                    self._thread = None
                    return
                task = self._tasks.popleft()
            try:
                task()
            except Exception as error:
                self._failed(error)
                self.drop()
