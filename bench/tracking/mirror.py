"""The MLflow mirror of the records. It is made from the records, and can be made again at any time."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from filelock import FileLock
from tqdm import tqdm

from bench.common.errors import ConfigError, one_line, say
from bench.common.quiet import QUIET
from bench.measures.progress import Point
from bench.records import plans
from bench.records.own import identity
from bench.records.record import Record, RecordError
from bench.records.store import latest
from bench.records.table import table
from bench.tracking import views
from bench.tracking.comparison import entries, lines, settled
from bench.tracking.lines import FORMAT, digest, milliseconds, names, sweep_name, text

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from bench.tracking.runs import Runs

EXPERIMENT = "attention-zoo"
LOCK_TIMEOUT_S = 600.0
# These loggers would print the stack trace of an error that is reported in one line.
LOGGERS = {"alembic": logging.WARNING, "sqlalchemy": logging.CRITICAL, "mlflow": logging.CRITICAL}
# Lines per sweep: MLflow's pages list and draw this many.
MAX_LINES = 100
# From this many records on, a progress bar is shown; it moves after each batch.
SHOWN, BATCH = 200, 50
FIGURES = (".png", ".svg", ".pdf")


class TrackingError(RuntimeError):
    """The mirror could not be written, in one line; the records are safe and can be mirrored later."""


class Mirror:
    """An MLflow experiment that shows the records of `results_dir`.

    A sweep is a run with its figures and its table (tag `kind=summary`). Below it there is a run for each record
    (`kind=cell`), and for each mechanism and condition (`kind=curve`). Runs that compare all sweeps have
    `kind=comparison`. The tag `folder` says whose a run is: folders can share a server, none touches another's runs.
    The store is `results_dir/mlflow.db` unless `uri` names another. Every method holds a file lock, repairs what a
    killed process left half-written, and raises only `TrackingError`.
    """

    def __init__(self, results_dir: Path, *, experiment: str = EXPERIMENT, uri: str | None = None) -> None:
        self.results_dir = Path(results_dir).resolve()
        if uri is None and (odd := re.search(r"\?|%[0-9A-Fa-f]{2}", str(self.results_dir))):
            # The address of an SQLite database ends at a ?, and %20 in it is a space: another file would be written.
            why = f"MLflow's database cannot be at a path with {odd[0]}"
            raise ConfigError(f"results_dir={str(results_dir)!r}: {why}; must be another folder, or with tracking=none")
        self.experiment = experiment
        self.database = None if uri else self.results_dir / "mlflow.db"
        self.uri = uri or f"sqlite:///{self.database}"
        self.artifacts_uri = (self.results_dir / "mlartifacts").as_uri()
        self.answered = time.monotonic()
        """When the store last answered."""

    def load(self) -> None:
        """Import MLflow, which takes one or two seconds, ahead of the other calls."""
        with self._failing():
            _import_runs()

    def create(self) -> str:
        """Create the store and the experiment if they are missing; returns the experiment's id."""
        with self._writing() as experiment:
            return experiment.id

    def sync(self, records: Iterable[Record]) -> int:
        """Mirror all records that are not mirrored yet; returns their number.

        Pass all records of each cell: those that a later attempt replaces are tagged `superseded`. Records that MLflow
        rejects are named on stderr and left out.
        """
        with self._writing() as experiment:
            return self._sync(experiment, {record.record_id: record for record in records})

    def _sync(self, experiment: Runs, by_id: Mapping[str, Record]) -> int:
        by_cell = latest(by_id.values())
        standing = {record.record_id for record in by_cell.values()}
        # A sweep calls this for each cell, so only that cell's runs are read.
        cell_ids = {record.cell_id for record in by_id.values()}
        one_cell = f" AND tags.cell_id = '{min(cell_ids)}'" if len(cell_ids) == 1 else ""
        titles, written = names(by_id.values()), 0
        runs: dict[str, Run] = {}
        parents = {run.data.tags["sweep_id"]: run.info.run_id for run in experiment.search("tags.kind = 'summary'")}
        for run in experiment.search("tags.kind = 'cell'" + one_cell):
            record_id = run.data.tags["record_id"]
            # A run that is unfinished while we hold the lock was left by a killed process.
            torn = run.info.status == "RUNNING" or run.data.tags.get("format") != FORMAT
            if record_id in runs or (record_id in by_id and torn):
                experiment.client.delete_run(run.info.run_id)
            else:
                runs[record_id] = run
        known: list[tuple[Run, Mapping[str, str]]] = []
        new: list[tuple[Record, str, Mapping[str, str]]] = []
        for record_id, record in by_id.items():
            tags = {"superseded": str(record_id not in standing).lower()}
            if record_id in runs:  # with one cell only, the other names in use are unknown
                name = {} if one_cell else {"mlflow.runName": text(titles[record_id])}
                known.append((runs[record_id], tags | name))
            else:
                parent = {"mlflow.parentRunId": parents[record.sweep_id]} if record.sweep_id in parents else {}
                new.append((record, titles[record_id], tags | parent))
        experiment.retag(known)
        # disable=None: shown on terminals only.
        with tqdm(total=len(new), desc="mirroring", unit=" records", disable=len(new) < SHOWN or None) as shown:
            for start in range(0, len(new), BATCH):
                batch = new[start : start + BATCH]
                written += experiment.write_cells(batch)
                shown.update(len(batch))
        experiment.end_live(by_cell, one_cell, self.results_dir / "locks")
        return written

    def complete(self, records: Iterable[Record]) -> int:
        """Mirror records, missing or old summaries of sweeps with several cells, and the lines that compare all sweeps.

        Returns the number of new records.
        """
        by_id = {record.record_id: record for record in records}
        by_cell = latest(by_id.values())
        standing = sorted(by_cell.values(), key=lambda record: (record.ended, record.cell_id))
        sweeps: dict[str, list[Record]] = defaultdict(list)
        for record in standing:
            sweeps[record.sweep_id].append(record)
        with self._writing() as experiment:
            summaries = experiment.search("tags.kind = 'summary'")
            known = [
                run for run in summaries if run.data.tags.get("format") == FORMAT and run.info.status == "FINISHED"
            ]
            ends = {run.data.tags["sweep_id"]: run.info.start_time for run in known}  # a summary starts at the end
            # Summaries first, so that their cells are then written below them.
            for sweep_id, of_sweep in sweeps.items():
                own = self._planned(sweep_id, by_cell) or of_sweep
                if len(own) < 2 or ends.get(sweep_id, -1) >= milliseconds(own[-1].ended):
                    continue
                drawn = sorted((self.results_dir / "sweeps" / sweep_id).glob("*"))
                figures = [path for path in drawn if path.suffix in FIGURES]
                self._summarise(experiment, own, figures, table(own), sweep_id)
            self._compare(experiment, standing)
            return self._sync(experiment, by_id)

    def _planned(self, sweep_id: str, by_cell: Mapping[str, Record]) -> list[Record]:
        """The records of all cells of a sweep, also of those that another sweep measured; empty without its plan."""
        with contextlib.suppress(ConfigError, RecordError):
            cells = plans.load(self.results_dir, sweep_id).cells
            own = [by_cell[cell.cell_id] for cell in cells if cell.cell_id in by_cell]
            return sorted(own, key=lambda record: (record.ended, record.cell_id))
        return []

    def _compare(self, experiment: Runs, standing: Sequence[Record]) -> None:
        """Write the lines that compare all records, unless they exist already."""
        content = {"kind": "comparison", "content_sha256": digest(standing)}
        known = experiment.search("tags.kind = 'comparison'")
        if standing and {run.data.tags["content_sha256"] for run in known} != {content["content_sha256"]}:
            found = settled(lines(entries(standing)), views.METRICS)[:MAX_LINES]
            for run in known:
                experiment.client.delete_run(run.info.run_id)
            experiment.write_lines(found, content, milliseconds(standing[-1].ended))

    def follow(self, cell_id: str, config: Mapping[str, Any], points: Mapping[str, Point]) -> None:
        """Add points to the curves of a cell that is being measured; its record's run will have all points."""
        with self._writing() as experiment:
            experiment.write_points(cell_id, config, points)

    def summary(self, sweep_id: str, records: Iterable[Record], figures: Sequence[Path], table: str) -> None:
        """Write the runs that show a sweep as a whole; they replace those of an earlier call.

        `records` are all records of the sweep; the standing one of each cell is used. `figures` are image files and
        `table` is Markdown: they become artifacts of the summary run, with a list of the cells.
        """
        standing = sorted(latest(records).values(), key=lambda record: (record.ended, record.cell_id))
        with self._writing() as experiment:
            self._summarise(experiment, standing, figures, table, sweep_id)

    def _summarise(
        self, experiment: Runs, standing: Sequence[Record], figures: Sequence[Path], table: str, sweep_id: str
    ) -> None:
        name = sweep_name(standing)
        tags = {"sweep_id": sweep_id, "sweep": name, "content_sha256": digest(standing, figures, table)}
        runs = experiment.search(f"tags.sweep_id = '{sweep_id}' AND tags.kind != 'cell'")
        # The summary run is finished last, so a finished one shows that all lines are there.
        vouching = {**tags, "kind": "summary", "format": FORMAT}
        if any(run.info.status == "FINISHED" and run.data.tags.items() >= vouching.items() for run in runs):
            return
        for run in runs:
            experiment.client.delete_run(run.info.run_id)
        # MLflow lists the newest run first: these start when the sweep ended.
        ended = max((milliseconds(record.ended) for record in standing), default=0)
        view = views.of(sweep_id, experiment.folder)
        note = views.LINK.format(name=name, address=views.address(view, experiment.id)[1:])
        with experiment.summary(standing, figures, table, {**vouching, "mlflow.note.content": note}, ended) as parent:
            drawn = lines(entries(standing))
            if len(drawn) > MAX_LINES:
                say(f"MLflow mirror: {name}: lines for {MAX_LINES} of {len(drawn)} mechanisms and conditions")
            own = {**tags, "kind": "curve", "mlflow.parentRunId": parent}
            experiment.write_lines(drawn[:MAX_LINES], own, ended)
            experiment.client.set_experiment_tag(experiment.id, *views.of_sweep(sweep_id, experiment.folder))
            cells = experiment.search(f"tags.sweep_id = '{sweep_id}' AND tags.kind = 'cell'")
            experiment.retag((run, {"mlflow.parentRunId": parent}) for run in cells)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Runs]:
        """Lock the store and open the experiment for writing."""
        with self._failing():
            os.stat(self.results_dir)  # fails for an unmounted folder, which must not be created again
            with FileLock(self.results_dir / "mlflow.lock", timeout=LOCK_TIMEOUT_S):
                runs = _import_runs()
                if self.database:
                    runs.write_without_waiting_for_the_disk()
                    if not self.database.exists():
                        runs.create_store(self.database, self.artifacts_uri)
                client = cast("MlflowClient", _Noting(runs.MlflowClient(self.uri), self))
                own = (self.uri, self.artifacts_uri) if self.database else None
                yield runs.Runs(client, self._open(client), identity(self.results_dir), own)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Turn every error into a `TrackingError`."""
        try:
            yield
        # MLflow, SQLAlchemy, alembic and the disk share no error class, and a broken mirror must never end a sweep.
        except Exception as error:
            raise TrackingError(f"MLflow mirror of {self.results_dir}: {one_line(error)}") from error

    def _open(self, client: MlflowClient) -> str:
        """The experiment's id; creates the experiment, or restores a deleted one, if necessary."""
        experiment = client.get_experiment_by_name(self.experiment)
        if experiment is not None and experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
        if experiment is not None and self.database and experiment.artifact_location != self.artifacts_uri:
            # The folder was moved, and every run has the old path of its artifacts: mirror all records again.
            client.rename_experiment(experiment.experiment_id, f"{self.experiment} {experiment.experiment_id}, moved")
            client.delete_experiment(experiment.experiment_id)
            experiment = None
        if experiment is None:
            # A server stores the artifacts itself.
            location = None if self.uri.startswith("http") else self.artifacts_uri
            experiment = client.get_experiment(client.create_experiment(self.experiment, location))
        for key, value in views.tags(experiment.experiment_id).items():
            if experiment.tags.get(key) != value:
                client.set_experiment_tag(experiment.experiment_id, key, value)
        return str(experiment.experiment_id)


class _Noting:
    """An MLflow client that notes when it was answered, so that a slow server is told from a dead one."""

    def __init__(self, client: MlflowClient, mirror: Mirror) -> None:
        self._client, self._mirror = client, mirror

    def __getattr__(self, name: str) -> Any:
        self._mirror.answered = time.monotonic()  # the call before this one was answered
        return getattr(self._client, name)


def _import_runs() -> ModuleType:
    """Import the module that imports MLflow, which takes one or two seconds."""
    os.environ.update(QUIET)
    from bench.tracking import runs

    for chatty, level in LOGGERS.items():
        logging.getLogger(chatty).setLevel(level)
    return runs
