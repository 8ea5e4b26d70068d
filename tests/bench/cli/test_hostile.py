"""Whatever is typed: one line that names the key, exit code 2, nothing started and nothing written."""

import os

import pytest
from command import bench, code_of, environment
from hostile import PLUGINS, UNSUPPORTED, WITHOUT_A_RECORD

from bench.__main__ import main
from bench.execution.runner import Runner

pytestmark = pytest.mark.usefixtures("same_code", "signals_restored")


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
    require_one_line(hostile, code_of(main), *capsys.readouterr())
    assert new_files(tmp_path, before) == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ATTENTION_ZOO_START", "teleport", "ATTENTION_ZOO_START='teleport': must be fork or spawn\n"),
        ("ATTENTION_ZOO_SLOTS", "/proc/nowhere", "ATTENTION_ZOO_SLOTS=/proc/nowhere: "),
    ],
)
def test_a_variable_that_is_no_way_to_work_is_one_line(name, value, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["bench", "seq_len=64", "tracking=none", f"results_dir={tmp_path}/runs"])
    assert code_of(main) == 2
    (line,) = capsys.readouterr().err.splitlines(keepends=True)
    assert line.startswith(f"error: {said}")
    assert tree(tmp_path) == []


def require_one_line_of_the_command(hostile, tmp_path):
    """Runs the command in a process of its own."""
    typed = prepared(hostile, tmp_path)
    before = tree(tmp_path)
    path = os.pathsep.join([environment()["PYTHONPATH"], str(tmp_path)])
    env = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "ATTENTION_ZOO_PLUGINS": hostile.plugins or ""}
    tried = bench(*typed, timeout=60, cwd=tmp_path, **env)
    require_one_line(hostile, tried.returncode, tried.stdout, tried.stderr)
    assert new_files(tmp_path, before) == [] and not (tmp_path / "runs" / "scratch").exists()


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
    require_one_line_of_the_command(hostile, tmp_path)
    promise(commands=1, none="tracebacks cells_started")
