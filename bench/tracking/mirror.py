"""The MLflow mirror of the records: rebuilt from them at any time, complete or not there, never the truth."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from filelock import FileLock
from tqdm import tqdm

from bench.errors import bounded, one_line, say
from bench.measures import flatten
from bench.measures.progress import Point
from bench.measures.summary import benchmark, curves, headline, summarise
from bench.quiet import QUIET
from bench.records.record import Record, RecordError
from bench.records.store import latest
from bench.records.table import table
from bench.tracking import local, views
from bench.tracking.lines import lines, names, step

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
# Lines of a sweep: MLflow's pages list and draw so many.
MAX_LINES = 100
# Runs that are written to this machine's store in one transaction: 3 s, and what a killed mirror loses.
BATCH = 100
# Records whose mirroring takes so long that it is shown.
SHOWN = 200
# Of the files in a sweep's folder.
FIGURES = (".png", ".svg", ".pdf")
_RUN_STATUS = {"ok": "FINISHED", "interrupted": "KILLED"}  # all others FAILED


class TrackingError(RuntimeError):
    """The mirror could not be written, in one line; the records are unharmed and can be mirrored later."""


class Mirror:
    """An MLflow experiment that shows the records of `results_dir`.

    A sweep is a run with its figures and its table (tag `kind=summary`); below it are one for each record (`kind=cell`)
    and one for each mechanism's curves over `seq_len` (`kind=curve`). The store is `results_dir/mlflow.db` unless
    `uri` names another. Every method holds a file lock, repairs what a killed one left half-written, and raises
    `TrackingError` for whatever goes wrong.
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
        called = names(by_id.values())
        with self._writing() as experiment:
            written = 0
            parents = {run.data.tags["sweep_id"]: run.info.run_id for run in experiment.search("tags.kind = 'summary'")}
            runs: dict[str, Run] = {}
            for run in experiment.search("tags.kind = 'cell'" + one_cell):
                record_id = run.data.tags["record_id"]
                # Unfinished while we hold the lock: its writer was killed.
                if record_id in runs or (record_id in by_id and run.info.status == "RUNNING"):
                    experiment.client.delete_run(run.info.run_id)
                else:
                    runs[record_id] = run
            # None: on terminals only.
            shown = tqdm(by_id.items(), "mirroring", unit=" records", leave=False, disable=len(by_id) < SHOWN or None)
            for record_id, record in shown:
                tags = {"superseded": str(record_id not in standing).lower()}
                if record_id not in runs:
                    written += experiment.write_cell(record, called[record_id], tags, parents.get(record.sweep_id))
                    if written % BATCH == 0:
                        experiment.commit()
                else:  # of one cell alone nobody knows which names are taken
                    name = {} if one_cell else {"mlflow.runName": _text(called[record_id])}
                    experiment.retag(runs[record_id], tags | name)
            experiment.end_live(by_cell, one_cell)
            return written

    def complete(self, records: Iterable[Record]) -> int:
        """Mirror records, and each sweep of several cells that has no summary; returns how many records were new."""
        records = list(records)
        written = self.sync(records)
        with self._writing() as experiment:
            told = {run.data.tags["sweep_id"] for run in experiment.search("tags.kind = 'summary'")}
        sweeps: dict[str, list[Record]] = defaultdict(list)
        for record in latest(records).values():
            sweeps[record.sweep_id].append(record)
        for sweep_id, own in sweeps.items():
            if len(own) > 1 and sweep_id not in told:
                drawn = sorted((self.results_dir / "sweeps" / sweep_id).glob("*"))
                figures = [path for path in drawn if path.suffix in FIGURES]
                self.summary(sweep_id, own, figures, table(own))
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
            # The pages list the newest run first: these start when the sweep ended.
            ended = max((_milliseconds(record.ended) for record in standing), default=0)
            with experiment.summary(standing, figures, table, tags, ended) as parent:
                drawn = sorted(lines(standing).items(), key=lambda item: -len(item[1]))
                if len(drawn) > MAX_LINES:
                    say(f"MLflow mirror: sweep {sweep_id[:12]}: curves for {MAX_LINES} of {len(drawn)} lines")
                named = {run.info.run_name for run in experiment.search(views.CURVES)}
                ranks = {line: rank for rank, line in enumerate(sorted(line for line, _ in drawn))}
                for line, on_line in drawn[:MAX_LINES]:
                    name = f"{line} (sweep {sweep_id[:6]})" if line in named else line
                    own = {"mlflow.parentRunId": parent, "mlflow.runColor": views.colour(ranks[line])}
                    experiment.write_curve(name, on_line, {**tags, **own}, ended)
                for run in experiment.search(f"tags.sweep_id = '{sweep_id}' AND tags.kind = 'cell'"):
                    experiment.retag(run, {"mlflow.parentRunId": parent})

    @contextmanager
    def _writing(self) -> Iterator[_Experiment]:
        """The experiment, for the one process that may write now."""
        with self._failing():
            os.stat(self.results_dir)  # one that is away is not made anew
            with FileLock(self.results_dir / "mlflow.lock", timeout=LOCK_TIMEOUT_S):
                client_class = _client_class()
                if self.database and not self.database.exists():
                    local.create(self.database, self.artifacts_uri)
                client = client_class(self.uri)
                with local.transaction(client) if self.database else nullcontext(_nothing) as commit:
                    yield self._open(client, commit)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Whatever goes wrong is a `TrackingError`."""
        try:
            yield
        # MLflow, SQLAlchemy, alembic and the disk share no error class, and a bad mirror is never fatal.
        except Exception as error:
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise TrackingError(f"MLflow mirror of {self.results_dir}: {first_line}") from error

    def _open(self, client: MlflowClient, commit: Callable[[], None]) -> _Experiment:
        experiment = client.get_experiment_by_name(self.experiment)
        self._beat()
        if experiment is None:
            # A server keeps its artifacts itself.
            location = None if self.uri.startswith("http") else self.artifacts_uri
            experiment = client.get_experiment(client.create_experiment(self.experiment, location))
        if experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
        if self.database and experiment.artifact_location != self.artifacts_uri:
            local.move(client, experiment, self.artifacts_uri)
        for key, value in views.tags(experiment.experiment_id).items():
            if experiment.tags.get(key) != value:
                client.set_experiment_tag(experiment.experiment_id, key, value)
        return _Experiment(client, experiment.experiment_id, self._beat, commit)

    def _beat(self) -> None:
        self.beats += 1


def _nothing() -> None:
    """What there is to commit on a server."""


def _client_class() -> type[MlflowClient]:
    os.environ.update(QUIET)
    from mlflow import MlflowClient

    for chatty, level in LOGGERS.items():
        logging.getLogger(chatty).setLevel(level)
    return MlflowClient


@dataclass(frozen=True)
class _Experiment:
    """The MLflow experiment, and how its three kinds of runs are written."""

    client: MlflowClient
    id: str
    beat: Callable[[], None]
    commit: Callable[[], None]

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
            tags = {"kind": "live", "cell_id": cell_id, "status": "running"}
            tags |= {"attention": _text(config["label"]), "bench": _text(config["bench"]["name"])}
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
                self.client.set_terminated(live.info.run_id, _RUN_STATUS.get(record.status, "FAILED"))

    def retag(self, run: Run, tags: Mapping[str, str]) -> None:
        """Set the tags that are not so."""
        from mlflow.entities import RunTag

        if new := [RunTag(key, value) for key, value in tags.items() if run.data.tags.get(key) != value]:
            self.client.log_batch(run.info.run_id, tags=new)
            self.beat()

    def write_cell(self, record: Record, name: str, more: Mapping[str, str], parent: str | None) -> bool:
        """Returns whether MLflow takes it."""
        from mlflow.exceptions import MlflowException

        told, reason = _told(record)
        tags = {**_cell_tags(record, reason), **more, "kind": "cell"} | _below(parent)
        times = _milliseconds(record.started), _milliseconds(record.ended)
        try:
            with self._run(name, tags, *times, _RUN_STATUS.get(record.status, "FAILED")) as run_id:
                metrics = [*_metrics(record, told), *(_curves(record) if told else ())]
                self._log(run_id, metrics, params=flatten(record.config))
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            say(f"warning: MLflow mirror: {record.file_name}: left out, {one_line(error)}")
            return False
        return True

    def write_curve(self, name: str, records: Sequence[Record], sweep: Mapping[str, str], ended: int) -> None:
        """One line: where cells differ in their seeds alone, their mean."""
        from mlflow.entities import Metric

        values: dict[tuple[str, int], list[float]] = defaultdict(list)
        for record in records:
            for metric in _metrics(record, _told(record)[0]):
                values[metric.key, metric.step].append(metric.value)
        metrics = [Metric(key, fmean(found), ended, at) for (key, at), found in values.items()]
        first, *others = (flatten(record.config) for record in records)
        shared = {key: first[key] for key in first if all(other.get(key, ...) == first[key] for other in others)}
        benches = ", ".join(sorted({record.config["bench"]["name"] for record in records}))
        tags = {**sweep, "kind": "curve", "attention": _text(records[0].config["label"]), "bench": _text(benches)}
        with self._run(name, tags, ended, ended) as run_id:
            self._log(run_id, metrics, params=shared)

    @contextmanager
    def summary(
        self,
        records: Sequence[Record],
        figures: Sequence[Path],
        table: str,
        sweep: Mapping[str, str],
        ended: int,
    ) -> Iterator[str]:
        """The run of a sweep, unfinished until all below it is written."""
        # The page of a run shows its note, rendered.
        counts = Counter(record.status for record in records)
        result = ", ".join(f"{count} {status}" for status, count in counts.most_common())
        benches = ", ".join(sorted({record.config["bench"]["name"] for record in records}))
        tags = {**sweep, "kind": "summary", "mlflow.note.content": table[:MAX_NOTE]}
        tags |= {"bench": _text(benches), "status": "ok" if counts.keys() == {"ok"} else "mixed", "result": result}
        cells = [
            {"cell_id": record.cell_id, "record_id": record.record_id, "status": record.status} for record in records
        ]
        name = f"sweep {sweep['sweep_id'][:6]}: {len(records)} cells, {benches}"
        with self._run(name, tags, ended + 1, ended + 1) as run_id:
            for status, count in counts.items():
                self.client.log_metric(run_id, f"status/{status}", count, timestamp=ended)
            for figure in figures:
                self.client.log_artifact(run_id, str(figure), "figures")
            self.client.log_text(run_id, table, "table.md")
            self.client.log_dict(run_id, {"cells": cells}, "cells.json")
            yield run_id

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

    at = _milliseconds(record.ended), step(record)
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
        "result": _result(record),
        "disturbed": "; ".join(record.disturbed) or None,
        "attention": record.config["label"],
        "bench": record.config["bench"]["name"],
        "intervals_over": benchmark(record).replicates,
        "device": record.machine.get("cpu_model" if record.config.get("device") == "cpu" else "gpu_name"),
        "cpu_model": record.machine.get("cpu_model"),
        "torch": record.machine.get("torch"),
        "git_sha": record.code.get("git_sha"),
    }
    return {key: _text(value) for key, value in tags.items() if value is not None}


def _result(record: Record) -> str | None:
    """What its line in the table says."""
    try:
        return headline(record) if record.status == "ok" else record.reason
    except RecordError:  # which is the reason
        return None


def _below(parent: str | None) -> dict[str, str]:
    return {"mlflow.parentRunId": parent} if parent else {}


def _text(value: Any) -> str:
    return bounded(str(value), MAX_VALUE)


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
