"""The models' parameters beside the papers' counts: `python -m tools.pages.parameters` writes docs/parameters.md."""

import functools
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from bench.models import build
from bench.plan.conf import CONF
from bench.plan.load import Loader
from tools.pages import zoo

PAGE = Path(__file__).parents[2] / "docs" / "parameters.md"
PUBLISHED = Path(__file__).parents[2] / "bench" / "published" / "model_sizes.toml"
# Settings that do not change the number of parameters.
ANY: dict[str, Any] = {"seq_len": 1, "seed": 0, "impl": "auto"}

INTRODUCTION = """\
# Parameters of the models

Made by `make docs` from `conf/model/`, `conf/attention/` and `bench/published/model_sizes.toml`; the tests
check it. The models are Transformer++ with a vocabulary of {vocabulary:,}; the token embedding is counted once, since
the logits use it too. The papers say "gated linear units with an expansion factor of 4". Their sizes fit a gated unit
with as many parameters as an ungated layer of that factor, `(8 d // 3) // 8 * 8` wide, as in the official code; a width
of four times d would give 138, 436 and 985 M. The papers print whole millions.
"""


class Count(NamedTuple):
    """A model with a mechanism: our number of parameters, and the paper's in millions."""

    source: str
    model: str
    mechanism: str
    ours: int
    paper: int
    note: str

    @property
    def difference(self) -> float:
        """Our number relative to the paper's, in percent."""
        return 100 * (self.ours / (1e6 * self.paper) - 1)


def counts() -> Iterator[Count]:
    """All models whose size the papers print."""
    published = tomllib.loads(PUBLISHED.read_text())
    for row in published["row"]:
        for mechanism in row["mechanisms"]:
            ours = parameters(row["model"], mechanism, published["vocabulary"])
            yield Count(row["source"], row["model"], mechanism, ours, row["millions"], row.get("note", ""))


def parameters(model: str, mechanism: str, vocabulary: int) -> int:
    """Number of trainable parameters of a model (conf/model) with a mechanism (conf/attention), on the meta device."""
    given = yaml.safe_load((CONF / "model" / f"{model}.yaml").read_text())
    with torch.device("meta"):
        built = build({**ANY, **given, "attention": _attention(mechanism)}, vocabulary)
    return sum(parameter.numel() for parameter in built.parameters() if parameter.requires_grad)


@functools.cache
def _attention(mechanism: str) -> dict[str, Any]:
    return dict(Loader().load([f"attention={mechanism}"]).attention)


def page() -> str:
    """The whole page in Markdown."""
    vocabulary = tomllib.loads(PUBLISHED.read_text())["vocabulary"]
    header = "from | model | mechanism | ours (M) | paper (M) | difference | remark"
    table = zoo.table(header, [*map(_row, counts())]).replace("  ", " ")
    return f"{INTRODUCTION.format(vocabulary=vocabulary)}\n{table}\n"


def _row(count: Count) -> list[str]:
    ours, difference = f"{count.ours / 1e6:.2f}", f"{round(count.difference, 2) + 0.0:+.2f} %"
    return [count.source, f"`{count.model}`", f"`{count.mechanism}`", ours, str(count.paper), difference, count.note]


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE)
