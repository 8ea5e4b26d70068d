"""The sweep's side of MLflow: it may be off or broken, and no measurement depends on it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.plan.config import Config, ConfigError
from bench.records.record import Record
from bench.records.table import table
from bench.tracking.mirror import Mirror, TrackingError


class Tracker:
    """Mirrors records as they come, and the sweep as a whole when it is done.

    Raises:
        ConfigError: MLflow is wanted and not installed.
    """

    def __init__(self, settings: Config) -> None:
        self.results_dir = Path(settings.results_dir)
        self.mirror: Mirror | None = None
        if settings.tracking["name"] == "none":
            return
        if importlib.util.find_spec("mlflow") is None:
            raise ConfigError(
                "tracking='mlflow': mlflow is not installed; install attention-zoo[tracking] or use tracking=none"
            )
        given = {key: settings.tracking[key] for key in ("experiment", "uri")}
        self.mirror = Mirror(self.results_dir, **given)

    def sync(self, records: Sequence[Record]) -> None:
        """Mirror what is not there yet."""
        if self.mirror is None:
            return
        try:
            self.mirror.sync(records)
        except TrackingError as error:
            self._give_up(error)

    def finish(self, sweep_id: str, records: Sequence[Record]) -> None:
        """Write the summary run of a sweep of several cells, with its figures."""
        if self.mirror is None or len(records) < 2:
            return
        try:
            self.mirror.summary(sweep_id, records, self._figures(sweep_id, records), table(records))
        except TrackingError as error:
            self._give_up(error)

    def _figures(self, sweep_id: str, records: Sequence[Record]) -> list[Path]:
        if importlib.util.find_spec("seaborn") is None:
            return []
        import analysis

        folder = self.results_dir / "sweeps" / sweep_id
        return analysis.figures(self.results_dir, folder, {record.cell_id for record in records})

    def _give_up(self, error: TrackingError) -> None:
        print(f"warning: {error}; the records are safe, the next sweep mirrors them", file=sys.stderr)
        self.mirror = None
