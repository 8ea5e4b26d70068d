"""How a sweep writes to MLflow, which may be off, slow or broken; no measurement depends on it.

A thread writes. A local store takes CPU time (20 ms per record, 0.3 s with long curves, seconds to create it), which
would disturb the next cell's timing, so the cell waits until all is written. A server takes 0.06 s per record; the next
cell waits at most about twice as long, and not at all after a server was slower. What takes longer, such as records
that an earlier server never received, is written at the end of the sweep.
"""

import contextlib
import importlib.util
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.common.errors import ConfigError, one_line, say, without_credentials
from bench.measures.progress import Point, Progress
from bench.plan.cell import Cell
from bench.plan.config import Config
from bench.records.record import Record
from bench.records.table import table
from bench.tracking.mirror import Mirror, TrackingError

# Give up after seconds instead of MLflow's minutes if a server does not answer; a user's own values are kept.
PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
LIVE_INTERVAL_S = 5.0
# How long the next cell waits for the mirror. Another process may hold a store's lock for minutes.
LOCAL_WINDOW_S, SERVER_WINDOW_S = 60.0, 0.15
# At the end of a sweep: how long to wait without an answer, how much longer per record (a local store answers once for
# many), and after how long a message is printed.
FINISH_S, FINISH_RECORD_S, SILENT_S = 60.0, 0.5, 5.0
LOCAL = ("sqlite:", "file:")
SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks")


class Tracker:
    """Mirrors each record as it comes, and the sweep as a whole at its end; raises as `require_usable` does."""

    def __init__(self, settings: Config) -> None:
        self.mirror: Mirror | None = None
        self._in_time, self._begun = True, False
        self._records: dict[str, Record] = {}
        # By cell: when points of its curves were last sent, and its newest points while they wait to be sent.
        self._followed: dict[str, float] = {}
        self._live: dict[str, tuple[Mapping[str, Any], Mapping[str, Point]]] = {}
        if settings.tracking["name"] == "none":
            return
        require_usable(settings)
        experiment, uri = settings.tracking["experiment"], settings.tracking["uri"]
        self._window = LOCAL_WINDOW_S if uri is None or uri.startswith(LOCAL) else SERVER_WINDOW_S
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        self.mirror = Mirror(Path(settings.results_dir), experiment=experiment, uri=uri)
        self._background = Background(self._give_up)

    def sync(self, records: Sequence[Record]) -> None:
        """First call: take the records that exist already. Later calls: mirror all records of a cell."""
        mirror = self.mirror  # the thread may set it to None
        if mirror is None:
            return
        for record in records:
            self._records[record.record_id] = record
            self._live.pop(record.cell_id, None)
        try:
            mirror.load()
        except TrackingError as error:
            self._give_up(error)
            return
        # The next cell waits a little for the mirror, unless that did not help before.
        patient = self._in_time or not self._background.busy
        self._background.add(partial(mirror.sync, records) if self._begun else mirror.create)
        self._in_time = patient and self._background.wait(self._window)
        self._begun = True

    def follow(self, cell: Cell, progress: Progress) -> None:
        """Add the newest points of a cell's curves while it is measured, at most every `LIVE_INTERVAL_S`."""
        mirror, now, cell_id = self.mirror, time.monotonic(), cell.cell_id
        if mirror is None or not progress.curves:
            return
        waits = cell_id in self._live
        if waits or now - self._followed.get(cell_id, -LIVE_INTERVAL_S) >= LIVE_INTERVAL_S:
            self._live[cell_id] = cell.config, progress.curves
            self._followed[cell_id] = now
            if not waits:
                self._background.add(partial(self._send, mirror, cell_id))

    def wants_summary(self, records: Sequence[Record]) -> bool:
        """Whether there is a mirror, and several cells to summarise."""
        return self.mirror is not None and len(records) > 1

    def finish(self, sweep_id: str, records: Sequence[Record], figures: Sequence[Path]) -> None:
        """Complete the mirror, with a summary run if the sweep has several cells, and wait for it within limits."""
        mirror = self.mirror
        if mirror is None:
            return
        self._background.drop()  # all records are sent now, in fewer requests
        self._background.add(partial(mirror.sync, list(self._records.values())))
        if self.wants_summary(records):
            self._background.add(lambda: mirror.summary(sweep_id, records, figures, table(records)))
        began, longest = time.monotonic(), FINISH_S + FINISH_RECORD_S * len(self._records)
        if not self._background.wait(min(SILENT_S, longest)):
            say("all is measured, MLflow is still being told; the same command tells the rest after Ctrl-C")
            while (left := max(began, mirror.answered) + longest - time.monotonic()) > 0:
                if self._background.wait(left):
                    break
            else:
                self._give_up(TrackingError(f"MLflow mirror of {mirror.results_dir}: no answer for {longest:.0f} s"))
        self._background.add(None)

    def _send(self, mirror: Mirror, cell_id: str) -> None:
        if newest := self._live.pop(cell_id, None):
            mirror.follow(cell_id, *newest)

    def _give_up(self, error: Exception) -> None:
        if self.mirror is not None:
            self.mirror = None
            self._background.drop()
            what = without_credentials(one_line(error))
            say(f"warning: {what}; the records are safe, the same command mirrors them")


