"""The sweep's side of MLflow: it may be off or broken, and no measurement depends on it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.errors import ConfigError, one_line
from bench.plan.config import Config
from bench.records.record import Record
from bench.table import table
from bench.tracking.mirror import Mirror, TrackingError


class Tracker:
    """Mirrors records as they come, and the sweep as a whole when it is done.

    Raises:
        ConfigError: MLflow is wanted and not installed.
    """

    def __init__(self, settings: Config) -> None:
        self.mirror: Mirror | None = None
        if settings.tracking["name"] == "none":
            return
        if importlib.util.find_spec("mlflow") is None:
            raise ConfigError(
                "tracking='mlflow': mlflow is not installed; install attention-zoo[tracking] or use tracking=none"
            )
        experiment, uri = settings.tracking["experiment"], settings.tracking["uri"]
        self.mirror = Mirror(Path(settings.results_dir), experiment=experiment, uri=uri)

    def sync(self, records: Sequence[Record]) -> None:
        """Mirror what is not there yet."""
        if self.mirror is None:
            return
        try:
            self.mirror.sync(records)
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
        print(f"warning: {one_line(error)}; the records are safe, the next sweep mirrors them", file=sys.stderr)
        self.mirror = None
