"""`attention-zoo`: every command is the module of that name, and mistakes are one line."""

import importlib.metadata
import importlib.util
import sys

import pytest
from command import ROOT, code_of, python

from bench.cli import console

pytestmark = pytest.mark.usefixtures("signals_restored")


def said(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["attention-zoo", *arguments])
    return code_of(console.main), *capsys.readouterr()


def test_every_command_is_in_the_usage_and_has_a_module(monkeypatch, capsys):
    code, out, _ = said(monkeypatch, capsys)
    assert code == 0 and out == said(monkeypatch, capsys, "--help")[1]
    for name, (module, _, _) in console.COMMANDS.items():
        assert f"\n  {name} " in out and importlib.util.find_spec(module), name


def test_the_variants_are_listed_with_what_they_are(monkeypatch, capsys):
    monkeypatch.setattr(importlib.metadata, "distributions", lambda name: iter([name] if name == "linformer" else []))
    code, out, _ = said(monkeypatch, capsys, "list")
    listed = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert code == 0 and sorted(listed) == sorted(path.stem for path in (ROOT / "conf/attention").glob("*.yaml"))
    assert listed["flash_attn"].endswith("[not installed: pip install flash-attn]")
    assert listed["lucidrains_performer"].endswith("[not installed: pip install performer-pytorch]")
    assert "not installed" not in listed["lucidrains_linformer"] + listed["softmax"]
    assert listed["polysketch_learned_r32"] == "PolySketchFormer ICML, Tables 1 to 4 and 6: learned sketch, r = 32."


MISTAKES = [
    ("figures --width tripple", "--width: width='tripple': must be single, double or inches from 2 to 20"),
    ("status --al --wach", "unrecognized arguments: --wach"),
    ("wait", "the following arguments are required: sweep"),
    ("ui --port abc", "--port: 'abc': must be a number from 1 to 65535"),
    ("list foo", "list foo: must be `list` alone"),
    ("benhc", "benhc: must be one of bench, figures"),
]


@pytest.mark.parametrize(("typed", "why"), MISTAKES, ids=[typed for typed, _ in MISTAKES])
def test_what_was_typed_wrong_is_one_line(monkeypatch, capsys, typed, why):
    """Nothing else, such as the whole usage above it."""
    code, out, err = said(monkeypatch, capsys, *typed.split())
    assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith(f"error: {why}")


def test_a_command_gets_its_arguments_and_its_exit_status(monkeypatch, capsys, tmp_path):
    code, _, err = said(monkeypatch, capsys, "tables", "--results", str(tmp_path))
    assert code == 1 and str(tmp_path) in err


def test_what_is_not_installed_is_named_with_its_extra(monkeypatch, capsys):
    def run_module(*args, **kwargs):
        raise ModuleNotFoundError("No module named 'hydra'", name="hydra.core")

    monkeypatch.setattr(console.runpy, "run_module", run_module)
    code, _, err = said(monkeypatch, capsys, "bench")
    why = "hydra.core: not installed; in a checkout of attention-zoo: pip install -e '.[bench]'"
    assert (code, err) == (2, f"error: {why}\n")


@pytest.mark.parametrize(
    ("file", "started", "code", "last"),
    [
        ("analysis.py", ["-c", "import bench"], 1, "ImportError: {}: hides the suite's package"),
        ("analysis.py", ["-m", "bench", "--help"], 2, "error: {}: hides the suite's package"),
        ("bench.py", ["-m", "analysis", "--help"], 2, "error: {}: hides the suite's package"),
    ],
)
def test_a_file_of_the_same_name_is_refused_in_one_line(tmp_path, file, started, code, last):
    (tmp_path / file).write_text("")
    tried = python(*started, cwd=tmp_path)
    assert tried.returncode == code and tried.stderr.splitlines()[-1].startswith(last.format(tmp_path / file))
    assert code == 1 or tried.stderr.count("\n") == 1
