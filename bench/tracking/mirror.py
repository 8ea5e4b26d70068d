"""The MLflow mirror of the records: rebuilt from them at any time, complete or not there, never the truth."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from bench.errors import bounded, one_line, say
from bench.measures import flatten
from bench.measures.progress import Point
from bench.measures.summary import benchmark, curves, features, summarise
from bench.quiet import QUIET
from bench.records.record import FAILED, Record, RecordError
from bench.records.store import latest

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

EXPERIMENT = "attention-zoo"
LOCK_TIMEOUT_S = 600.0
# What goes wrong is an exception, which is said in one line; these would print its stack beside it.
LOGGERS = {"alembic": logging.WARNING, "sqlalchemy": logging.CRITICAL, "mlflow": logging.CRITICAL}
# What MLflow takes in one call, and characters of a value (it takes 6000, which nobody reads) and of a note.
MAX_PARAMS, MAX_METRICS, MAX_VALUE, MAX_NOTE = 100, 900, 500, 8000
# Of a curve.
MAX_POINTS = 200
# Unsupported and out of memory are findings; what failed is to be looked into or run again.
_RUN_STATUS = dict.fromkeys(FAILED, "FAILED") | {"interrupted": "KILLED"}


class TrackingError(RuntimeError):
    """The mirror could not be written, in one line; the records are unharmed and can be mirrored later."""


def _step(record: Record) -> int:
    """The axis that the paper's figure has: the number of features for errors, else the length."""
    size = features(record) if benchmark(record).axis == "features" else None
    return size or record.config["seq_len"]


