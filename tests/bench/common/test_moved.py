"""Old names of modules go on working, with a warning."""

import importlib
import sys

import pytest
from command import python

from bench.common.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_is_the_module(old):
    with pytest.warns(FutureWarning, match=f"{old} is {MOVED[old]} now"):
        sys.modules.pop(old, None)
        module = importlib.import_module(old)
    assert module is importlib.import_module(MOVED[old]) and module.__spec__.name == MOVED[old]


@pytest.mark.commands
def test_an_old_name_runs_as_a_command():
    tried = python("-m", "bench.wait", "--help")
    assert tried.returncode == 0 and "the id that the sweep printed" in tried.stdout, tried.stderr
