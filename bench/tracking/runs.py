"""Writes the mirror's runs: of records, of cells that are being measured, of lines, and of sweeps."""

import functools
import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT
from sqlalchemy import Engine, event

from bench.common.errors import one_line, say
from bench.common.palette import colour
from bench.common.schema import flatten
from bench.execution.locks import holder
from bench.measures.progress import Point
from bench.records.record import Record, RecordError
from bench.records.summary import curves, headline, quantities, summarise, traits
from bench.tracking import bulk
from bench.tracking.bulk import Draft
from bench.tracking.comparison import Line
from bench.tracking.lines import FORMAT, key, milliseconds, plain_name, step, sweep_name, text
from bench.tracking.views import shown

# MLflow's limits per call, and the longest note in characters.
MAX_PARAMS, MAX_METRICS, MAX_NOTE = 100, 900, 8000
# Characters of a dataset's digest.
DIGEST = 36
# Points per curve.
MAX_POINTS = 200
_RUN_STATUS = {"ok": "FINISHED", "interrupted": "KILLED"}  # all others FAILED


def create_store(path: Path, artifacts_uri: str) -> None:
    """Create under another name, then rename: MLflow cannot continue a migration that was killed."""
    unfinished = path.with_name(f".{path.name}.tmp")
    unfinished.unlink(missing_ok=True)
    SqlAlchemyStore(f"sqlite:///{unfinished}", artifacts_uri).engine.dispose()
    os.replace(unfinished, path)


