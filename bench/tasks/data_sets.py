"""Data sets of the Hugging Face hub, or local folders of their files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bench.common.errors import ConfigError
from bench.inputs import models, texts
from bench.tasks import kept
from bench.tasks.base import Settings

KEY = "task.data"


@dataclass
class DataSettings(Settings):
    """The settings of a task whose `data` have one of the names that are `known`, or are in a folder."""

    causal: ClassVar[bool] = False
    known: ClassVar[tuple[str, ...]]

    data: str

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Refuse data that are not there."""
        super().require_fits(config)
        if self.data not in self.known and not os.path.isdir(self.data):
            raise ConfigError(f"{KEY}={self.data!r}: must be {', '.join(self.known)}, or a folder")


@dataclass(frozen=True)
class Data:
    """A data set with splits `train` and `test`, by the name that it has here, or the folder that it is in.

    Attributes:
        data: what the user gave.
        name: what it is called here.
        repository: where it is on the hub.
        columns: that it must have.
        instead: the data that stand in for it, which need neither hub nor package.
    """

    data: str
    name: str
    repository: str
    columns: tuple[str, ...]
    instead: str

    @property
    def source(self) -> str:
        """For records and figures."""
        return self.repository if self.data == self.name else self.data

    def identity(self, split: str) -> dict[str, Any]:
        """What pins a split down: the repository, or the files with their sizes and when they were changed."""
        if self.data == self.name:
            return {"dataset": self.repository, "split": split}
        return {"files": stamps(Path(self.data)), "split": split}

    def require(self, keys: Iterable[Mapping[str, Any]], cache_dir: Path) -> None:
        """Refuse data that are neither kept under these keys nor to be had, as far as that is known without network."""
        why = texts.unreadable(on_hub=self.data == self.name)
        if why and not all(kept.has(key, cache_dir) for key in keys):
            allowed = f"{self.instead} (a stand-in), or a folder of its files, which datasets reads"
            raise ConfigError(f"{KEY}={self.data!r}: cannot be read, {why}; must be {allowed}")

    def rows(self, split: str) -> Iterator[dict[str, Any]]:
        """The rows of a split; raises as `bench.inputs.texts.records`."""
        if self.data == self.name and not models.hub_answers():
            line = "the Hugging Face hub cannot be reached; a stand-in is"
            raise ConnectionError(f"{KEY}={self.data!r}: {line} {KEY}={self.instead}")
        yield from texts.records(self.source, None, None, split, KEY, self.columns)


def stamps(folder: Path) -> list[tuple[str, int, int]]:
    """Of the files below a folder."""
    return [stamp(path) for path in sorted(folder.rglob("*")) if path.is_file()]


def stamp(path: Path) -> tuple[str, int, int]:
    """Path, size in bytes, and when the file was changed, in ns: to hash a file of gigabytes would take a minute."""
    return str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns
