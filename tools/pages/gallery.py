"""The gallery of the site: every committed figure, what it answers, and the commands that make it again."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

from analysis.registry import FIGURES

RESULTS = Path(__file__).parents[2] / "results"
# What a figure answers and which experiments make its records, by its name in the registry of `analysis`.
ENTRIES = tomllib.loads((Path(__file__).parent / "gallery.toml").read_text())


def pictures() -> Iterator[tuple[str, Path]]:
    """Every committed picture with the name of its figure."""
    for path in sorted(RESULTS.glob("*/figures/*.png"), key=_order):
        yield figure_of(path.stem), path


def figure_of(stem: str) -> str:
    """The figure of a file: its own name, or that of the figure of which it is a part (`crossover_forward_causal`).

    Raises:
        KeyError: no figure has this name.
    """
    names = [name for name in FIGURES if stem == name or stem.startswith(f"{name}_")]
    if not names:
        raise KeyError(f"{stem}: no figure of `python -m analysis list` has this name")
    return max(names, key=len)


def _order(path: Path) -> tuple[bool, str, int, str]:
    # What most readers look for first: the folder on costs, and in each folder as in the table of sentences.
    return path.parts[-3] != "laptop", path.parts[-3], [*ENTRIES].index(figure_of(path.stem)), path.stem


def page() -> str:
    """The sections of the page, Markdown: a heading for each folder of results, and one for each figure in it."""
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
    commands = [f"python -m bench experiment={experiment}" for experiment in entry["experiments"]]
    return [
        f"### {path.stem}",
        "",
        entry["answers"],
        "",
        *picture(source, f"{path.stem}: {entry['answers']}"),
        "",
        *([f"[The numbers drawn]({source.removesuffix('.png')}.csv)", ""] if numbers.exists() else []),
        "```sh",
        *commands,
        f"python -m analysis figures --figure {name}",
        "```",
    ]


def picture(source: str, alt: str) -> list[str]:
    """An image as wide as the page, and a link to it in full size."""
    return [f"```{{image}} {source}", f":alt: {alt}", ":width: 100%", "```"]
