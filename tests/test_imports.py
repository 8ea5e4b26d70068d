"""Imports stand at the top of a file, unless they would load torch before the first line, or an optional package."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Imports inside functions, all packages together: to be lowered, never raised.
MOST = 46
# The way from the command line to a cell has none but these.
ALLOWED = {
    "bench/__init__.py": {"bench.api"},
    "bench/__main__.py": {"bench.cli", "bench.common.errors"},
    "bench/cli/console.py": {"bench.cli"},
}


def inside_functions(file):
    """What a file's functions import."""
    for function in ast.walk(ast.parse(file.read_text())):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom):
                    yield node.lineno, node.module
                elif isinstance(node, ast.Import):
                    yield node.lineno, node.names[0].name


def test_imports_inside_functions_become_fewer():
    packages = ("attention_zoo", "bench", "analysis")
    files = [file for package in packages for file in (ROOT / package).rglob("*.py")]
    assert sum(len(set(inside_functions(file))) for file in files) <= MOST


def test_the_way_to_a_cell_imports_at_the_top():
    found = {}
    for folder in ("", "cli", "common", "plan"):
        for file in (ROOT / "bench" / folder).glob("*.py"):
            if names := {name for _, name in inside_functions(file)}:
                found[str(file.relative_to(ROOT))] = names
    own = {name: names for name, names in found.items() if name in ALLOWED or name.count("/") > 1}
    assert own == ALLOWED


def test_neither_the_package_nor_the_first_line_needs_torch():
    code = "import sys, bench, bench.cli.console, bench.common.signals; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_way_to_a_cell_uses_no_private_part_of_hydra():
    files = [file for folder in ("bench", "analysis") for file in (ROOT / folder).rglob("*.py")]
    assert [file.name for file in files if "hydra._internal" in file.read_text()] == []
