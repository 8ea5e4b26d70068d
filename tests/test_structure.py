"""The house: its rooms one above the other, no import upwards and no circle, imports inside functions included."""

import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from bench.plan import sources

ROOT = Path(__file__).parents[1]
PACKAGES = ("attention_zoo", "bench", "analysis", "hydra_plugins")
# From the ground up: a module imports from its own room and from those above it in this list.
ROOMS = {
    "operations on tensors": r"attention_zoo\.ops(\..*)?",
    "mechanisms": r"attention_zoo(\.lucidrains\.\w+|\.(?!(ops|hf)$)\w+)?",
    "in other people's models": r"attention_zoo\.hf(\..*)?",
    "words": r"bench\.(asked|errors|published(\..*)?|schema|quiet)",
    "records": r"bench\.records(\.(?!table$)\w+)?",
    "a cell's mechanism": r"bench\.mechanism",
    "folders of trained models": r"bench\.training\.checkpoints",
    "models": r"bench\.models(\..*)?",
    "texts and models by name": r"bench\.inputs\.(texts|models)",
    "tasks": r"bench\.tasks(\..*)?",
    "inputs": r"bench\.inputs(\.(?!(texts|models)$)\w+)?",
    "training": r"bench\.training(\.(?!checkpoints$)\w+)?",
    "kernels by themselves": r"bench\.kernels(\..*)?",
    "measures": r"bench\.measures(\..*)?",
    "plan": r"bench\.plan(\..*)?",
    "the printed table": r"bench\.records\.table",
    "execution": r"bench\.execution(\..*)?",
    "tracking": r"bench\.tracking(\..*)?",
    "frame": r"analysis\.(batches|frame|gate_cost|intervals|latex|learned|numbers|peers|published|table|trained)",
    "plots": r"analysis\.plots(\..*)?",
    "analysis": r"analysis(\.(registry|__main__))?",
    "commands": r"bench\.cli(\..*)?",
    "front doors": r"bench(\.(api|app|compile|console|launchers|merge|__main__))?|"
    r"bench\.(models_page|parameters|status|wait|zoo_page)",
    "plugins of Hydra": r"hydra_plugins\..*",
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


def test_the_library_looks_at_no_other_package_and_analysis_needs_no_torch():
    for module, file in FILES.items():
        tops = {name.partition(".")[0] for name in sources._imported(file, module)}
        if module.startswith("attention_zoo"):
            assert not tops & {"bench", "analysis", "hydra", "mlflow", "hydra_plugins"}, module
        if module.startswith(("analysis", "bench.records")):
            assert not tops & {"torch", "attention_zoo", "hydra", "mlflow"}, module
