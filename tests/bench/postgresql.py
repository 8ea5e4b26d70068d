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


@contextmanager
def postgresql(port):
    """Start it with a database and a user `mlflow`; yields the database's address."""
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