class Mirror:
    """An MLflow experiment that shows the records of `results_dir`.

    Its runs are flat: one per record (tag `kind=cell`) and, per sweep, one for each mechanism's curves over
    `seq_len` (`kind=curve`) and one for figures and tables (`kind=summary`). The store is
    `results_dir/mlflow.db` unless `uri` names another. Every method holds a file lock, repairs what a killed
    one left half-written, and raises `TrackingError` for whatever goes wrong.
    """

    def __init__(self, results_dir: Path, *, experiment: str = EXPERIMENT, uri: str | None = None) -> None:
        self.results_dir = Path(results_dir).resolve()
        self.experiment = experiment
        self.database = None if uri else self.results_dir / "mlflow.db"
        self.uri = uri or f"sqlite:///{self.database}"
        self.artifacts_uri = (self.results_dir / "mlartifacts").as_uri()
        self.beats = 0
        """Grows with every answer of the store, so that who waits for a thread that writes sees whether it gets on."""

    def load(self) -> None:
        """Import MLflow, which takes a second or two of a processor; later calls find it there."""
        with self._failing():
            _client_class()

    def create(self) -> str:
        """Create the store and the experiment where they are missing; returns the experiment's id."""
        with suppress(OSError):  # said below
            self.results_dir.mkdir(parents=True, exist_ok=True)
        with self._writing() as experiment:
            return experiment.id

    def sync(self, records: Iterable[Record]) -> int:
        """Mirror all records that are not there yet; returns how many that were.

        Give it every record: those that a later attempt replaces are tagged `superseded`. One that MLflow refuses is
        named on stderr and left out.
        """
        by_id = {record.record_id: record for record in records}
        by_cell = latest(by_id.values())
        standing = {record.record_id for record in by_cell.values()}
        # A sweep calls this cell by cell: it need not read all runs each time.
        cell_ids = {record.cell_id for record in by_id.values()}
        one_cell = f" AND tags.cell_id = '{min(cell_ids)}'" if len(cell_ids) == 1 else ""
        with self._writing() as experiment:
            written = 0
            runs: dict[str, Run] = {}
            for run in experiment.search("tags.kind = 'cell'" + one_cell):
                record_id = run.data.tags["record_id"]
                # Unfinished while we hold the lock: its writer was killed.
                if record_id in runs or (record_id in by_id and run.info.status == "RUNNING"):
                    experiment.client.delete_run(run.info.run_id)
                else:
                    runs[record_id] = run
            for record_id, record in by_id.items():
                superseded = str(record_id not in standing).lower()
                if record_id not in runs:
                    written += experiment.write_cell(record, superseded)
                elif runs[record_id].data.tags.get("superseded") != superseded:
                    experiment.client.set_tag(runs[record_id].info.run_id, "superseded", superseded)
            experiment.end_live(by_cell, one_cell)
            return written

    def follow(self, cell_id: str, config: Mapping[str, Any], points: Mapping[str, Point]) -> None:
        """Add points to the curves of a cell that is being measured; its record's run will have all of them."""
        with self._writing() as experiment:
            experiment.write_points(cell_id, config, points)

    def summary(self, sweep_id: str, records: Iterable[Record], figures: Sequence[Path], table: str) -> None:
        """Write the runs that show a sweep as a whole, in place of those that an earlier call wrote.

        `records` are all of the sweep's, and the standing one of each cell counts; `figures` are image files
        and `table` is Markdown: artifacts of the summary run, beside the list of the cells.
        """
        standing = sorted(latest(records).values(), key=lambda record: record.cell_id)
        with self._writing() as experiment:
            tags = {"sweep_id": sweep_id, "content_sha256": _digest(standing, figures, table)}
            runs = experiment.search(f"tags.sweep_id = '{sweep_id}' AND tags.kind != 'cell'")
            # The summary run is finished last, so it vouches for the curves.
            if any(
                run.info.status == "FINISHED" and run.data.tags.items() >= {**tags, "kind": "summary"}.items()
                for run in runs
            ):
                return
            for run in runs:
                experiment.client.delete_run(run.info.run_id)
            # The pages list the newest run first and draw the first ten: these start when the sweep ended.
            ended = max((_milliseconds(record.ended) for record in standing), default=0)
            for line, on_line in _lines(standing).items():
                experiment.write_curve(line, on_line, tags, ended)
            experiment.write_summary(standing, figures, table, tags, ended)

    @contextmanager
    def _writing(self) -> Iterator[_Experiment]:
        """The experiment, for the one process that may write now."""
        with self._failing():
            os.stat(self.results_dir)  # one that is away is not made anew
            with FileLock(self.results_dir / "mlflow.lock", timeout=LOCK_TIMEOUT_S):
                yield self._open()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Whatever goes wrong is a `TrackingError`."""
        try:
            yield
        # MLflow, SQLAlchemy, alembic and the disk share no error class, and a bad mirror is never fatal.
        except Exception as error:
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise TrackingError(f"MLflow mirror of {self.results_dir}: {first_line}") from error

    def _open(self) -> _Experiment:
        client_class = _client_class()
        if self.database and not self.database.exists():
            _create_database(self.database, self.artifacts_uri)
        client = client_class(self.uri)
        experiment = client.get_experiment_by_name(self.experiment)
        self._beat()
        if experiment is None:
            # A server keeps its artifacts itself.
            location = None if self.uri.startswith("http") else self.artifacts_uri
            return _Experiment(client, client.create_experiment(self.experiment, location), self._beat)
        if experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
        return _Experiment(client, experiment.experiment_id, self._beat)

    def _beat(self) -> None:
        self.beats += 1


def _client_class() -> type[MlflowClient]:
    os.environ.update(QUIET)
    from mlflow import MlflowClient

    for chatty, level in LOGGERS.items():
        logging.getLogger(chatty).setLevel(level)
    return MlflowClient


def _create_database(path: Path, artifacts_uri: str) -> None:
    """Migrate under another name, then rename: a migration that is killed half-way cannot be continued."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    unfinished = path.with_name(f".{path.name}.tmp")
    unfinished.unlink(missing_ok=True)
    SqlAlchemyStore(f"sqlite:///{unfinished}", artifacts_uri).engine.dispose()
    os.replace(unfinished, path)


