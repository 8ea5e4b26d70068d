"""Whatever is typed: one line that names the key, exit code 2, nothing started and nothing written."""

import contextlib
import os
import resource
import signal
import subprocess
import time

import psutil
import pytest
from command import command, environment
from hostile import PLUGINS, UNSUPPORTED, WITHOUT_A_RECORD

from bench.__main__ import main
from bench.common import signals
from bench.execution.runner import Runner

LONGEST_S = 10


@pytest.fixture(autouse=True)
def handlers():
    """The command answers signals from its first line on."""
    before = {number: signal.getsignal(number) for number in signals.TO_END}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def name(hostile):
    return " ".join(hostile.typed)[:60].encode("unicode_escape").decode()


def prepared(hostile, folder):
    """What is typed, when the files lie in the folder."""
    for path, content in hostile.files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            file.write_text(content)
        elif content.startswith(b"-> "):
            file.symlink_to(content[3:].decode())
        else:
            file.write_bytes(content)
    typed = [word.replace("{dir}", str(folder)) for word in hostile.typed]
    keys = {word.partition("=")[0] for word in typed}
    own = [] if "results_dir" in keys else [f"results_dir={folder}/runs"]
    return [*own, *([] if any("tracking" in key for key in keys) else ["tracking=none"]), *typed]


def processor_time():
    """Seconds that the processes that this one has waited for have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tries(child, command):
    """Whether a process tries mechanisms and inputs before any cell: what only a constructor refuses is found there."""
    words = child.cmdline()
    # Until it is what it will be, a new process looks as the one that started it.
    return words in ([], command) or "forkserver" in " ".join(words)


def tree(folder):
    return sorted(str(path) for path in folder.rglob("*"))


def require_one_line(hostile, code, out, err):
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ") and err.count("\n") == 1 and len(err) < 1000, err
    assert hostile.named in err
    assert "hunter2" not in err


def new_files(folder, before):
    """What appeared beside the results folder."""
    return [path for path in tree(folder) if path not in before and not path.startswith(str(folder / "runs"))]


@pytest.mark.parametrize("hostile", [*WITHOUT_A_RECORD, *UNSUPPORTED], ids=name)
def test_it_is_one_line(hostile, tmp_path, monkeypatch, capsys):
    typed = prepared(hostile, tmp_path)
    before = tree(tmp_path)
    real = Runner.run_cell
    monkeypatch.setattr(
        Runner, "run_cell", lambda self, cell, *args: real(self, cell, *args) if cell.unsupported else 1 / 0
    )
    monkeypatch.setattr("sys.argv", ["bench", *typed])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    require_one_line(hostile, ended.value.code, printed.out, printed.err)
    assert new_files(tmp_path, before) == []


def test_a_way_to_start_children_that_nobody_knows_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ATTENTION_ZOO_START", "teleport")
    monkeypatch.setattr("sys.argv", ["bench", "seq_len=64", "tracking=none", f"results_dir={tmp_path}/runs"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = "error: ATTENTION_ZOO_START='teleport': must be fork or spawn\n"
    assert (ended.value.code, capsys.readouterr().err) == (2, said)
    assert tree(tmp_path) == []


def require_one_line_of_the_command(hostile, tmp_path):
    """Runs the command in a process of its own; the seconds of processor time that it took."""
    typed = prepared(hostile, tmp_path)
    before = tree(tmp_path)
    path = os.pathsep.join([environment()["PYTHONPATH"], str(tmp_path)])
    more = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "ATTENTION_ZOO_PLUGINS": hostile.plugins or ""}
    began, used = time.monotonic(), processor_time()
    process = subprocess.Popen(
        command(*typed),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment() | more,
    )
    children = set()
    while process.poll() is None and time.monotonic() - began < 6 * LONGEST_S:  # a shared machine may be slow
        with contextlib.suppress(psutil.Error):
            family = psutil.Process(process.pid).children(recursive=True)
            children |= {child.pid for child in family if not _tries(child, process.args)}
        time.sleep(0.05)
    process.kill()
    out, err = process.communicate()
    require_one_line(hostile, process.returncode, out, err)
    took = processor_time() - used
    assert took < LONGEST_S and not children
    assert new_files(tmp_path, before) == []
    return took


@pytest.mark.commands
@pytest.mark.parametrize("hostile", PLUGINS, ids=lambda hostile: hostile.plugins)
def test_a_plugin_that_cannot_be_imported_is_one_line(hostile, tmp_path):
    require_one_line_of_the_command(hostile, tmp_path)


@pytest.mark.faults
@pytest.mark.parametrize("hostile", WITHOUT_A_RECORD[::4], ids=name)
def test_the_real_command_says_one_line(hostile, tmp_path, promise):
    """A mistake in a configuration, a folder or a flag is one line with its key and exit code 2, before a cell starts;
    nothing is written outside the results folder
    """
    took = require_one_line_of_the_command(hostile, tmp_path)
    promise(commands=1, processor_time=took, none="tracebacks cells_started")
