"""Writes many runs at once to the store of a results folder, through MLflow's database tables.

A client needs eight transactions and 40 ms of CPU time per run; this needs one transaction for all, and 2 ms each. It
writes the tables that `mlflow migrate-filestore` writes. Stores that a user names are written by the client instead.
"""

import uuid
from collections import defaultdict
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
from sqlalchemy import NullPool, create_engine, insert, select, update
from sqlalchemy.orm import Session

# The role of a dataset, as MLflow shows it.
CONTEXT = "measurement"
# Where a run comes from, which its tags say.
NO_SOURCE = dict.fromkeys(("source_name", "entry_point_name", "source_version"), "")
NO_SOURCE |= {"user_id": "unknown", "source_type": "UNKNOWN"}


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


def write(uri: str, experiment: str, artifacts: str, drafts: Iterable[Draft]) -> int:
    """Write runs into an experiment, all or none; returns their number.

    Args:
        uri: the store's SQLAlchemy URI.
        experiment: the experiment's id.
        artifacts: the experiment's artifact URI.
        drafts: runs with names and values that MLflow accepts, and without duplicate points of a metric.
    """
    rows: dict[type[Any], list[dict[str, Any]]] = defaultdict(list)
    place = {"experiment_id": int(experiment)}
    with create_engine(uri, poolclass=NullPool).begin() as connection:
        stored: Any = select(SqlDataset.name, SqlDataset.digest, SqlDataset.dataset_uuid).filter_by(**place)
        datasets = {(name, digest): found for name, digest, found in connection.execute(stored)}
        for draft in drafts:
            run_id, tags = uuid.uuid4().hex, {MLFLOW_RUN_NAME: draft.name, **draft.tags}
            own = {"run_uuid": run_id}
            times = {"start_time": draft.started, "end_time": draft.ended}
            named = {"name": draft.name, "status": draft.status, "artifact_uri": f"{artifacts}/{run_id}/artifacts"}
            rows[SqlRun].append({**own, **place, **named, **times, **NO_SOURCE})
            rows[SqlTag] += [{"key": key, "value": value, **own} for key, value in tags.items()]
            rows[SqlParam] += [{"key": key, "value": value, **own} for key, value in draft.params.items()]
            points = [
                {"key": one.key, "value": one.value, "timestamp": one.timestamp, "step": one.step, **own}
                for one in draft.metrics
            ]
            rows[SqlMetric] += points
            newest = {point["key"]: point for point in sorted(points, key=lambda one: (one["step"], one["timestamp"]))}
            rows[SqlLatestMetric] += newest.values()
            if used := draft.dataset:
                if (which := (used.name, used.digest)) not in datasets:  # each is stored once
                    datasets[which] = uuid.uuid4().hex
                    fields: dict[str, Any] = {"dataset_source_type": used.source_type, "dataset_source": used.source}
                    fields |= {"dataset_schema": used.schema, "dataset_profile": used.profile, "name": used.name}
                    rows[SqlDataset].append({**place, **fields, "digest": used.digest, "dataset_uuid": datasets[which]})
                link = {"input_uuid": uuid.uuid4().hex}
                ends = {"source_id": datasets[which], "destination_type": "RUN", "destination_id": run_id}
                rows[SqlInput].append({**link, "source_type": "DATASET", **ends})
                rows[SqlInputTag].append({**link, "name": MLFLOW_DATASET_CONTEXT, "value": CONTEXT})
        for table, values in rows.items():
            if values:
                connection.execute(insert(table), values)
    return len(rows[SqlRun])


def tag(uri: str, changes: Sequence[tuple[str, Mapping[str, str]]]) -> None:
    """Set tags of runs, given their ids; the tag for the name also renames the run."""
    rows = [{"key": key, "value": value, "run_uuid": run} for run, tags in changes for key, value in tags.items()]
    names = [{"run_uuid": row["run_uuid"], "name": row["value"]} for row in rows if row["key"] == MLFLOW_RUN_NAME]
    with Session(create_engine(uri, poolclass=NullPool)) as session, session.begin():
        if rows:
            session.execute(insert(SqlTag).prefix_with("OR REPLACE"), rows)  # in SQLite's words
        if names:
            session.execute(update(SqlRun), names)