@dataclass(frozen=True)
class _Experiment:
    """The MLflow experiment, and how its three kinds of runs are written."""

    client: MlflowClient
    id: str
    beat: Callable[[], None]

    def search(self, query: str) -> list[Run]:
        # All pages before any change: MLflow's page tokens are offsets.
        runs: list[Run] = []
        token = None
        while token != "":
            page = self.client.search_runs([self.id], query, max_results=1000, page_token=token)
            self.beat()
            runs.extend(page)
            token = page.token or ""
        return runs

    def write_points(self, cell_id: str, config: Mapping[str, Any], points: Mapping[str, Point]) -> None:
        from mlflow.entities import Metric

        live = next(iter(self.search(f"tags.kind = 'live' AND tags.cell_id = '{cell_id}'")), None)
        if live is None:
            tags = {"kind": "live", "cell_id": cell_id, "attention": _text(config["label"])}
            name = f"{config['label']} n={config['seq_len']} {config['bench']['name']}, running"
            live = self.client.create_run(self.id, tags=tags, run_name=_text(name))
            self._log(live.info.run_id, [], params=flatten(config))
        elif live.info.status != "RUNNING":
            self.client.update_run(live.info.run_id, "RUNNING")
        told, now = live.data.metrics, round(time.time() * 1000)
        new = {f"curve/{_name(name)}": point for name, point in points.items()}
        self._log(
            live.info.run_id,
            [
                Metric(name, point.value, now, point.step)
                for name, point in new.items()
                if told.get(name) != point.value
            ],
        )

    def end_live(self, records: Mapping[str, Record], one_cell: str) -> None:
        """Take away what was shown of cells until their records came; of one that failed it is all there is."""
        for live in self.search("tags.kind = 'live'" + one_cell):
            record = records.get(live.data.tags["cell_id"])
            if record is not None and record.status == "ok":
                self.client.delete_run(live.info.run_id)
            elif record is not None and live.info.status == "RUNNING":
                self.client.set_terminated(live.info.run_id, _RUN_STATUS.get(record.status, "FINISHED"))

    def write_cell(self, record: Record, superseded: str) -> bool:
        """Returns whether MLflow takes it."""
        from mlflow.exceptions import MlflowException

        d = features(record) if "features" in record.measurements else None
        size = f"n={record.config['seq_len']}" + (f" d={d}" if d else "")
        name = f"{record.config['label']} {size} {record.config['bench']['name']}"
        told, reason = _told(record)
        tags = _cell_tags(record, reason) | {"kind": "cell", "superseded": superseded}
        times = _milliseconds(record.started), _milliseconds(record.ended)
        try:
            with self._run(name, tags, *times, _RUN_STATUS.get(record.status, "FINISHED")) as run_id:
                metrics = [*_metrics(record, told), *(_curves(record) if told else ())]
                self._log(run_id, metrics, params=flatten(record.config))
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            say(f"warning: MLflow mirror: {record.file_name}: left out, {one_line(error)}")
            return False
        return True

    def write_curve(self, line: str, records: Sequence[Record], sweep: Mapping[str, str], ended: int) -> None:
        tags = {**sweep, "kind": "curve", "attention": _text(records[0].config["label"])}
        with self._run(line, tags, ended, ended) as run_id:
            self._log(run_id, [metric for record in records for metric in _metrics(record, _told(record)[0])])

    def write_summary(
        self,
        records: Sequence[Record],
        figures: Sequence[Path],
        table: str,
        sweep: Mapping[str, str],
        ended: int,
    ) -> None:
        # The page of a run shows its note, rendered.
        tags = {**sweep, "kind": "summary", "mlflow.note.content": table[:MAX_NOTE]}
        cells = [
            {"cell_id": record.cell_id, "record_id": record.record_id, "status": record.status} for record in records
        ]
        with self._run(f"summary of sweep {sweep['sweep_id'][:12]}", tags, ended, ended) as run_id:
            for status, count in Counter(record.status for record in records).items():
                self.client.log_metric(run_id, f"status/{status}", count, timestamp=ended)
            for figure in figures:
                self.client.log_artifact(run_id, str(figure), "figures")
            self.client.log_text(run_id, table, "table.md")
            self.client.log_dict(run_id, {"cells": cells}, "cells.json")

    @contextmanager
    def _run(
        self, name: str, tags: Mapping[str, str], started: int, ended: int, status: str = "FINISHED"
    ) -> Iterator[str]:
        """A run that is RUNNING until all of it is written; times in milliseconds since 1970."""
        run = self.client.create_run(self.id, start_time=started, tags=dict(tags), run_name=_text(name))
        try:
            yield run.info.run_id
        except Exception:
            with suppress(Exception):  # else the next sync does it
                self.client.delete_run(run.info.run_id)
            raise
        self.client.set_terminated(run.info.run_id, status, ended)
        self.beat()

    def _log(self, run_id: str, metrics: Sequence[Metric], params: Mapping[str, Any] | None = None) -> None:
        from mlflow.entities import Param

        named = {_name(key): _text(value) for key, value in (params or {}).items()}
        entered = [Param(*item) for item in list(named.items())[:MAX_PARAMS]]
        self.client.log_batch(run_id, metrics[:MAX_METRICS], entered)
        for start in range(MAX_METRICS, len(metrics), MAX_METRICS):
            self.client.log_batch(run_id, metrics[start : start + MAX_METRICS])


