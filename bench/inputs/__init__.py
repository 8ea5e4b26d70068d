"""Where query, key and value come from. A closed registry: a config can name a source, never import one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from attention_zoo.checks import check_choice
from bench.inputs.gaussian import Gaussian
from bench.inputs.pretrained import Pretrained

SOURCES: dict[str, type[Gaussian] | type[Pretrained]] = {"gaussian": Gaussian, "pretrained": Pretrained}


def source(fields: Mapping[str, Any]) -> Gaussian | Pretrained:
    """The source that a config's `inputs` describe: its `name` and the fields of that source.

    Raises:
        ValueError: unknown name or field, or a value out of range.
    """
    given = dict(fields)
    name = check_choice("inputs.name", given.pop("name", None), tuple(SOURCES))
    known = [field.name for field in dataclasses.fields(SOURCES[name])]
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"inputs.{key}={value!r}: unknown; {name} takes {', '.join(known)}")
    return SOURCES[name](**given)


def load(config: Mapping[str, Any], cache_dir: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of a cell: the same for every mechanism in a comparison.

    Args:
        config: a cell's resolved config; `inputs`, `seq_len`, `batch_size`, `num_heads`, `head_dim` and
            `seed` are read.
        cache_dir: where a source whose inputs are costly to make keeps them.

    Returns:
        Three float32 CPU tensors `(batch_size, num_heads, seq_len, head_dim)`.

    Raises:
        ValueError: a value of the config is unknown, out of range or does not fit the model or the text.
        ModuleNotFoundError: a package is missing; the message gives the pip command.
        ConnectionError: a name on the Hugging Face hub cannot be read.
    """
    return source(config["inputs"]).load(config, cache_dir)


def check(config: Mapping[str, Any], cache_dir: Path) -> None:
    """Raise what `load` would raise, as far as that can be known without making the tensors; writes nothing."""
    described = source(config["inputs"])
    if isinstance(described, Pretrained):
        described.check(config, cache_dir)
