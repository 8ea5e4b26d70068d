"""The real command line in a process of its own."""

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import psutil

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# The cheapest cell there is.
TINY = ["seq_len=32", "batch_size=1", "num_heads=1", "head_dim=4"]
TINY += ["repeats=1", "bench.passes=[forward]", "bench.min_sample_ms=0"]
# In the environment of commands that measure mechanisms of `fake_mechanisms`.
FAKES = {"ATTENTION_ZOO_PLUGINS": "fake_mechanisms"}


def environment(**more):
    path = os.pathsep.join([str(ROOT), str(HERE)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def family(marker):
    """The living processes with `marker` as ATTENTION_ZOO_TEST in their environment, however they were started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ATTENTION_ZOO_TEST") == marker and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def command(*overrides):
    return [sys.executable, "-m", "bench", *overrides]


def python(*arguments, cwd=ROOT, timeout=300, **env):
    """How Python ended with these arguments, and what it said."""
    words, env = [sys.executable, *map(str, arguments)], environment(**env)
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=env)


def bench(*overrides, **how):
    return python("-m", "bench", *overrides, **how)


def start(*overrides, before=(), cwd=ROOT, **env):
    """The command, behind the words `before`, as a process of a session of its own."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*before, *command(*overrides)], cwd=cwd, env=environment(**env), stdout=pipe, stderr=pipe, text=True,
        start_new_session=True,
        # What a shell starts in the background ignores Ctrl-C, tests perhaps too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def code_of(main, *arguments):
    """What a command's function returns, or the code with which it ends the process."""
    try:
        return main(*arguments)
    except SystemExit as ended:
        return ended.code


def spans(log):
    """From the first to the last sign of life of each process that measured `fake_logged`, by time."""
    moments = defaultdict(list)
    for line in log.read_text().splitlines():
        pid, moment = line.split()
        moments[pid].append(float(moment))
    return sorted((min(each), max(each)) for each in moments.values())


def dies_of_flash(job):
    """Stands for `bench.compile.run_once`, here where a new process imports it in no time."""
    return os._exit(11) if job["label"] == "flash" else 1.5


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def sweep_of(folder, *names, tracking="none", of=TINY):
    """What is typed for a sweep of mechanisms, with a file for each that is none of the package's."""
    attention = folder / "conf" / "attention"
    attention.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not (ROOT / "conf" / "attention" / f"{name}.yaml").exists():
            (attention / f"{name}.yaml").write_text(f"name: {name}\n")
    where = ["--config-dir", str(folder / "conf"), f"results_dir={folder / 'runs'}"]
    return [*where, f"attention={','.join(names)}", f"tracking={tracking}", *of]
