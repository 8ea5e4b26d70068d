import shutil

import pytest

from bench.tracking import runs
from bench.tracking.mirror import Mirror


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    path = tmp_path_factory.mktemp("template") / "mlflow.db"
    runs.create_store(path, "file:///nowhere")
    return path


@pytest.fixture
def results_dir(tmp_path, empty_database):
    """A results folder whose store is there already: migrating one takes two seconds."""
    folder = tmp_path / "my results, 100% é"
    folder.mkdir()
    shutil.copy(empty_database, folder / "mlflow.db")
    return folder


@pytest.fixture
def mirror(results_dir):
    return Mirror(results_dir)
