"""The documentation builds without a warning: no broken link inside it, and every docstring can be read as markup."""

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command import environment

import attention_zoo

DOCS = Path(__file__).parents[1] / "docs"


def test_every_mechanism_is_on_the_page_of_mechanisms():
    page = (DOCS / "reference" / "mechanisms.md").read_text()
    modules = {attention_zoo.attention_class(name).__module__ for name in attention_zoo.list_attentions()}
    own = {module for module in modules if module.startswith("attention_zoo.")}
    assert [module for module in sorted(own) if f".. automodule:: {module}\n" not in page] == []


def test_help_of_create_describes_each_of_its_arguments():
    text = inspect.getdoc(attention_zoo.create)
    for name in inspect.signature(attention_zoo.create).parameters:
        assert re.search(rf"^    \**{name}: ", text, re.MULTILINE), name


@pytest.mark.commands
def test_the_site_builds_without_a_warning_and_has_the_docstrings(tmp_path):
    if importlib.util.find_spec("sphinx") is None:
        pytest.skip("needs the extra docs")
    options = ["-q", "-W", "--keep-going", "-d", tmp_path / "cache"]
    command = [sys.executable, "-m", "sphinx", *options, DOCS, tmp_path / "site"]
    built = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "<strong>head_dim</strong>" in (tmp_path / "site" / "reference" / "library.html").read_text()
    assert (tmp_path / "site" / "tutorials" / "first_sweep.html").exists()
