"""The pages of a results folder: for this machine alone, and gone without a trace."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from urllib.parse import quote

import psutil
import pytest
from command import code_of, family, wait_for
from tracking_server import a_free_port

from bench.tracking.ui import main

pytestmark = pytest.mark.commands


def ui(results_dir, port):
    return [sys.executable, "-m", "bench.tracking.ui", "--results", str(results_dir), "--port", str(port)]


@contextmanager
def running(results_dir, port, marker):
    """The server with `marker` in its environment, and what it printed until it answered."""
    printed = results_dir.with_name("printed")
    with printed.open("w") as output:
        environment = os.environ | {"ATTENTION_ZOO_TEST": marker}
        process = subprocess.Popen(ui(results_dir, port), env=environment, stdout=output, stderr=output)
    try:
        wait_for(lambda: process.poll() is not None or "Ctrl-C" in printed.read_text(), 120)
        assert process.poll() is None, printed.read_text()
        yield process, printed.read_text()
    finally:
        process.terminate()
        process.wait(60)


def get(port, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_the_pages_are_served_to_this_machine_alone_and_end_without_a_trace(tmp_path):
    port, marker = a_free_port(), f"{tmp_path}-term"
    (tmp_path / "runs").mkdir()
    with running(tmp_path / "runs", port, marker) as (process, printed):
        assert get(port, "/health") == (200, "OK")
        path = "/api/2.0/mlflow/experiments/get-by-name?experiment_name=" + quote("attention-zoo")
        experiment = json.loads(get(port, path)[1])["experiment"]["experiment_id"]
        for page in ("runs", "sweeps"):
            assert f"http://127.0.0.1:{port}/#/experiments/{experiment}/runs?viewStateShareKey={page}&" in printed
        assert printed.count("workflowType=machine_learning") == 2
        assert f"http://127.0.0.1:{port}\n" in printed
        comparison = f"/#/experiments/{experiment}/runs?viewStateShareKey=comparison&"
        status, front = get(port, "/")
        assert status == 200 and f'location.replace("{comparison}' in front and 'id="root"' in front
        assert get(port, path, Host="example.org")[0] == 403
        listening = {
            connection.laddr.ip
            for member in family(marker)
            for connection in member.net_connections(kind="inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {"127.0.0.1"}

        second = subprocess.run(ui(tmp_path / "runs", port), capture_output=True, text=True, timeout=60)
        assert second.returncode == 1
        assert second.stderr.startswith(f"error: port={port}: ")
        assert second.stderr.count("\n") == 1

        assert len(family(marker)) >= 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert family(marker) == []


@pytest.mark.parametrize("wait_s", [0.5, 4])
def test_interrupting_the_start_leaves_no_process_behind(tmp_path, wait_s):
    marker = f"{tmp_path}-int"
    process = subprocess.Popen(
        ui(tmp_path, a_free_port()), env=os.environ | {"ATTENTION_ZOO_TEST": marker}, stdout=subprocess.DEVNULL
    )
    time.sleep(wait_s)
    process.send_signal(signal.SIGINT)
    process.wait(60)
    assert family(marker) == []


def test_a_kill_takes_the_server_along(tmp_path):
    marker = f"{tmp_path}-kill"
    (tmp_path / "runs").mkdir()
    with running(tmp_path / "runs", a_free_port(), marker) as (process, _):
        process.kill()
        wait_for(lambda: not family(marker), 30)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--results", "typo"], "--results="),
        (["--results", "file"], "--results='file': "),
        *((["--port", port], f"--port: {port!r}: must be a number from 1 to 65535; ") for port in ("0", "65536", "x")),
        (["--host", "0.0.0.0"], "unrecognized arguments: --host 0.0.0.0; "),
    ],
)
def test_what_cannot_be_served_is_one_line_and_nothing_is_made(arguments, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    code = code_of(main, ["--port", str(a_free_port()), *arguments])
    error = capsys.readouterr().err
    assert code == 2 and error.startswith(f"error: {message}") and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
