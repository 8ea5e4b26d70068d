"""A test that needs more than the README names is skipped with its reason, or fails where it was asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SUITE = """
import pytest
@pytest.mark.needs("absent")
def test_needs(): pass
@pytest.mark.needs("here")
def test_has(): pass
def test_finds_out(): pytest.skip("needs a Slurm that starts")
@pytest.mark.parametrize("kind", [1, 2])
def test_refuses(kind): pytest.skip("refuses padding")
@pytest.mark.needs("here")
def test_has_and_finds_out(): pytest.skip("needs a Slurm that starts")
"""


@pytest.fixture
def run(tmp_path):
    """Run the suite above; gives its exit status and its output."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    plugin = """
    import needs
    needs.NEEDS.update(absent=needs.Need("what is not there", lambda: False), here=needs.Need("air", lambda: True))
    """
    (tmp_path / "conftest.py").write_text("\n".join(line.strip() for line in plugin.splitlines()))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers = needs: x\npythonpath = {TESTS}\n")

    def run(*options):
        environment = {"PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "needs", "-p", "no:cacheprovider", *options, "."]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout

    return run


def test_what_is_missing_is_one_line_for_each_reason(run):
    status, out = run()
    assert status == 0 and "1 passed, 5 skipped" in out
    needs = ["skipped 2: needs a Slurm that starts", "skipped 1: needs what is not there"]
    others = "skipped 2: not asked of what they would try (-rs lists them)"
    assert [line for line in out.splitlines() if line.startswith("skipped ")] == [*needs, others]


def test_with_extras_only_these_run_and_what_is_missing_fails(run):
    status, out = run("--extras")
    assert status == 1 and "1 passed, 2 skipped, 3 deselected" in out
    assert "skipped 1: needs what is not there" in out and "skipped 1: needs a Slurm that starts" in out
    assert run("--extras", "-k", "test_has and not finds")[0] == 0
