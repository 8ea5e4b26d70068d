"""No default command speaks to anybody else: every address that it connects or sends to is on this machine."""

import re
import subprocess
import sys
import time

import psutil
import pytest
from command import ROOT, command, environment
from tracking_server import a_free_port

pytestmark = [pytest.mark.faults, pytest.mark.needs("strace")]

CELL = "attention=v_mean seq_len=32 batch_size=1 num_heads=1 head_dim=4 repeats=1"
TRAINED = """attention=v_mean task=reversal model=encoder seq_len=8 batch_size=4 training.steps=2 training.warmup=1
    training.evaluate_every=2 training.evaluation_examples=4 training.test_examples=4"""
SWEEPS = {
    **dict.fromkeys(("latency", "memory", "flops", "roofline", "spectral_norm"), CELL),
    "sketch_error": f"{CELL} attention=polysketch",
    "decode": f"{CELL} attention=linear",
    "compare": f"{CELL} attention=v_mean,linear",
    "train": TRAINED,
}
RESULTS = "RESULTS"
NOTEBOOK = (
    "import nbformat, nbclient, sys; "
    "nbclient.NotebookClient(nbformat.read(sys.argv[1], as_version=4), timeout=300, kernel_name='python3').execute()"
)
OTHERS = {
    "figures": ["-m", "analysis", "figures", "--results", RESULTS],
    "tables": ["-m", "analysis", "tables", "--results", RESULTS],
    "zoo_page": ["-m", "tools.pages.zoo"],
    "parameters": ["-m", "tools.pages.parameters"],
    "notebook": ["-c", NOTEBOOK, str(ROOT / "notebooks" / "speed_and_memory.ipynb")],
}
# What may leave: other families do not.
ADDRESS = re.compile(r'sa_family=AF_INET6?, .*?(?:inet_addr\("|inet_pton\(AF_INET6, ")([^"]+)"')
LOOPBACK = re.compile(r"127\.|::1$|::ffff:127\.")


@pytest.fixture
def traced(tmp_path):
    """The words before a command that is watched."""
    calls = ["-e", "trace=connect,sendto,sendmsg,sendmmsg", "-e", "signal=none"]
    return ["strace", "-f", "-qq", "--seccomp-bpf", *calls, "-o", str(tmp_path / "trace")]


def addresses(folder):
    """The addresses of other processes than those of this machine's own families of sockets."""
    return ADDRESS.findall((folder / "trace").read_text())


def say(promise, found):
    assert [address for address in found if not LOOPBACK.match(address)] == []
    promise(commands=1, addresses_on_loopback=len(found), others=0)


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_speaks_to_nobody(tmp_path, traced, name, promise):
    """No connection, no datagram and no look-up of a name leaves the loopback address: every benchmark"""
    arguments = [f"bench={name}", *SWEEPS[name].split(), "device=cpu", f"results_dir={tmp_path / 'runs'}"]
    watched = [*traced, *command(*arguments)]
    done = subprocess.run(watched, capture_output=True, text=True, env=environment(), cwd=tmp_path)
    assert done.returncode == 0 and "| ok " in done.stdout, done.stderr
    say(promise, addresses(tmp_path))


@pytest.mark.parametrize("name", OTHERS)
def test_figures_tables_and_pages_speak_to_nobody(tmp_path, traced, name, synthetic_results, promise):
    """No connection, no datagram and no look-up of a name leaves the loopback address: figures, pages"""
    words = [str(synthetic_results) if word == RESULTS else word for word in OTHERS[name]]
    env = environment(RESULTS_DIR=str(synthetic_results))
    done = subprocess.run([*traced, sys.executable, *words], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    say(promise, addresses(tmp_path))


def test_the_server_of_the_pages_speaks_to_nobody(tmp_path, traced, promise):
    """No connection, no datagram and no look-up of a name leaves the loopback address: `make ui`"""
    port = a_free_port()
    (tmp_path / "runs").mkdir()
    words = ["-m", "bench.tracking.ui", "--results", str(tmp_path / "runs"), "--port", str(port)]
    server = subprocess.Popen([*traced, sys.executable, *words], stdout=subprocess.PIPE, text=True, env=environment())
    try:
        assert f"127.0.0.1:{port}" in server.stdout.readline()
        time.sleep(5)
    finally:
        psutil.Process(server.pid).children()[0].terminate()  # strace itself would leave it running
        server.communicate(timeout=60)
    found = addresses(tmp_path)
    assert found, "it was asked whether it answers"
    say(promise, found)