@functools.cache
def write_without_waiting_for_the_disk() -> None:
    """Do not wait for the disk: MLflow commits six times per run, 20 ms each. After a crash, mirror again."""

    def connected(connection: Any, record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            with suppress(sqlite3.Error):  # if the file is damaged, the next statement fails
                connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", connected)


@dataclass(frozen=True)
class Runs:
    """A results folder's runs in an MLflow experiment, with a method to write each kind of run."""

    client: MlflowClient
    id: str
    folder: str
    """The folder's `identity`, which is a tag of its runs."""
    own: tuple[str, str] | None = None
    """The URIs of a results folder's own store and of its artifacts; None for a store that a user named."""

    def search(self, query: str) -> list[Run]:
        """All runs of this folder that match an MLflow filter."""
        # In the folder's own store all runs without the tag are its own: older versions did not write it.
        query += "" if self.own else f" AND tags.folder = '{self.folder}'"
        # Read all pages before any change, since MLflow's page tokens are offsets.
        runs: list[Run] = []
        token = None
        while token != "":
            page = self.client.search_runs([self.id], query, max_results=1000, page_token=token)
            runs.extend(page)
            token = page.token or ""
        return [run for run in runs if run.data.tags.get("folder", self.folder) == self.folder]

    def write_points(self, cell_id: str, config: Mapping[str, Any], points: Mapping[str, Point]) -> None:
        """Add points to the curves of a cell that is being measured."""
        live = next(iter(self.search(f"tags.kind = 'live' AND tags.cell_id = '{cell_id}'")), None)
        if live is None:
            tags = {"kind": "live", "cell_id": cell_id, "status": "running", "folder": self.folder}
            tags |= {"attention": text(config["label"]), "bench": text(config["bench"]["name"])}
            name = f"{config['label']} n={config['seq_len']} {config['bench']['name']}, running"
            live = self.client.create_run(self.id, tags=tags, run_name=text(name))
            self._log(live.info.run_id, [], params=_params(config))
        elif live.info.status != "RUNNING":
            self.client.update_run(live.info.run_id, "RUNNING")
        now = round(time.time() * 1000)
        named = {f"curve/{plain_name(name)}": point for name, point in points.items()}
        new = {name: point for name, point in named.items() if live.data.metrics.get(name) != point.value}
        self._log(live.info.run_id, [Metric(name, point.value, now, point.step) for name, point in new.items()])

    def end_live(self, records: Mapping[str, Record], one_cell: str, locks: Path) -> None:
        """Remove the live runs of cells whose records have come; a cell that failed or was killed keeps its curves."""
        for live in self.search("tags.kind = 'live'" + one_cell):
            cell_id = live.data.tags["cell_id"]
            record = records.get(cell_id)
            if record is not None and record.status == "ok":
                self.client.delete_run(live.info.run_id)
            elif live.info.status == "RUNNING" and (record or holder(locks / f"{cell_id[:16]}.lock") is None):
                status = _RUN_STATUS.get(record.status, "FAILED") if record else "KILLED"
                self.client.set_terminated(live.info.run_id, status)

    def retag(self, changes: Iterable[tuple[Run, Mapping[str, str]]]) -> None:
        """Set the tags that differ."""
        new = [
            (run.info.run_id, {key: value for key, value in tags.items() if run.data.tags.get(key) != value})
            for run, tags in changes
        ]
        if self.own:
            bulk.tag(self.own[0], new)
            return
        for run_id, tags in new:
            if tags:
                self.client.log_batch(run_id, tags=[RunTag(*item) for item in tags.items()])

    def write_cells(self, cells: Iterable[tuple[Record, str, Mapping[str, str]]]) -> int:
        """Write runs of records, given their names and further tags; returns how many MLflow accepts."""
        drafts = [(record, _cell(record, name, {**tags, "folder": self.folder})) for record, name, tags in cells]
        if self.own:
            return bulk.write(self.own[0], self.id, self.own[1], [draft for _, draft in drafts])
        written = 0
        for record, draft in drafts:
            try:
                self._write(draft)
                written += 1
            except MlflowException as error:
                if error.error_code != "INVALID_PARAMETER_VALUE":
                    raise
                say(f"warning: MLflow mirror: {record.file_name}: left out, {one_line(error)}")
        return written

    def write_lines(self, drawn: Sequence[Line], tags: Mapping[str, str], ended: int) -> None:
        """Write a run for each line, with its rank."""
        drafts = [_line(line, rank, {**tags, "folder": self.folder}, ended) for rank, line in enumerate(drawn)]
        if self.own:
            bulk.write(self.own[0], self.id, self.own[1], drafts)
        else:
            for draft in drafts:
                self._write(draft)

    def _write(self, draft: Draft) -> None:
        with self._run(draft.name, draft.tags, draft.started, draft.ended, draft.status) as run_id:
            self._log(run_id, draft.metrics, draft.params)
            if draft.dataset:
                context = InputTag(MLFLOW_DATASET_CONTEXT, bulk.CONTEXT)
                self.client.log_inputs(run_id, [DatasetInput(draft.dataset, [context])])

    @contextmanager
    def summary(
        self, records: Sequence[Record], figures: Sequence[Path], table: str, sweep: Mapping[str, str], ended: int
    ) -> Iterator[str]:
        """The run of a sweep; it stays unfinished until everything below it is written."""
        # MLflow renders the note on the run's page.
        counts = Counter(record.status for record in records)
        result = ", ".join(f"{count} {status}" for status, count in counts.most_common())
        benches = ", ".join(sorted({record.config["bench"]["name"] for record in records}))
        note = sweep.get("mlflow.note.content", "") + table
        tags = {**_source(records[0]), **sweep, "folder": self.folder, "mlflow.note.content": note[:MAX_NOTE]}
        tags |= {"bench": text(benches), "status": "ok" if counts.keys() == {"ok"} else "mixed", "result": result}
        keys = ("cell_id", "record_id", "status")
        cells = [{key: getattr(record, key) for key in keys} for record in records]
        with self._run(sweep_name(records), tags, ended + 1, ended + 1) as run_id:
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
        """A run that stays RUNNING until all of it is written; times in milliseconds since 1970."""
        run = self.client.create_run(self.id, start_time=started, tags=dict(tags), run_name=text(name))
        try:
            yield run.info.run_id
        except Exception:
            with suppress(Exception):  # if this fails, the next sync deletes it
                self.client.delete_run(run.info.run_id)
            raise
        self.client.set_terminated(run.info.run_id, status, ended)

    def _log(self, run_id: str, metrics: Sequence[Metric], params: Mapping[str, str] | None = None) -> None:
        entered = [Param(*item) for item in list((params or {}).items())]
        for start in range(0, len(metrics) or 1, MAX_METRICS):
            self.client.log_batch(run_id, metrics[start : start + MAX_METRICS], () if start else entered)


def _read(record: Record) -> tuple[dict[str, float], dict[str, str | None]]:
    """A record's numbers; as tags its line in the table, the metrics' units, and the reason if it has no numbers."""
    try:
        units = {one.metric: one.shown[0] if one.shown else one.unit for one in quantities(record)}
        words = ", ".join(f"{metric} in {unit}" for metric, unit in units.items() if unit not in ("", "1"))
        result = headline(record) if record.status == "ok" else record.reason
        return summarise(record), {"result": result, "reason": record.reason, "units": words or None}
    except RecordError as error:
        return {}, {"reason": one_line(error)}


def _cell(record: Record, name: str, more: Mapping[str, str]) -> Draft:
    """The run of a record."""
    numbers, told = _read(record)
    tags = {**_cell_tags(record, told), **more, "kind": "cell", "format": FORMAT}
    ended = milliseconds(record.ended)
    points = {key(name): Metric(key(name), value, ended, step(record)) for name, value in numbers.items()}
    curves = {(metric.key, metric.step): metric for metric in (_curves(record) if numbers else ())}
    status = _RUN_STATUS.get(record.status, "FAILED")
    metrics = [*points.values(), *curves.values()]
    started = milliseconds(record.started)
    return Draft(text(name), tags, _params(record.config), metrics, started, ended, status, _dataset(record))


def _line(line: Line, rank: int, more: Mapping[str, str], ended: int) -> Draft:
    """The run of a mechanism under one condition; runs with a lower rank are shown first."""
    points = {(shown(name), at): value for (name, at), value in line.values.items()}
    metrics = [Metric(name, value, ended, at) for (name, at), value in points.items()]
    configs = [flatten(entry.config) for entry in line.entries]
    shared = {key: value for key, value in configs[0].items() if all(one.get(key, ...) == value for one in configs)}
    record, mechanism = line.entries[-1].record, line.entries[0].config["attention"]["name"]
    tags = {"attention": line.label, "condition": line.condition, "rank": f"{rank:04}", "mechanism": mechanism}
    tags |= {"bench": ", ".join(sorted({entry.bench for entry in line.entries})), "mlflow.runColor": colour(mechanism)}
    tags = {key: text(value) for key, value in tags.items()} | _source(record) | {"format": FORMAT} | dict(more)
    return Draft(text(line.name), tags, _params(shared), metrics, ended, ended)


def _params(config: Mapping[str, Any]) -> dict[str, str]:
    """The settings, as many as MLflow accepts."""
    named = {plain_name(name): text(value) for name, value in flatten(config).items()}
    return dict(list(named.items())[:MAX_PARAMS])


def _dataset(record: Record) -> Dataset | None:
    """The inputs of a record, with the hash of their contents."""
    inputs = record.config["inputs"]
    if not record.inputs_sha256 or not inputs.get("name"):
        return None
    settings = json.dumps(inputs, sort_keys=True)
    return Dataset(text(inputs["name"]), record.inputs_sha256[:DIGEST], "code", text(settings))


def _source(record: Record) -> dict[str, str]:
    """Tags from which MLflow shows the command and the commit."""
    command = " ".join(["python -m bench", *record.overrides])
    sha = record.code.get("git_sha")
    tags = {"mlflow.source.name": text(command), "mlflow.source.type": "LOCAL"}
    return tags | ({"mlflow.source.git.commit": text(sha)} if sha else {})


def _curves(record: Record) -> Iterator[Metric]:
    """The record's curves, with at most `MAX_POINTS` points each."""
    ended = milliseconds(record.ended)
    with suppress(RecordError):
        for name, points in curves(record, MAX_POINTS).items():
            yield from (Metric(f"curve/{plain_name(name)}", point.value, ended, point.step) for point in points)


def _cell_tags(record: Record, told: Mapping[str, str | None]) -> dict[str, str]:
    own = {key: getattr(record, key) for key in ("sweep_id", "cell_id", "record_id", "attempt", "status")}
    tags = {
        **own,
        **told,
        "disturbed": "; ".join(record.disturbed) or None,
        "attention": record.config["label"],
        "bench": record.config["bench"]["name"],
        "intervals_over": traits(record)["replicates"],
        "device": record.device_name,
        "cpu_model": record.cpu,
        "torch": record.machine.get("torch"),
        "mlflow.runColor": colour(record.config["attention"]["name"]),
    }
    return {key: text(value) for key, value in tags.items() if value is not None} | _source(record)
