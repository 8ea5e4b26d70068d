"""A real MLflow server in a process of its own, and one before it that behaves badly."""

import http.client
import signal
import socket
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
from command import environment, python


def a_free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@contextmanager
def mlflow_server(folder, *arguments, port=None, **env):
    """`mlflow ARGUMENTS` in the folder; yields its address and a way to signal all of its processes."""
    port = port or a_free_port()
    address = f"http://127.0.0.1:{port}"
    arguments = arguments or (
        *("server", "--port", str(port), "--backend-store-uri", f"sqlite:///{folder}/store.db"),
        *("--artifacts-destination", f"{folder}/files"),
    )
    command = [sys.executable, "-m", "mlflow", *arguments, "--workers", "1"]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with open(folder / "server.log", "w") as log:
        process = psutil.Popen(command, cwd=folder, env=environment(**quiet, **env), stdout=log, stderr=log)

    def send(number):
        for each in [process, *process.children(recursive=True)]:
            each.send_signal(number)

    try:
        deadline = time.monotonic() + 120
        while not answers(address):
            assert process.is_running() and time.monotonic() < deadline, (folder / "server.log").read_text()
            time.sleep(0.2)
        yield address, send
    finally:
        if process.is_running():
            send(signal.SIGKILL)
        process.wait()


def answers(address):
    try:
        return urllib.request.urlopen(f"{address}/health", timeout=5).status == 200
    except OSError:
        return False


@contextmanager
def in_front_of(address, behaviour):
    """An address where every request reaches the server after `behaviour(handler)`, unless that says True: answered."""
    port = int(address.rpartition(":")[2])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if behaviour(self):
                self.close_connection = True
                return
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers.get("Content-Type", ""))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            connection.close()

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = pass_on

        def log_message(self, *arguments):
            pass

    class Front(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request, client_address):
            pass  # who asked is gone

    with Front(("127.0.0.1", 0), Handler) as front:
        threading.Thread(target=front.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{front.server_port}"
        front.shutdown()


def told(address, code):
    """What a client in a process of its own prints: `client` and `ids` of the experiments are there."""
    start = "import mlflow; client = mlflow.MlflowClient();"
    start += "ids = [e.experiment_id for e in client.search_experiments()];"
    done = python("-c", start + code, MLFLOW_TRACKING_URI=address)
    assert done.returncode == 0, done.stderr
    return done.stdout


def finished(address, *kinds):
    """How many finished runs of each kind the server has."""
    count = "sum(run.info.status == 'FINISHED' for run in client.search_runs(ids, f\"tags.kind = '{kind}'\"))"
    return tuple(map(int, told(address, f"print(*({count} for kind in {kinds}))").split()))
