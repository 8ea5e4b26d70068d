"""The site's gallery: every committed figure, the question it answers, and the commands that reproduce it."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

from analysis.registry import FIGURES

RESULTS = Path(__file__).parents[2] / "results"
# What a figure answers, and the experiments of its records, by its name in `analysis.registry`.
ENTRIES = tomllib.loads((Path(__file__).parent / "gallery.toml").read_text())
OF_TASKS = {
    "lm_small": ("language_modelling",),
    "recall_small": ("associative_recall",),
    "mad_small": ("compression", "fuzzy_recall", "memorisation", "noisy_recall"),
    "lra_small": ("image", "listops", "pathfinder", "retrieval", "text"),
    "reversal_small": ("reversal",),
    "induction_small": ("induction_heads",),
    "copying_small": ("selective_copying",),
}
"""The tasks that experiments train, each of which has figures of its own."""


def pictures() -> Iterator[tuple[str, Path]]:
    """Every committed picture with the name of its figure."""
    for path in sorted(RESULTS.glob("*/figures/*.png"), key=_order):
        yield figure_of(path.stem), path


def figure_of(stem: str) -> str:
    """The name of the figure in a file; a part such as `crossover_forward_causal` belongs to `crossover`.

    Raises:
        KeyError: no figure has this name.
    """
    names = [name for name in FIGURES if stem == name or stem.startswith(f"{name}_")]
    if not names:
        raise KeyError(f"{stem}: no figure of `python -m analysis list` has this name")
    return max(names, key=len)


def experiments(name: str, path: Path) -> list[str]:
    """The experiments whose records a picture of this figure shows."""
    own: list[str] | dict[str, list[str]] | None = ENTRIES[name].get("experiments")
    if own is None:
        task = path.stem.removeprefix(f"{name}_")
        return [experiment for experiment, tasks in OF_TASKS.items() if task in tasks]
    return own[path.parts[-3]] if isinstance(own, dict) else own


def _order(path: Path) -> tuple[bool, str, int, str]:
    # The folder on costs first, as most readers look for it; within a folder, in the order of gallery.toml.
    return path.parts[-3] != "laptop", path.parts[-3], [*ENTRIES].index(figure_of(path.stem)), path.stem


def page() -> str:
    """The sections of the page in Markdown: a heading for each folder of results, and for each figure in it."""
    lines, folder = [], None
    for name, path in pictures():
        if path.parts[-3] != folder:
            folder = path.parts[-3]
            lines += [f"## results/{folder}", ""]
        lines += [*_figure(name, path), ""]
    return "\n".join(lines)


def _figure(name: str, path: Path) -> list[str]:
    entry, source = ENTRIES[name], f"../{path.relative_to(RESULTS.parent)}"
    numbers = path.with_suffix(".csv")
    commands = [f"python -m bench experiment={experiment}" for experiment in experiments(name, path)]
    return [
        f"### {path.stem}",
        "",
        entry["answers"],
        "",
        f"![{path.stem}: {entry['answers']}]({source})",
        "",
        *([f"[The numbers drawn]({source.removesuffix('.png')}.csv)", ""] if numbers.exists() else []),
        "```sh",
        *commands,
        f"python -m analysis figures --figure {name}",
        "```",
    ]
