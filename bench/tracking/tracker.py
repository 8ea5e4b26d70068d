"""How a sweep writes to MLflow, which may be off, slow or broken: no measurement depends on it.

A thread writes. A store on this machine takes processor time (20 ms a record, 0.3 s with long curves, seconds to make
the store), which would disturb the next cell's timing: that waits until all is written. A server takes 0.06 s for a
record, and the next cell waits for twice that at most, and not again for a server that was slower. What takes longer,
such as records that an earlier server never got, is written when the sweep is done.
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

# A server that is not there is given up after seconds instead of MLflow's minutes; what the user has set stays.
PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
LIVE_INTERVAL_S = 5.0
# How long the next cell waits for a record to be mirrored. Another process may hold the lock of a store for minutes.
LOCAL_WINDOW_S, SERVER_WINDOW_S = 60.0, 0.15
# When the sweep is done: how long it waits, how much longer for each record, and after how long it says so.
FINISH_S, FINISH_RECORD_S, SILENT_S = 60.0, 0.5, 5.0
LOCAL = ("sqlite:", "file:")
SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks")


class Tracker:
    """Mirrors each record as it comes, and the sweep as a whole when it is done.

    Raises ConfigError where MLflow is wanted and not installed, or cannot write where it is told to.
    """

    def __init__(self, settings: Config) -> None:
        self.mirror: Mirror | None = None
        self._in_time, self._begun = True, False
        self._records: dict[str, Record] = {}
        # By cell: when points of its curves were last sent, and its newest points while they wait for that.
        self._followed: dict[str, float] = {}
        self._live: dict[str, tuple[Mapping[str, Any], Mapping[str, Point]]] = {}
        if settings.tracking["name"] == "none":
            return
        if importlib.util.find_spec("mlflow") is None:
            allowed = "install attention-zoo[tracking] or use tracking=none"
            raise ConfigError(f"tracking='mlflow': mlflow is not installed; {allowed}")
        experiment, uri = settings.tracking["experiment"], settings.tracking["uri"]
        if uri is not None:
            _require_store(uri)
        self._window = LOCAL_WINDOW_S if uri is None or uri.startswith(LOCAL) else SERVER_WINDOW_S
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        self.mirror = Mirror(Path(settings.results_dir), experiment=experiment, uri=uri)
        self._background = Background(self._give_up)

    def sync(self, records: Sequence[Record]) -> None:
        """Take what the cells have already, the first time; after that mirror all records of a cell."""
        mirror = self.mirror  # the thread may give it up
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
        # The next cell waits for it a little, unless that was in vain before.
        patient = self._in_time or not self._background.busy
        self._background.add(partial(mirror.sync, records) if self._begun else mirror.create)
        self._in_time = patient and self._background.wait(self._window)
        self._begun = True

    def follow(self, cell: Cell, progress: Progress) -> None:
        """Add the newest points of a cell's curves, not too often, while it is measured."""
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
        """Whether there is a mirror, and several cells to show together."""
        return self.mirror is not None and len(records) > 1

    def finish(self, sweep_id: str, records: Sequence[Record], figures: Sequence[Path]) -> None:
        """Complete the mirror, with the summary run of a sweep of several cells, and wait as long as it gets on."""
        mirror = self.mirror
        if mirror is None:
            return
        self._background.drop()  # all of it comes now, in fewer requests
        self._background.add(partial(mirror.sync, list(self._records.values())))
        if self.wants_summary(records):
            self._background.add(lambda: mirror.summary(sweep_id, records, figures, table(records)))
        longest = FINISH_S + FINISH_RECORD_S * len(self._records)
        if not self._background.wait(min(SILENT_S, longest)):
            say("all is measured, MLflow is still being told; Ctrl-C leaves that to the next sweep")
            if not self._background.wait(longest - SILENT_S):
                self._give_up(TrackingError(f"MLflow mirror of {mirror.results_dir}: not done after {longest:.0f} s"))
        self._background.add(None)

    def _send(self, mirror: Mirror, cell_id: str) -> None:
        if newest := self._live.pop(cell_id, None):
            mirror.follow(cell_id, *newest)

    def _give_up(self, error: Exception) -> None:
        if self.mirror is not None:
            self.mirror = None
            self._background.drop()
            what = without_credentials(one_line(error))
            say(f"warning: {what}; the records are safe, the next sweep mirrors them")


def _require_store(uri: str) -> None:
    """Refuse an address that no MLflow store can have."""
    try:
        parts = urlsplit(uri)
        _ = parts.port  # of digits, below 65536
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
    """A thread that does tasks in the order in which they come; after one that fails, those that wait are dropped.

    It is a daemon, unlike that of an executor of `concurrent.futures`: a program that ends does not wait for a server.
    `failed` gets what a task raised, in that thread.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._tasks: queue.Queue[Callable[[], object] | None] = queue.Queue()
        threading.Thread(target=self._work, name="mirror", daemon=True).start()

    @property
    def busy(self) -> bool:
        """Whether a task is being done, or waits for that."""
        return self._tasks.unfinished_tasks > 0

    def add(self, task: Callable[[], object] | None) -> None:
        """Do it when all before it are done; None ends the thread."""
        self._tasks.put(task)

    def drop(self) -> None:
        """Forget the tasks that have not begun."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._tasks.get_nowait()
                self._tasks.task_done()

    def wait(self, seconds: float) -> bool:
        """Wait until all is done, at most so long; returns whether it is."""
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
