"""Writes many runs at once to the store of a results folder, through MLflow's database tables.

A client needs eight transactions and 40 ms of CPU time per run; this needs one transaction for all, and 2 ms each. It
writes the tables that `mlflow migrate-filestore` writes. Stores that a user names are written by the client instead.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow.entities import Dataset, Metric
from mlflow.store.tracking.dbmodels.models import (
    SqlDataset,
    SqlInput,
    SqlInputTag,
    SqlLatestMetric,
    SqlMetric,
    SqlParam,
    SqlRun,
    SqlTag,
)
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT, MLFLOW_RUN_NAME
from sqlalchemy import Connection, NullPool, bindparam, create_engine, delete, insert, select, update

Row = dict[str, Any]
# The role of a dataset, as MLflow shows it.
CONTEXT = "measurement"


@dataclass(frozen=True)
class Draft:
    """A run to be written; times in milliseconds since 1970."""

    name: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Sequence[Metric]
    started: int
    ended: int
    status: str = "FINISHED"
    dataset: Dataset | None = None


def write(uri: str, experiment: str, artifacts: str, drafts: Iterable[Draft]) -> list[str]:
    """Write runs into an experiment, all or none; returns their ids.

    Args:
        uri: the store's SQLAlchemy URI.
        experiment: the experiment's id.
        artifacts: the experiment's artifact URI.
        drafts: runs with names and values that MLflow accepts, and without duplicate points of a metric.
    """
    rows: dict[type[Any], list[Row]] = {table: [] for table in (SqlRun, SqlTag, SqlParam, SqlMetric, SqlLatestMetric)}
    used: list[tuple[str, Dataset]] = []
    for draft in drafts:
        run_id = uuid.uuid4().hex
        rows[SqlRun].append(_run(run_id, draft, int(experiment), artifacts))
        own = {"run_uuid": run_id}
        tags = {MLFLOW_RUN_NAME: draft.name, **draft.tags}
        rows[SqlTag] += [{"key": key, "value": value, **own} for key, value in tags.items()]
        rows[SqlParam] += [{"key": key, "value": value, **own} for key, value in draft.params.items()]
        points = [_point(metric) | own for metric in draft.metrics]
        rows[SqlMetric] += points
        newest = {point["key"]: point for point in sorted(points, key=lambda one: (one["step"], one["timestamp"]))}
        rows[SqlLatestMetric] += newest.values()
        if draft.dataset:
            used.append((run_id, draft.dataset))
    with create_engine(uri, poolclass=NullPool).begin() as connection:
        for table, values in rows.items():
            if values:
                connection.execute(insert(table), values)
        _link(connection, int(experiment), used)
    return [row["run_uuid"] for row in rows[SqlRun]]


def tag(uri: str, changes: Sequence[tuple[str, Mapping[str, str]]]) -> None:
    """Set tags of runs, given their ids; the tag for the name also renames the run."""
    rows = [{"key": key, "value": value, "run_uuid": run} for run, tags in changes for key, value in tags.items()]
    if not rows:
        return
    same = (SqlTag.run_uuid == bindparam("run"), SqlTag.key == bindparam("which"))
    named = [{"run": row["run_uuid"], "called": row["value"]} for row in rows if row["key"] == MLFLOW_RUN_NAME]
    with create_engine(uri, poolclass=NullPool).begin() as connection:
        connection.execute(delete(SqlTag).where(*same), [{"run": row["run_uuid"], "which": row["key"]} for row in rows])
        connection.execute(insert(SqlTag), rows)
        if named:
            rename = update(SqlRun.__table__).where(SqlRun.run_uuid == bindparam("run"))
            connection.execute(rename.values(name=bindparam("called")), named)


def _run(run_id: str, draft: Draft, experiment: int, artifacts: str) -> Row:
    return {
        **{"run_uuid": run_id, "name": draft.name, "experiment_id": experiment, "status": draft.status},
        **{"start_time": draft.started, "end_time": draft.ended, "deleted_time": None, "lifecycle_stage": "active"},
        **{"artifact_uri": f"{artifacts}/{run_id}/artifacts", "user_id": "unknown", "source_type": "UNKNOWN"},
        **{"source_name": "", "entry_point_name": "", "source_version": ""},
    }


def _point(metric: Metric) -> Row:
    point = {"key": metric.key, "value": metric.value, "timestamp": metric.timestamp, "step": metric.step}
    return point | {"is_nan": False}


def _link(connection: Connection, experiment: int, used: Sequence[tuple[str, Dataset]]) -> None:
    """Link runs to the datasets that they used; each dataset of an experiment is stored once."""
    known: Any = select(SqlDataset.name, SqlDataset.digest, SqlDataset.dataset_uuid)
    ids = {
        (name, digest): found for name, digest, found in connection.execute(known.filter_by(experiment_id=experiment))
    }
    for _, dataset in used:
        if (dataset.name, dataset.digest) not in ids:
            ids[dataset.name, dataset.digest] = uuid.uuid4().hex
            fields: Row = {"dataset_source_type": dataset.source_type, "dataset_source": dataset.source}
            fields |= {"dataset_schema": dataset.schema, "dataset_profile": dataset.profile}
            which = {"name": dataset.name, "digest": dataset.digest, "dataset_uuid": ids[dataset.name, dataset.digest]}
            connection.execute(insert(SqlDataset), [{**which, **fields, "experiment_id": experiment}])
    if used:
        links = [
            {
                **{"input_uuid": uuid.uuid4().hex, "source_type": "DATASET", "destination_type": "RUN"},
                **{"source_id": ids[dataset.name, dataset.digest], "destination_id": run_id},
            }
            for run_id, dataset in used
        ]
        connection.execute(insert(SqlInput), links)
        context = {"name": MLFLOW_DATASET_CONTEXT, "value": CONTEXT}
        connection.execute(insert(SqlInputTag), [{"input_uuid": link["input_uuid"], **context} for link in links])
