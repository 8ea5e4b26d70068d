"""How the runs of the mirror are written: of a record, of a cell that is being measured, of a curve, of a sweep."""

import functools
import os
import re
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy import Engine, event

from bench.common.errors import one_line, say
from bench.measures import flatten
from bench.measures.progress import Point
from bench.records.record import Record, RecordError
from bench.records.summary import curves, headline, summarise, traits
from bench.tracking.lines import milliseconds, step, text

# What MLflow takes in one call, and characters of a note.
MAX_PARAMS, MAX_METRICS, MAX_NOTE = 100, 900, 8000
# Points of a curve.
MAX_POINTS = 200
_RUN_STATUS = {"ok": "FINISHED", "interrupted": "KILLED"}  # all others FAILED


def create_store(path: Path, artifacts_uri: str) -> None:
    """Migrate under another name, then rename: MLflow cannot go on with a migration that was killed."""
    unfinished = path.with_name(f".{path.name}.tmp")
    unfinished.unlink(missing_ok=True)
    SqlAlchemyStore(f"sqlite:///{unfinished}", artifacts_uri).engine.dispose()
    os.replace(unfinished, path)


@functools.cache
def write_without_waiting_for_the_disk() -> None:
    """MLflow commits six times for a run, and a disk takes 20 ms for each. After a power cut a mirror is made again."""

    def connected(connection: Any, record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            with suppress(sqlite3.Error):  # of a damaged file the next statement says it
                connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", connected)


@dataclass(frozen=True)
class Runs:
    """The runs of an MLflow experiment, and how each kind of them is written."""

    client: MlflowClient
    id: str

    def search(self, query: str) -> list[Run]:
        """All that a filter of MLflow finds."""
        # All pages before any change: MLflow's page tokens are offsets.
        runs: list[Run] = []
        token = None
        while token != "":
            page = self.client.search_runs([self.id], query, max_results=1000, page_token=token)
            runs.extend(page)
            token = page.token or ""
        return runs

    def write_points(self, cell_id: str, config: Mapping[str, Any], points: Mapping[str, Point]) -> None:
        """Add points to the curves of a cell that is being measured."""
        live = next(iter(self.search(f"tags.kind = 'live' AND tags.cell_id = '{cell_id}'")), None)
        if live is None:
            tags = {"kind": "live", "cell_id": cell_id, "status": "running"}
            tags |= {"attention": text(config["label"]), "bench": text(config["bench"]["name"])}
            name = f"{config['label']} n={config['seq_len']} {config['bench']['name']}, running"
            live = self.client.create_run(self.id, tags=tags, run_name=text(name))
            self._log(live.info.run_id, [], params=flatten(config))
        elif live.info.status != "RUNNING":
            self.client.update_run(live.info.run_id, "RUNNING")
        now = round(time.time() * 1000)
        named = {f"curve/{_name(name)}": point for name, point in points.items()}
        new = {name: point for name, point in named.items() if live.data.metrics.get(name) != point.value}
        self._log(live.info.run_id, [Metric(name, point.value, now, point.step) for name, point in new.items()])

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
        if new := [RunTag(key, value) for key, value in tags.items() if run.data.tags.get(key) != value]:
            self.client.log_batch(run.info.run_id, tags=new)

    def write_cell(self, record: Record, name: str, more: Mapping[str, str]) -> bool:
        """Returns whether MLflow takes it."""
        numbers, result, reason = _read(record)
        tags = {**_cell_tags(record, result, reason), **more, "kind": "cell"}
        times = milliseconds(record.started), milliseconds(record.ended)
        try:
            with self._run(name, tags, *times, _RUN_STATUS.get(record.status, "FAILED")) as run_id:
                metrics = [*_metrics(record, numbers), *(_curves(record) if numbers else ())]
                self._log(run_id, metrics, params=flatten(record.config))
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            say(f"warning: MLflow mirror: {record.file_name}: left out, {one_line(error)}")
            return False
        return True

    def write_curve(self, name: str, records: Sequence[Record], sweep: Mapping[str, str], ended: int) -> None:
        """One line: where cells differ in their seeds alone, their mean."""
        values: dict[tuple[str, int], list[float]] = defaultdict(list)
        for record in records:
            for metric in _metrics(record, _read(record)[0]):
                values[metric.key, metric.step].append(metric.value)
        metrics = [Metric(key, fmean(found), ended, at) for (key, at), found in values.items()]
        first, *others = (flatten(record.config) for record in records)
        shared = {key: first[key] for key in first if all(other.get(key, ...) == first[key] for other in others)}
        benches = ", ".join(sorted({record.config["bench"]["name"] for record in records}))
        tags = {**sweep, "kind": "curve", "attention": text(records[0].config["label"]), "bench": text(benches)}
        with self._run(name, tags, ended, ended) as run_id:
            self._log(run_id, metrics, params=shared)

    @contextmanager
    def summary(
        self, records: Sequence[Record], figures: Sequence[Path], table: str, sweep: Mapping[str, str], ended: int
    ) -> Iterator[str]:
        """The run of a sweep, unfinished until all below it is written."""
        # The page of a run shows its note, rendered.
        counts = Counter(record.status for record in records)
        result = ", ".join(f"{count} {status}" for status, count in counts.most_common())
        benches = ", ".join(sorted({record.config["bench"]["name"] for record in records}))
        tags = {**sweep, "kind": "summary", "mlflow.note.content": table[:MAX_NOTE]}
        tags |= {"bench": text(benches), "status": "ok" if counts.keys() == {"ok"} else "mixed", "result": result}
        keys = ("cell_id", "record_id", "status")
        cells = [{key: getattr(record, key) for key in keys} for record in records]
        name = f"sweep {sweep['sweep_id'][:6]}: {len(records)} cells, {benches}"
        with self._run(name, tags, ended + 1, ended + 1) as run_id:
            self._log(run_id, [Metric(f"status/{status}", count, ended, 0) for status, count in counts.items()])
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
        run = self.client.create_run(self.id, start_time=started, tags=dict(tags), run_name=text(name))
        try:
            yield run.info.run_id
        except Exception:
            with suppress(Exception):  # else the next sync does it
                self.client.delete_run(run.info.run_id)
            raise
        self.client.set_terminated(run.info.run_id, status, ended)

    def _log(self, run_id: str, metrics: Sequence[Metric], params: Mapping[str, Any] | None = None) -> None:
        named = {_name(key): text(value) for key, value in (params or {}).items()}
        entered = [Param(*item) for item in list(named.items())[:MAX_PARAMS]]
        for start in range(0, len(metrics) or 1, MAX_METRICS):
            self.client.log_batch(run_id, metrics[start : start + MAX_METRICS], () if start else entered)


def _read(record: Record) -> tuple[dict[str, float], str | None, str | None]:
    """The numbers of a record, its line in the table, and the reason why it has none."""
    try:
        result = headline(record) if record.status == "ok" else record.reason
        return summarise(record), result, record.reason
    except RecordError as error:
        return {}, None, one_line(error)


def _metrics(record: Record, numbers: Mapping[str, float]) -> list[Metric]:
    """Numbers by names of which the charts page opens a section per prefix: one for each quantity."""
    at = milliseconds(record.ended), step(record)
    return [Metric("/".join(map(_name, key.split(".", 1))), value, *at) for key, value in numbers.items()]


def _curves(record: Record) -> Iterator[Metric]:
    """The record's curves, some hundred points of each."""
    ended = milliseconds(record.ended)
    with suppress(RecordError):
        for name, points in curves(record, MAX_POINTS).items():
            yield from (Metric(f"curve/{_name(name)}", point.value, ended, point.step) for point in points)


def _cell_tags(record: Record, result: str | None, reason: str | None) -> dict[str, str]:
    tags = {key: getattr(record, key) for key in ("sweep_id", "cell_id", "record_id", "attempt", "status")} | {
        "reason": reason,
        "result": result,
        "disturbed": "; ".join(record.disturbed) or None,
        "attention": record.config["label"],
        "bench": record.config["bench"]["name"],
        "intervals_over": traits(record)["replicates"],
        "device": record.machine.get("cpu_model" if record.config.get("device") == "cpu" else "gpu_name"),
        "cpu_model": record.machine.get("cpu_model"),
        "torch": record.machine.get("torch"),
        "git_sha": record.code.get("git_sha"),
    }
    return {key: text(value) for key, value in tags.items() if value is not None}


def _name(text: str) -> str:
    """A name that MLflow takes: no characters but its own, nothing that reads as a path."""
    return re.sub(r"[^\w\-. ]", "_", text).strip(". ")[:200] or "_"
