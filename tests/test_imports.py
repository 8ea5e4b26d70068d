"""Imports stand at the top of a file, unless they would load torch before the first line, or an optional package."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# They would load torch or MLflow before the first line of output, or look at what stands above them.
INSIDE_FUNCTIONS = {
    "analysis/__init__.py": {"analysis", "analysis.registry"},
    "bench/__init__.py": {"bench.api"},
    "bench/__main__.py": {"bench.cli", "bench.common.errors"},
    "bench/api.py": {"analysis"},
    "bench/cli/console.py": {"bench.cli"},
    "bench/measures/peaks.py": {"bench.measures.kernels.exponentials"},
    "bench/records/summary.py": {"bench"},
    "bench/tracking/mirror.py": {"bench.tracking"},
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


def test_imports_stand_at_the_top():
    files = [file for package in ("attention_zoo", "bench", "analysis") for file in (ROOT / package).rglob("*.py")]
    found = {str(file.relative_to(ROOT)): {name for _, name in inside_functions(file)} for file in files}
    assert {name: names for name, names in found.items() if names} == INSIDE_FUNCTIONS


def test_neither_the_package_nor_the_first_line_needs_torch():
    code = "import sys, bench, bench.cli.console, bench.common.signals; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_way_to_a_cell_uses_no_private_part_of_hydra():
    files = [file for folder in ("bench", "analysis") for file in (ROOT / folder).rglob("*.py")]
    assert [file.name for file in files if "hydra._internal" in file.read_text()] == []