def require_usable(settings: Config) -> None:
    """Raise `ConfigError` if MLflow is wanted but not installed, or cannot write to the address that is set."""
    if settings.tracking["name"] == "none":
        return
    if importlib.util.find_spec("mlflow") is None:
        allowed = "install attention-zoo[tracking] or use tracking=none"
        raise ConfigError(f"tracking='mlflow': mlflow is not installed; {allowed}")
    if (uri := settings.tracking["uri"]) is not None:
        _require_store(uri)


def _require_store(uri: str) -> None:
    """Refuse an address that cannot be an MLflow store."""
    try:
        parts = urlsplit(uri)
        _ = parts.port  # raises unless it is a number below 65536
    except ValueError as error:
        raise ConfigError(f"tracking.uri={uri!r}: {one_line(error)}") from None
    scheme, file = parts.scheme.partition("+")[0], Path(parts.path[1:])
    known = (*SCHEMES, *(entry.name for entry in entry_points(group="mlflow.tracking_store")))
    wrong = None
    if uri != "databricks" and scheme not in known:
        wrong = f"must start with one of {', '.join(f'{name}:' for name in known)}"
    elif scheme in ("http", "https") and not parts.hostname:
        wrong = "names no host"
    elif scheme == "sqlite" and (file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK)):
        wrong = "must be sqlite:///FILE in a folder that can be written"
    if wrong:
        raise ConfigError(f"tracking.uri={uri!r}: {wrong}")


class Background:
    """A thread that runs tasks in the order in which they come; after a task fails, all waiting tasks are dropped.

    It is a daemon thread, unlike those of `concurrent.futures`: a program that ends does not wait for a server.
    `failed` is called in that thread with the error of a task.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._tasks: queue.Queue[Callable[[], object] | None] = queue.Queue()
        threading.Thread(target=self._work, name="mirror", daemon=True).start()

    @property
    def busy(self) -> bool:
        """Whether a task is running or waiting."""
        return self._tasks.unfinished_tasks > 0

    def add(self, task: Callable[[], object] | None) -> None:
        """Run a task after all earlier ones; None ends the thread."""
        self._tasks.put(task)

    def drop(self) -> None:
        """Drop the tasks that have not begun."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._tasks.get_nowait()
                self._tasks.task_done()

    def wait(self, seconds: float) -> bool:
        """Wait until all tasks are done, for at most `seconds`; returns whether they are."""
        with self._tasks.all_tasks_done:
            return self._tasks.all_tasks_done.wait_for(lambda: not self.busy, seconds)

    def _work(self) -> None:
        for task in iter(self._tasks.get, None):
            try:
                task()
            except Exception as error:
                self._failed(error)
                self.drop()
            finally:
                self._tasks.task_done()
