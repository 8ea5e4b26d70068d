"""The house: its rooms one above the other, no import upwards and no circle, imports inside functions included."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from bench.plan import sources

ROOT = Path(__file__).parents[1]
PACKAGES = ("attention_zoo", "bench", "analysis")
# From the ground up: a module imports from its own room and from those above it in this list.
ROOMS = {
    "operations on tensors": r"attention_zoo\.ops(\..*)?",
    "mechanisms": r"attention_zoo(\.third_party\.\w+|\.(?!(ops|hf)$)\w+)?",
    "in other people's models": r"attention_zoo\.hf(\..*)?",
    "common": r"bench\.(common|published)(\..*)?",
    "records": r"bench\.records(\.(?!(archive|summary|table)$)\w+)?",
    "folders of trained models": r"bench\.training\.saved",
    "models": r"bench\.models(\..*)?",
    "inputs": r"bench\.inputs(\..*)?",
    "tasks": r"bench\.tasks(\..*)?",
    "training": r"bench\.training(\.(?!saved$)\w+)?",
    "measures": r"bench\.measures(\..*)?",
    "plan": r"bench\.plan(\..*)?",
    # Of older records the benchmarks say what was measured.
    "what records say": r"bench\.records\.(archive|summary|table)",
    "execution": r"bench\.execution(\..*)?",
    "tracking": r"bench\.tracking(\..*)?",
    "frame": r"analysis\.(formats|frame|intervals|paired|published|selection|table|tables(\..*)?|training"
    r"|attribution|controls|equal_quality|webpage)",
    "plots": r"analysis\.plots(\..*)?",
    "analysis": r"analysis(\.(advice|answer|registry|notebook|__main__))?",
    "front doors": r"bench(\.(api|cli|compile|merge|status|__main__)(\..*)?)?",
}


# They would load torch, its compiler or MLflow before they are needed, or look at what stands above them.
INSIDE_FUNCTIONS = {
    "attention_zoo.performer": {"attention_zoo.ops"},
    "analysis": {"analysis", "analysis.registry"},
    "bench": {"bench.api"},
    "bench.__main__": {"bench.cli", "bench.common.errors"},
    "bench.api": {"analysis"},
    "bench.cli.console": {"bench.cli"},
    "bench.measures.peaks": {"bench.measures.kernels.exponentials"},
    "bench.records.summary": {"bench"},
    "bench.tracking.mirror": {"bench.tracking"},
}


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(file): file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))}


def imported(module: str) -> Iterator[str]:
    """The modules of the house that a module names in its imports; `from package import module` is the module's."""
    names = set(sources._imported(FILES[module], module)) & FILES.keys()
    for name in names - {module}:
        if not any(other.startswith(f"{name}.") for other in names):
            yield name


def room(module: str) -> int:
    (only,) = (index for index, pattern in enumerate(ROOMS.values()) if re.fullmatch(pattern, module))
    return only


@pytest.mark.parametrize("module", FILES)
def test_a_module_stands_in_a_room_and_imports_nothing_from_above(module):
    assert [name for name in imported(module) if room(name) > room(module)] == []


def test_no_module_imports_itself_in_a_circle():
    graph = {module: set(imported(module)) for module in FILES}
    assert len(list(TopologicalSorter(graph).static_order())) == len(FILES)


def test_a_file_is_one_idea_and_a_function_fits_on_a_screen():
    for module, file in FILES.items():
        text = file.read_text()
        assert len(text.splitlines()) <= 400, module
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{module}.{node.name}"


def inside_functions(file: Path) -> Iterator[str | None]:
    """What a file's functions import."""
    for function in ast.walk(ast.parse(file.read_text())):
        for node in ast.walk(function) if isinstance(function, ast.FunctionDef) else ():
            if isinstance(node, ast.ImportFrom):
                yield node.module
            elif isinstance(node, ast.Import):
                yield node.names[0].name


def test_imports_stand_at_the_top_of_a_file():
    found = {module: set(inside_functions(file)) for module, file in FILES.items()}
    assert {module: names for module, names in found.items() if names} == INSIDE_FUNCTIONS


def test_the_library_looks_at_no_other_package_nor_at_private_ones_and_analysis_needs_no_torch():
    for module, file in FILES.items():
        tops = {name.partition(".")[0] for name in sources._imported(file, module)}
        assert "tools" not in tops, f"{module}: what is for developers is not installed"
        assert "hydra._internal" not in file.read_text(), f"{module}: a private part may change"
        if module.startswith("attention_zoo"):
            assert not tops & {"bench", "analysis", "hydra", "mlflow"}, module
        if module.startswith(("analysis", "bench.records")):
            assert not tops & {"torch", "attention_zoo", "hydra", "mlflow"}, module
