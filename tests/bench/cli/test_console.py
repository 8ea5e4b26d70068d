"""`attention-zoo`: every command is the module of that name, and mistakes are one line."""

import importlib.util
import subprocess
import sys

import pytest
from command import ROOT, environment

from bench.cli import console


def said(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["attention-zoo", *arguments])
    return console.main(), *capsys.readouterr()


def test_every_command_is_in_the_usage_and_has_a_module(monkeypatch, capsys):
    code, out, _ = said(monkeypatch, capsys)
    assert code == 0 and out == said(monkeypatch, capsys, "--help")[1]
    for name, command in console.COMMANDS.items():
        assert f"\n  {name} " in out and importlib.util.find_spec(command.module), name


def test_the_variants_are_listed(monkeypatch, capsys):
    code, out, _ = said(monkeypatch, capsys, "list")
    assert code == 0 and out.split() == sorted(path.stem for path in (ROOT / "conf/attention").glob("*.yaml"))


def test_an_unknown_command_is_one_line(monkeypatch, capsys):
    code, out, err = said(monkeypatch, capsys, "benhc")
    assert (code, out, err.count("\n")) == (2, "", 1) and "must be one of bench, figures" in err


MISTAKES = [
    ("figures --width tripple", "--width: width='tripple': must be single, double or inches from 2 to 20"),
    ("figures --names short", "--names: invalid choice: 'short' (choose from"),
    ("figures nosuch", "unrecognized arguments: nosuch"),
    ("tables --formats xlsx", "--formats: 'xlsx': must be some of md, csv, tex"),
    ("tables --table nosuch", "--table: invalid choice: 'nosuch' (choose from"),
    ("status --al --wach", "unrecognized arguments: --wach"),
    ("wait", "the following arguments are required: sweep"),
    ("merge", "the following arguments are required: FROM, INTO"),
    ("ui --port abc", "--port: 'abc': must be a number from 1 to 65535"),
    ("ui --results", "--results: expected one argument"),
    ("list foo", "list foo: must be `list` alone"),
]


@pytest.mark.parametrize(("typed", "why"), MISTAKES, ids=[typed for typed, _ in MISTAKES])
def test_what_was_typed_wrong_is_one_line(monkeypatch, capsys, typed, why):
    """Nothing else, such as the whole usage above it."""
    monkeypatch.setattr(sys, "argv", ["attention-zoo", *typed.split()])
    try:
        code = console.main()
    except SystemExit as ended:
        code = ended.code
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith(f"error: {why}")


def test_a_command_gets_its_arguments_and_its_exit_status(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["attention-zoo", "tables", "--results", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        console.main()
    assert ended.value.code == 1 and str(tmp_path) in capsys.readouterr().err


def test_what_is_not_installed_is_named_with_its_extra(monkeypatch, capsys):
    def run_module(*args, **kwargs):
        raise ModuleNotFoundError("No module named 'hydra'", name="hydra.core")

    monkeypatch.setattr(console.runpy, "run_module", run_module)
    code, _, err = said(monkeypatch, capsys, "bench")
    assert (code, err) == (2, "error: hydra.core: not installed; pip install 'attention-zoo[bench]'\n")


@pytest.mark.parametrize(("file", "code"), [("analysis.py", "import bench"), ("bench.py", "import analysis")])
def test_a_file_of_the_same_name_is_refused_in_one_line(tmp_path, file, code):
    (tmp_path / file).write_text("")
    tried = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert f"ImportError: {tmp_path / file}: hides the suite's package" in tried.stderr.splitlines()[-1]


@pytest.mark.parametrize(("file", "module"), [("analysis.py", "bench"), ("bench.py", "analysis")])
def test_the_command_says_so_without_a_traceback(tmp_path, file, module):
    (tmp_path / file).write_text("")
    command = [sys.executable, "-m", module, "--help"]
    tried = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert tried.returncode == 2 and tried.stderr.count("\n") == 1 and f"{file}: hides" in tried.stderr