def _told(record: Record) -> tuple[dict[str, float], str | None]:
    """The numbers of a record, or the reason why it has none."""
    try:
        return summarise(record), record.reason
    except RecordError as error:
        return {}, one_line(error)


def _metrics(record: Record, told: Mapping[str, float]) -> list[Metric]:
    from mlflow.entities import Metric

    at = _milliseconds(record.ended), _step(record)
    return [Metric(_metric_name(key), value, *at) for key, value in told.items()]


def _curves(record: Record) -> Iterator[Metric]:
    """The record's curves, some hundred points of each."""
    from mlflow.entities import Metric

    ended = _milliseconds(record.ended)
    with suppress(RecordError):  # `_told` says so
        for name, points in curves(record, MAX_POINTS).items():
            yield from (Metric(f"curve/{_name(name)}", point.value, ended, point.step) for point in points)


def _cell_tags(record: Record, reason: str | None) -> dict[str, str]:
    tags = {
        "sweep_id": record.sweep_id,
        "cell_id": record.cell_id,
        "record_id": record.record_id,
        "attempt": record.attempt,
        "status": record.status,
        "reason": reason,
        "disturbed": "; ".join(record.disturbed) or None,
        "attention": record.config["label"],
        "bench": record.config["bench"]["name"],
        "device": record.machine.get("cpu_model" if record.config.get("device") == "cpu" else "gpu_name"),
        "cpu_model": record.machine.get("cpu_model"),
        "torch": record.machine.get("torch"),
        "git_sha": record.code.get("git_sha"),
    }
    return {key: _text(value) for key, value in tags.items() if value is not None}


def _text(value: Any) -> str:
    return bounded(str(value), MAX_VALUE)


def _lines(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The ok records by the line of a plot that they are on: the mechanism, and what sets its lines apart."""
    by_label: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.status == "ok":
            by_label[record.config["label"]].append(record)
    lines: dict[str, list[Record]] = defaultdict(list)
    for label, own in by_label.items():
        configs = [_comparable(record) for record in own]
        at_step: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
        for record, config in zip(own, configs, strict=True):
            at_step[record.config["bench"]["name"], _step(record)].append(config)
        axes = _axes_apart(list(at_step.values()))
        for record, config in zip(own, configs, strict=True):
            lines[" ".join([label, *(f"{key}={config.get(key)}" for key in axes)])].append(record)
    return lines


def _comparable(record: Record) -> dict[str, Any]:
    """The settings of a cell that can tell lines apart: tokens instead of a batch size that follows the length."""
    config = flatten(record.config)
    config["tokens"] = config.pop("batch_size") * config["seq_len"]
    return {key: value for key, value in config.items() if not key.startswith("bench.")}


def _axes_apart(points: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
    """A few settings that tell apart all cells of one mechanism and benchmark at one step: each time the best one."""
    mixed = [list({repr(sorted(cell.items())): cell for cell in cells}.values()) for cells in points]
    keys = sorted({key for cells in mixed for cell in cells for key in cell})
    axes: list[str] = []
    while mixed := [cells for cells in mixed if len(cells) > 1]:
        split = {key: [part for cells in mixed for part in _by(key, cells)] for key in keys}
        best = min(keys, key=lambda key: sum(math.comb(len(part), 2) for part in split[key]))
        axes.append(best)
        mixed = split[best]
    return sorted(axes)


def _by(key: str, cells: Sequence[Mapping[str, Any]]) -> Iterable[list[Mapping[str, Any]]]:
    """The cells in parts that have the same value."""
    parts: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for cell in cells:
        parts[repr(cell.get(key, ...))].append(cell)
    return parts.values()


def _digest(records: Sequence[Record], figures: Sequence[Path], table: str) -> str:
    digest = hashlib.sha256(repr([[record.record_id for record in records], table]).encode())
    for figure in figures:
        digest.update(figure.name.encode() + figure.read_bytes())
    return digest.hexdigest()


def _milliseconds(iso: str) -> int:
    return round(datetime.fromisoformat(iso).replace(tzinfo=UTC).timestamp() * 1000)


def _metric_name(key: str) -> str:
    """The charts page opens a section per prefix: one for each quantity."""
    return "/".join(_name(part) for part in key.split(".", 1))


def _name(text: str) -> str:
    """A name that MLflow takes: no characters but its own, nothing that reads as a path."""
    return re.sub(r"[^\w\-. ]", "_", text).strip(". ")[:200] or "_"
