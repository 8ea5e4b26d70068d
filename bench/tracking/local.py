"""The SQLite store of a results folder: made, written in few transactions, and moved with the folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment


def create(path: Path, artifacts_uri: str) -> None:
    """Migrate under another name, then rename: a migration that is killed half-way cannot be continued."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    unfinished = path.with_name(f".{path.name}.tmp")
    unfinished.unlink(missing_ok=True)
    SqlAlchemyStore(f"sqlite:///{unfinished}", artifacts_uri).engine.dispose()
    os.replace(unfinished, path)


@contextmanager
def transaction(client: MlflowClient) -> Iterator[Callable[[], None]]:
    """Everything that a client writes is one transaction; call what this gives to commit and begin the next one.

    MLflow itself commits six times for a run, and waits for the disk each time.
    """
    from mlflow.store.db.utils import _get_managed_session_maker
    from sqlalchemy.orm import sessionmaker

    store = client._tracking_client.store
    own = store.ManagedSessionMaker
    with store.engine.connect() as connection:

        def begin() -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

        def commit() -> None:
            connection.commit()
            begin()

        connection.exec_driver_sql("PRAGMA busy_timeout = 20000")
        begin()
        sessions = sessionmaker(bind=connection, join_transaction_mode="create_savepoint")
        store.ManagedSessionMaker = _get_managed_session_maker(sessions, "sqlite")
        try:
            yield commit
            connection.commit()
        finally:
            store.ManagedSessionMaker = own


def move(client: MlflowClient, experiment: Experiment, artifacts_uri: str) -> None:
    """Say where the artifacts of an experiment are now: MLflow stores the whole path in every run."""
    from sqlalchemy import text

    values = {
        "id": int(experiment.experiment_id),
        "new": artifacts_uri,
        "old": experiment.artifact_location,
        "rest": len(experiment.artifact_location) + 1,
    }
    with client._tracking_client.store.ManagedSessionMaker(read_only=False) as session:
        session.execute(
            text(
                "UPDATE runs SET artifact_uri = :new || substr(artifact_uri, :rest)"
                " WHERE experiment_id = :id AND substr(artifact_uri, 1, :rest - 1) = :old"
            ),
            values,
        )
        session.execute(text("UPDATE experiments SET artifact_location = :new WHERE experiment_id = :id"), values)
