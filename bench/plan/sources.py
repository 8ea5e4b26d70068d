"""The code that a measurement runs: its files with their hashes, found from import statements without importing.

The child process uses `changed` too, so nothing here may import Hydra.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("attention_zoo", "bench")
# Modules that measuring code imports but that do not affect a measurement: the plan's result, a configuration, is
# hashed itself; records and errors come after it; `bench/__init__.py` re-exports the whole suite.
NOT_MEASURED = re.compile(r"bench|bench\.(plan|records)(\..*)?|bench\.common(\.(?!mechanism$)\w+)?")
TYPE_CHECKING = ("TYPE_CHECKING", "typing.TYPE_CHECKING")
INSTALLED = ("site-packages", "dist-packages")


class Source(NamedTuple):
    """A file of a measurement's code; `name` is its path relative to the package's parent folder, for any checkout."""

    name: str
    path: str
    sha256: str


@functools.cache
def closure(roots: tuple[str, ...]) -> tuple[Source, ...]:
    """The modules `roots` and all that they import from the project and from a root's own package, sorted by name.

    Imports inside functions count; imports for type checkers, and of computed names, do not: a registry that imports
    all mechanisms adds none of them. Importing a submodule counts its packages. A root outside the project that is
    not installed also adds the modules that it imports from its own folder.
    """
    packages = {*PACKAGES, *map(_top, roots)}
    beside = {_folder(top) for top in packages.difference(PACKAGES)}
    beside = {folder for folder in beside if folder is not None and folder.name not in INSTALLED}
    files: dict[str, Source] = {}
    pending = list(roots)
    while pending:
        module = pending.pop()
        if module in files or NOT_MEASURED.fullmatch(module):
            continue
        if _top(module) not in packages and _folder(_top(module)) not in beside:
            continue
        if source := _source(module):
            files[module] = source
            parts = module.split(".")
            pending += [".".join(parts[:length]) for length in range(1, len(parts))]
            pending += _imported(Path(source.path), module)
    return tuple(sorted(files.values()))


def clear_caches() -> None:
    """Clear the caches, since code may change before the next plan."""
    for cached in (closure, calls, _content, _imported):
        cached.cache_clear()


def digest(sources: Iterable[Source]) -> str:
    """One hash of all files, independent of where they lie."""
    return hashlib.sha256(json.dumps([(source.name, source.sha256) for source in sources]).encode()).hexdigest()


def changed(sources: Iterable[Sequence[str]]) -> str | None:
    """The name of the first `Source` whose file has changed or is gone; None if all are the same."""
    for name, path, sha256 in sources:
        try:
            content = Path(path).read_bytes()
        except OSError:
            return name
        if hashlib.sha256(content).hexdigest() != sha256:
            return name
    return None


@functools.cache
def calls(sources: tuple[Source, ...], method: str) -> bool:
    """Whether one of the files calls a method of this name."""
    return any(f".{method}(".encode() in _content(Path(source.path)) for source in sources)


def _source(module: str) -> Source | None:
    """The file of a module; None if there is no module of this name."""
    folder = _folder(_top(module))
    base = module.replace(".", "/")
    for name in (f"{base}/__init__.py", f"{base}.py"):
        if folder is not None and (file := folder / name).is_file():
            return Source(name, str(file), hashlib.sha256(_content(file)).hexdigest())
    return None


def _top(module: str) -> str:
    return module.partition(".")[0]


@functools.cache
def _folder(top: str) -> Path | None:
    """The folder that contains a top-level module or package; None if it has no file."""
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # __main__
        return None
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).parent
    return Path(spec.origin).parent if spec is not None and spec.has_location and spec.origin else None


@functools.cache
def _content(file: Path) -> bytes:
    return file.read_bytes()


@functools.cache
def _imported(file: Path, module: str) -> tuple[str, ...]:
    """The absolute names that a file imports: modules, or names inside modules."""
    try:
        tree = ast.parse(_content(file))
    except (SyntaxError, ValueError):
        return ()
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    names: list[str] = []
    for statement in _imports(tree.body):
        if isinstance(statement, ast.Import):
            names += [alias.name for alias in statement.names]
        else:
            above = package.rsplit(".", statement.level - 1)[0] if statement.level else ""
            base = ".".join(filter(None, (above, statement.module)))
            names += [base, *(f"{base}.{alias.name}" for alias in statement.names)]
    return tuple(names)


def _imports(statements: Iterable[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
    for statement in statements:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement
        elif isinstance(statement, ast.If) and ast.unparse(statement.test) in TYPE_CHECKING:
            yield from _imports(statement.orelse)
        else:
            inside = (ast.stmt, ast.excepthandler, ast.match_case)
            yield from _imports(node for node in ast.iter_child_nodes(statement) if isinstance(node, inside))
