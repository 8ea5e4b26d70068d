"""The sweep's side of MLflow: it may be off or broken, and no measurement depends on it."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

from bench.errors import ConfigError, one_line, say, without_credentials
from bench.measures.progress import Progress
from bench.plan.cell import Cell
from bench.plan.config import Config
from bench.records.record import Record
from bench.table import table
from bench.tracking.mirror import Mirror, TrackingError

# A server that is not there costs seconds, once, instead of MLflow's minutes; what the user has set stays.
PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
}
LIVE_INTERVAL_S = 5.0
SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks")


class Tracker:
    """Mirrors records as they come, and the sweep as a whole when it is done.

    Raises:
        ConfigError: MLflow is wanted and not installed, or cannot write where it is told to.
    """

    def __init__(self, settings: Config) -> None:
        self.mirror: Mirror | None = None
        self._followed = -LIVE_INTERVAL_S
        if settings.tracking["name"] == "none":
            return
        if importlib.util.find_spec("mlflow") is None:
            raise ConfigError(
                "tracking='mlflow': mlflow is not installed; install attention-zoo[tracking] or use tracking=none"
            )
        experiment, uri = settings.tracking["experiment"], settings.tracking["uri"]
        if uri is not None:
            _require_store(uri)
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        self.mirror = Mirror(Path(settings.results_dir), experiment=experiment, uri=uri)

    def sync(self, records: Sequence[Record]) -> None:
        """Mirror what is not there yet."""
        if self.mirror is None:
            return
        try:
            self.mirror.sync(records)
        except TrackingError as error:
            self._give_up(error)

    def follow(self, cell: Cell, progress: Progress) -> None:
        """Add the newest points of a cell's curves, not too often, while it is measured."""
        now = time.monotonic()
        if self.mirror is None or not progress.curves or now - self._followed < LIVE_INTERVAL_S:
            return
        self._followed = now
        try:
            self.mirror.follow(cell.cell_id, cell.config, progress.curves)
        except TrackingError as error:
            self._give_up(error)

    def wants_summary(self, records: Sequence[Record]) -> bool:
        """Whether there is a mirror, and several cells to show together."""
        return self.mirror is not None and len(records) > 1

    def finish(self, sweep_id: str, records: Sequence[Record], figures: Sequence[Path]) -> None:
        """Write the summary run of a sweep, with its figures."""
        if self.mirror is None:
            return
        try:
            self.mirror.summary(sweep_id, records, figures, table(records))
        # The sweep is done, and its figures may be anything.
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        what = without_credentials(one_line(error))
        say(f"warning: {what}; the records are safe, the next sweep mirrors them")
        self.mirror = None


def _require_store(uri: str) -> None:
    """Refuse an address that no MLflow store can have."""
    try:
        parts = urlsplit(uri)
        _ = parts.port  # of digits, below 65536
    except ValueError as error:
        raise ConfigError(f"tracking.uri={uri!r}: {one_line(error)}") from None
    scheme = parts.scheme.partition("+")[0]
    known = (*SCHEMES, *(entry.name for entry in entry_points(group="mlflow.tracking_store")))
    if uri != "databricks" and scheme not in known:
        raise ConfigError(f"tracking.uri={uri!r}: must start with one of {', '.join(f'{name}:' for name in known)}")
    if scheme in ("http", "https") and not parts.hostname:
        raise ConfigError(f"tracking.uri={uri!r}: names no host")
    if scheme == "sqlite":
        file = Path(parts.path[1:])
        if not parts.path[1:] or file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
            raise ConfigError(f"tracking.uri={uri!r}: must be sqlite:///FILE in a folder that can be written")
