"""Children of the server that forks them: as new as a process started from nothing, and ended with all they start."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
from command import HERE, ROOT, environment, wait_for

from bench.execution import processes
from bench.plan.sources import Source

TASK = """
import json, os, random, signal, subprocess, sys, threading, time

def main():
    os.write(0, json.dumps(WHAT).encode())
    sys.stdin.readline()
    THEN
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where tasks lie: on the search path, alike for all tests, so that they share servers."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "code").touch()
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


# The server itself is the same for both, and starts sooner if it need not import torch.
both_ways = pytest.mark.parametrize("start", ["fork", "spawn"], indirect=True)


@pytest.fixture
def start(request, folder):
    """Starts a child that evaluates an expression, waits for a line and does something; gives it and the value."""
    children, way = [], getattr(request, "param", "spawn")

    def started(expression, then="pass", sources=(), **env):
        name = f"task_{len(list(folder.glob('*.py')))}"
        (folder / f"{name}.py").write_text(TASK.replace("WHAT", expression).replace("THEN", then))
        alike = {"ATTENTION_ZOO_START": way, "ATTENTION_ZOO_PLUGINS": "fake_mechanisms", "COLOUR": "green"}
        child = processes.start(name, environment(**alike | env), sources)
        children.append(child)
        return child, json.loads(child.channel.recv(1000))

    yield started
    for child in children:
        child.end()


SEEN = """[
    [name for name in ('torch', 'attention_zoo', 'fake_mechanisms') if name in sys.modules],
    [os.getpid(), os.getsid(0), os.environ['COLOUR'], os.getcwd()],
    threading.active_count(),
    len([x for x in os.listdir('/proc/self/fd') if '.so' not in os.path.realpath('/proc/self/fd/' + x)]),
    random.random(),
    *([sys.modules['numpy'].random.rand(), sys.modules['torch'].rand(1).item()] if 'torch' in sys.modules else []),
]"""


@both_ways
def test_a_child_has_what_is_its_own_and_inherits_no_more_than_imports(start, request, tmp_path, monkeypatch):
    """Session, environment and folder; no thread, file, plugin or state of random generators, and torch if forked."""
    monkeypatch.chdir(tmp_path)
    drawn = []
    for _ in range(2):
        child, (loaded, own, threads, files, *numbers) = start(SEEN)
        assert loaded == (["torch", "attention_zoo"] if "fork" in request.node.callspec.id else [])
        assert own == [child.pid, child.pid, "green", str(tmp_path)]
        # Standard input, output and error, and the folder that is listed; Python 3.14 itself keeps a library open.
        assert (threads, files) == (1, 4)
        drawn += numbers
        child.send_line(b"")
        assert child.wait(10) and child.exit_code == 0
    assert len(set(drawn)) == len(drawn)


ENDINGS = {
    "os._exit(3)": 3,
    "sys.exit(4)": 4,
    "sys.exit('why')": 1,
    "1 / 0": 1,
    "pass": 0,
    "os.abort()": -signal.SIGABRT,
}


@both_ways
def test_how_a_child_ended_is_known(start):
    for ending, code in ENDINGS.items():
        child, _ = start("1", ending)
        assert not child.wait(0)
        child.send_line(b"")
        assert child.wait(20) and child.exit_code == code, ending


ESCAPES = "subprocess.Popen(['sleep', '600'], start_new_session=True).pid"


@both_ways
def test_a_child_that_heeds_no_signal_is_killed_with_all_it_started(start, monkeypatch):
    monkeypatch.setattr(processes, "GRACE_S", 0.2)
    child, grandchild = start(f"[signal.signal(15, signal.SIG_IGN), {ESCAPES}][1]", "time.sleep(600)")
    child.end()
    assert child.exit_code == -signal.SIGKILL
    assert not psutil.pid_exists(grandchild)


def test_a_second_interrupt_still_kills(start):
    child, _ = start("str(signal.signal(15, signal.SIG_IGN))")

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            child.end()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < processes.GRACE_S
    assert child.exit_code == -signal.SIGKILL


def test_a_server_that_is_killed_is_replaced_and_its_child_ended(start):
    child, server = start("os.getppid()")
    os.kill(server, signal.SIGKILL)
    with pytest.raises(processes.LostServer):
        child.wait(10)
    child.end()
    assert child.exit_code is None
    wait_for(lambda: not psutil.pid_exists(child.pid), 5)
    _, other = start("os.getppid()")
    assert other != server


