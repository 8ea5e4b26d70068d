"""docs/zoo.md, the list of all mechanisms, from the registry and conf/attention: `python -m tools.pages.zoo`."""

import functools
from pathlib import Path
from typing import Any

import yaml

import attention_zoo
from bench.plan.conf import CONF
from bench.published.papers import ROWS

PAGE = Path(__file__).parents[2] / "docs" / "zoo.md"
COUNTED: dict[str, Any] = {"head_dim": 64, "num_heads": 12, "max_seq_len": 1024}

INTRODUCTION = """\
# The zoo

Made by `make docs` from the registry, `conf/attention/` and `bench/published/papers.py`; the tests check it. A
mechanism raises an error for what it does not support. *Causal* `approx.`: no query attends to later keys, but later
tokens change which earlier keys it attends to (of `lucidrains_performer`: with which weights). *Cross*: keys may have
another length than queries, without a causal mask. *Decode*: it has `init_state`, `prefill` and `step`. *Complexity*:
n is the length, h the size of a head; the mechanism's [page](mechanisms/index.md) says what other letters are.
*Parameters*: the number of trainable parameters of one layer with the defaults, at 12 heads of 64 and 1024 positions.
"""


def page() -> str:
    """The whole page in Markdown."""
    names = attention_zoo.list_attentions()
    mechanisms = "name | from | approximates | causal | padding | cross | decode | random | complexity | parameters"
    defaults = [[f"`{name}`", _settings(attention_zoo.hyperparameters(name))] for name in names]
    rows = [[row.paper, row.where, row.row, f"`{row.variant}`" if row.variant else "none", row.note] for row in ROWS]
    sections = [
        INTRODUCTION,
        "## Mechanisms\n",
        table(mechanisms, [_mechanism(name) for name in names]),
        "\n## Hyperparameters and their defaults\n",
        table("name | hyperparameters", defaults),
        "\n## Variants\n\n`attention=NAME` on the command line; rows of the papers' tables in the last column.\n",
        table("name | mechanism | what it sets | what it is | rows", variants()),
        "\n## Rows of the papers' tables\n",
        table("paper | where | row | variant | remark", rows),
    ]
    return "\n".join(sections) + "\n"


def table(header: str, rows: list[list[str]]) -> str:
    """A Markdown table; the header's columns are separated by `|`."""
    columns = header.count("|") + 1
    lines = [f"| {header} |", "|" + "---|" * columns]
    return "\n".join([*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)])


def _mechanism(name: str) -> list[str]:
    info = attention_zoo.info(name)
    causal = "approx." if info.approximately_causal else yes(info.causal) if info.bidirectional else "only"
    source = info.paper + (f"; package {info.package}" if info.package else "")
    marks = [yes(flag) for flag in (info.padding, info.cross, info.decode, info.random)]
    return [f"`{name}`", source, info.approximates or "-", causal, *marks, info.complexity, _parameters(name)]


def _parameters(name: str) -> str:
    if attention_zoo.info(name).package:
        return "-"  # the page must not depend on which packages are installed
    for causal in (False, True):
        try:
            attention = attention_zoo.create(name, causal=causal, **COUNTED)
        except attention_zoo.UnsupportedError:
            continue
        return str(sum(p.numel() for p in attention.parameters()))
    raise AssertionError(f"{name} can be neither causal nor not")


def variants() -> list[list[str]]:
    """One row for each file of conf/attention: name, mechanism, settings, purpose, rows of the papers' tables."""
    return [_variant(path) for path in sorted((CONF / "attention").glob("*.yaml"))]


@functools.cache
def mechanisms_of_variants() -> dict[str, str]:
    """Variant -> mechanism."""
    return {path.stem: str(_merged(path.stem)["name"]) for path in (CONF / "attention").glob("*.yaml")}


def _variant(path: Path) -> list[str]:
    name, text = path.stem, path.read_text()
    purpose = text.splitlines()[0].removeprefix("#").strip()
    settings, parent = _merged(name), yaml.safe_load(text).get("defaults", [None])[0]
    mechanism = settings.pop("name")
    rows = "; ".join(f"{row.paper}: {row.row}" for row in ROWS if row.variant == name)
    return [f"`{name}`", f"`{mechanism}`", _settings(settings) if parent else "the defaults", purpose, rows]


def _merged(variant: str) -> dict[str, Any]:
    """The settings of a variant, with those of the one that it derives from."""
    settings = yaml.safe_load((CONF / "attention" / f"{variant}.yaml").read_text())
    parent = settings.pop("defaults", [None])[0]
    return settings if parent is None else _merged(parent) | settings


def _settings(settings: dict[str, Any]) -> str:
    texts = {key: yaml.safe_dump(value, default_flow_style=True) for key, value in settings.items()}
    return ", ".join(f"`{key}={text.splitlines()[0]}`" for key, text in texts.items()) or "none"


def yes(flag: bool) -> str:
    """`yes` or `no`."""
    return "yes" if flag else "no"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE)
