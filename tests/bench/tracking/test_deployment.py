"""The tracking server as docs/tracking.md and its compose.yaml set it up: what is typed there runs."""

import os
import pwd
import re
import shlex
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import needs
import pytest
import yaml
from command import TINY, bench
from tracking_server import a_free_port, finished, mlflow_server, told

DOCS = Path(__file__).parents[3] / "docs"
PASSWORD = "only for the test"


def commands():
    """The words of each `mlflow server` command of the page and of the container."""
    page = re.findall(r"^mlflow (.*)$", (DOCS / "tracking.md").read_text(), re.MULTILINE)
    return [shlex.split(line) for line in [*page, services()["tracking"]["command"].removeprefix("mlflow ")]]


def services():
    return yaml.safe_load((DOCS / "tracking" / "compose.yaml").read_text())["services"]


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_the_installed_mlflow_takes_the_command(arguments):
    from mlflow.cli import server

    assert arguments[0] == "server" and "--serve-artifacts" in arguments
    server.make_context("server", arguments[1:], resilient_parsing=False)


def test_the_containers_answer_on_the_loopback_address_and_hold_no_secret():
    tracking, database = services()["tracking"], services()["database"]
    assert tracking["ports"] == ["${BIND_ADDRESS:-127.0.0.1}:${PORT:-5000}:5000"] and "ports" not in database
    assert tracking["depends_on"]["database"]["condition"] == "service_healthy"
    assert all("healthcheck" in service and service["volumes"] for service in (tracking, database))
    example = dict(line.split("=") for line in (DOCS / "tracking" / ".env.example").read_text().split() if "=" in line)
    assert example == {"DATABASE_PASSWORD": "", "BIND_ADDRESS": "127.0.0.1", "PORT": "5000"}
    text = (DOCS / "tracking" / "compose.yaml").read_text()
    assert set(re.findall(r"\$\{(\w+)", text)) == example.keys()
    assert re.search(r"mlflow:v(.*)-full", text)[1] in (DOCS.parent / "constraints.txt").read_text()


@contextmanager
def sqlite():
    """The page's first command says all about its database."""
    yield commands()[0], {}


@contextmanager
def postgresql(port):
    """A real PostgreSQL with a database and a user `mlflow`; yields the database's address."""
    # It refuses to be run by root.
    owner = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    with tempfile.TemporaryDirectory(prefix="attention-zoo-postgresql-") as name:
        folder, password = Path(name), Path(name) / "password"
        password.write_text(PASSWORD)
        for path in (folder, password):
            shutil.chown(path, owner)

        def run(program, *arguments):
            command = [needs.postgresql() / program, "-D", str(folder / "data"), *arguments]
            done = subprocess.run(command, user=owner, cwd=folder, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr

        run("initdb", "-U", "mlflow", "-A", "scram-sha-256", "--pwfile", str(password), "--no-sync")
        options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder}"
        run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql+psycopg2://mlflow:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-m", "immediate", "stop")


@contextmanager
def another_database():
    """The page's second command, with the address of the database in its environment."""
    with postgresql(a_free_port()) as address:
        yield commands()[1], {"MLFLOW_BACKEND_STORE_URI": address}


@pytest.mark.commands
@pytest.mark.parametrize("database", [sqlite, pytest.param(another_database, marks=pytest.mark.needs("postgresql"))])
def test_the_plain_command_gets_runs_and_artifacts(tmp_path, database):
    port = a_free_port()
    sweep = [*TINY, "seed=1,2", f"results_dir={tmp_path}/runs"]
    with database() as (words, env):
        arguments = [str(port) if word == "5000" else word for word in words]
        with mlflow_server(tmp_path, *arguments, port=port, **env) as (address, _):
            assert_all_is_there(tmp_path, bench(*sweep, f"tracking.uri={address}"), address)
    assert (tmp_path / "mlflow.db").exists() == (database is sqlite)


def assert_all_is_there(folder, done, address):
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    assert finished(address, "cell", "curve", "summary") == (2, 1, 1)
    code = (
        "(run,) = client.search_runs(ids, \"tags.kind = 'summary'\")\n"
        "for at in (None, 'figures'): print(*(f.path for f in client.list_artifacts(run.info.run_id, at)))\n"
        "print(run.info.artifact_uri)"
    )
    top, figures, where = told(address, code).splitlines()
    assert {"table.md", "cells.json"} <= set(top.split()) and ".png" in figures
    assert where.startswith("mlflow-artifacts:/")
    assert list((folder / "mlartifacts").rglob("table.md")), "the server keeps them"
    assert not (folder / "runs" / "mlflow.db").exists() and not (folder / "runs" / "mlartifacts").exists()