def test_one_server_serves_until_environment_or_sources_change(start, folder):
    code = folder / "code"
    sources = [Source("code", str(code), "0" * 64)]

    def server(**changes):
        child, (parent, colour) = start("[os.getppid(), os.environ['COLOUR']]", sources=sources, **changes)
        child.end()
        assert colour == changes.get("COLOUR", "green")
        return parent

    first = server()
    assert server() == first
    code.write_text("changed")
    os.utime(code, (0, 0))  # however old it says it is
    second = server()
    assert len({first, second, server(COLOUR="red")}) == 3


PARENT = """
import os, sys, time
from bench.execution import processes
child = processes.start("task", dict(os.environ), ())
print(child.channel.recv(1000).decode(), flush=True)
time.sleep(600)
"""


def test_kill_9_of_the_parent_ends_server_child_and_grandchild(tmp_path):
    code = TASK.replace("WHAT", f"[os.getppid(), os.getpid(), {ESCAPES}]")
    code = code.replace("sys.stdin.readline()", "time.sleep(600)")
    (tmp_path / "task.py").write_text(code)
    env = environment() | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), str(HERE)])}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env=env)
    family = json.loads(parent.stdout.readline())
    parent.kill()
    parent.wait()
    wait_for(lambda: not any(map(psutil.pid_exists, family)), 10)


def test_a_thread_that_sweeps_has_a_server_of_its_own(start):
    child, server = start("os.getppid()")
    child.end()
    others = []
    thread = threading.Thread(target=lambda: others.append(start("os.getppid()")))
    thread.start()
    thread.join()
    ((other, its_server),) = others
    assert its_server != server
    other.end()


BURN = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def test_what_a_child_and_all_that_it_started_have_computed_is_known(start):
    others = f"subprocess.run([sys.executable, '-c', {BURN!r}])"
    child, _ = start(
        "0",
        f"{others}; subprocess.Popen([sys.executable, '-c', {BURN!r} + '\\ninput()'], "
        "stdin=subprocess.PIPE, start_new_session=True); time.sleep(1.5); os._exit(7)",
    )
    assert child.cpu_s is None
    child.send_line(b"")
    assert child.wait(60) and child.exit_code == 7
    idle, _ = start("0")
    idle.send_line(b"")
    assert idle.wait(60) and idle.cpu_s + 0.3 < child.cpu_s


PREPARED = """
import json, os, sys
from bench.execution import processes

processes.prepare()
(fork,) = processes._prepared
for environment in ({"CUDA_VISIBLE_DEVICES": ""}, {"OMP_NUM_THREADS": "3"}):
    child = processes.start("prepared_task", {**os.environ, **environment}, ())
    seen = json.loads(child.channel.recv(1000))
    child.send_line(b"")
    assert child.wait(20) and child.exit_code == 0
    print(json.dumps([child.server._process.pid == fork.pid, child.pid, seen]))
    processes.prepare()
    (fork,) = processes._prepared
"""


def test_a_fork_of_the_process_serves_as_a_new_process_would(tmp_path):
    """If that would load the same: libraries read early how many threads to use, and CUDA late which GPUs."""
    own = "os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ['OMP_NUM_THREADS'], sys.argv[0]"
    seen = f"[{SEEN}, [{own}, signal.getsignal(2).__name__, signal.getsignal(15)]]"
    (tmp_path / "prepared_task.py").write_text(TASK.replace("WHAT", seen).replace("THEN", "pass"))
    environ = environment(ATTENTION_ZOO_START="fork", COLOUR="green", OMP_NUM_THREADS="1")
    environ["PYTHONPATH"] += os.pathsep + str(tmp_path)
    command = [sys.executable, "-c", PREPARED]
    ran = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True, timeout=100)
    forked, other = map(json.loads, ran.stdout.splitlines())
    assert forked[0] and forked[2][1] == ["", "1", "-c", "default_int_handler", signal.SIG_DFL]
    assert not other[0] and other[2][1] == [None, "3", "-c", "default_int_handler", signal.SIG_DFL]
    for _, pid, ((loaded, whose, threads, files, *_), _) in (forked, other):
        assert (loaded, threads, files) == (["torch", "attention_zoo"], 1, 4)
        assert whose == [pid, pid, "green", str(tmp_path)]
