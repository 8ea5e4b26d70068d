"""A real PostgreSQL of its own, on a free port of the loopback address."""

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import needs

PASSWORD = "only for the test"


def somebody():
    """Who runs it: it refuses to be run by root."""
    return "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name


@contextmanager
def postgresql(port):
    """Start it with a database and a user `mlflow`; yields the database's address."""
    folder = Path(tempfile.mkdtemp(prefix="attention-zoo-postgresql-"))
    owner = somebody()
    shutil.chown(folder, owner)
    (folder / "password").write_text(PASSWORD)
    shutil.chown(folder / "password", owner)

    def run(name, *arguments):
        command = [needs.postgresql() / name, *arguments]
        done = subprocess.run(command, user=owner, cwd=folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

    data = ["-D", str(folder / "data")]
    try:
        run("initdb", *data, "-U", "mlflow", "-A", "scram-sha-256", "--pwfile", str(folder / "password"), "--no-sync")
        options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder}"
        run("pg_ctl", *data, "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql+psycopg2://mlflow:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", *data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)
