"""The folder for a GPU machine without a network is whole, and its calls are commands that exist."""

import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from bench import api
from bench.plan.load import Loader

ROOT = Path(__file__).parents[1]
CALLS = range(6)

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a pack is made of a commit")


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    """The folder without what a network or a model is needed for."""
    folder = tmp_path_factory.mktemp("made") / "gpu-pack"
    command = [sys.executable, ROOT / "gpu" / "pack.py", "--to", folder, "--without", "wheels", "inputs"]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert re.search(r"gpu-pack: \d+\.\d MiB", made.stdout)
    return folder


def commands(pack, call):
    """What a call would run, as lists of words."""
    dry = subprocess.run(["bash", pack / "run", str(call), "--dry"], capture_output=True, text=True)
    assert dry.returncode == 0, dry.stderr
    return [line.split() for line in dry.stdout.splitlines()]


def isolated(pack, program):
    """A program that sees the packed project and the packages installed here, but not this checkout."""
    paths = [str(pack / "project"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    lines = f"import sys; sys.path[:0] = {paths}\n{program}"
    # Without `site`, nobody reads the file that leads to an installed checkout.
    return subprocess.run([sys.executable, "-I", "-S", "-c", lines], cwd=pack, capture_output=True, text=True)


@pytest.mark.commands
def test_the_packed_project_runs_by_itself_and_names_its_commit(pack):
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    ran = isolated(pack, "from bench.plan import machine as m; print(m.__file__, m.code_identity()['git_sha'])")
    assert ran.stdout.split() == [str(pack / "project" / "bench" / "plan" / "machine.py"), head], ran.stderr
    ran = isolated(pack, "import runpy; sys.argv = ['bench', '--help']; runpy.run_module('bench', run_name='__main__')")
    assert ran.returncode == 0 and "h100_kernels" in ran.stdout, ran.stderr
    ran = isolated(pack, "from bench.plan.load import CONF; print(CONF)")
    assert ran.stdout.split() == [str(pack / "project" / "conf")], ran.stderr
    ran = isolated(pack, "import tools.kernels.tune, bench.records.archive, analysis, attention_zoo")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.commands
@pytest.mark.parametrize("call", CALLS)
def test_each_call_names_what_is_in_the_pack(pack, call):
    for python, flag, module, *arguments in (words for words in commands(pack, call)):
        assert (python, flag) == ("python3", "-m")
        if module == "pytest":
            paths = [argument for argument in arguments if argument.startswith("tests/")]
            assert all((pack / "project" / path).exists() for path in paths if path != "tests/attention_zoo/ops")
            assert paths
        elif module == "bench":
            assert api.planned(Loader(), arguments).cells
        else:
            assert (pack / "project" / f"{module.replace('.', '/')}.py").exists()


@pytest.mark.commands
def test_there_are_no_other_calls(pack):
    for call in (len(CALLS), "all"):
        ran = subprocess.run(["bash", pack / "run", str(call), "--dry"], capture_output=True, text=True)
        assert ran.returncode == 2 and "calls 0 to 5" in ran.stderr


@pytest.mark.commands
def test_a_call_ends_in_time_and_brings_home_what_there_is(pack, tmp_path, monkeypatch):
    """With a bench that measures nothing and never ends by itself: its log comes home, and there are no records."""
    copy = shutil.copytree(pack, tmp_path / "gpu-pack")
    # What the call runs: a python that sleeps for `bench`, and is this one for the archive.
    fake = tmp_path / "bin" / "python3"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\ncase "$2" in bench) exec sleep 60;; *) exec {sys.executable} "$@";; esac\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setenv("LIMIT", "14")
    ran = subprocess.run(["bash", copy / "run", "2"], capture_output=True, text=True, timeout=60)
    assert "holds no records" in ran.stderr, ran.stdout
    assert (tmp_path / "out" / "call2.log").exists()


def test_the_page_says_what_each_call_does():
    page = (ROOT / "docs" / "gpu.md").read_text()
    for call in CALLS:
        assert f"| {call} |" in page
    assert "docs/gpu.md" in (ROOT / "README.md").read_text()


def test_every_wheel_has_a_version():
    wheels = runpy.run_path(str(ROOT / "gpu" / "pack.py"))["requirements"]()
    assert "hydra-core" in [wheel.partition("==")[0] for wheel in wheels] and all("==" in wheel for wheel in wheels)
