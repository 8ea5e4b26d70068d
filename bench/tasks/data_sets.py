"""Data sets of the Hugging Face hub, or local folders of their files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bench.common.errors import ConfigError
from bench.common.schema import require_setting
from bench.inputs import models, texts
from bench.tasks import kept
from bench.tasks.base import Settings

KEY = "task.data"


@dataclass
class DataSettings(Settings):
    """The settings of a task whose `data` have one of the names that are `known`, or are in a folder.

    The last of these names is that of a stand-in.
    """

    causal: ClassVar[bool] = False
    known: ClassVar[tuple[str, ...]]

    data: str

    @property
    def source(self) -> str:
        """Of data that are read, for records and figures."""
        return self.data

    def own_files(self) -> dict[str, Any]:
        """One hash of all files of a folder."""
        return {} if self.data in self.known else {"files": digest(self.data, _files(self.data))}

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Refuse data that are not there."""
        super().require_fits(config)
        is_there = self.data in self.known or os.path.isdir(self.data)
        require_setting(KEY, self.data, is_there, f"{', '.join(self.known)}, or a folder")


class HubSettings(DataSettings):
    """Settings of a data set of the hub with splits `train` and `test`, or of a folder of its files.

    The first name that is `known` is its own, the second that of a stand-in, which needs neither hub nor package.
    """

    repository: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]

    @property
    def source(self) -> str:
        """For records and figures."""
        return self.repository if self.data == self.known[0] else self.data

    def identity(self, split: str) -> dict[str, Any]:
        """What pins a split down: the repository, or the files with their sizes and when they were changed."""
        if self.data == self.known[0]:
            return {"dataset": self.repository, "split": split}
        return {"files": [stamp(path) for path in _files(self.data)], "split": split}

    def require_kept(self, keys: Iterable[Mapping[str, Any]], cache_dir: Path) -> None:
        """Refuse data that are neither kept under these keys nor to be had, as far as that is known without network."""
        why, stand_in = texts.unreadable(on_hub=self.data == self.known[0]), self.known[1]
        if why and self.data != stand_in and not all(kept.has(key, cache_dir) for key in keys):
            allowed = f"{stand_in} (a stand-in), or a folder of its files, which datasets reads"
            raise ConfigError(f"{KEY}={self.data!r}: cannot be read, {why}; must be {allowed}")

    def rows(self, split: str) -> Iterator[dict[str, Any]]:
        """The rows of a split; raises as `bench.inputs.texts.records`."""
        if self.data == self.known[0] and not models.hub_answers():
            line = "the Hugging Face hub cannot be reached; a stand-in is"
            raise ConnectionError(f"{KEY}={self.data!r}: {line} {KEY}={self.known[1]}")
        yield from texts.records(self.source, None, None, split, KEY, self.columns)


def label(data: str, value: Any, classes: int) -> int:
    """The class of an example; raises `ValueError` for another label than the task has."""
    if value not in range(classes):
        raise ValueError(f"{KEY}={data!r}: has a label {value!r:.80}; must be a whole number from 0 to {classes - 1}")
    return int(value)


def _files(folder: str) -> list[Path]:
    return sorted(path for path in Path(folder).rglob("*") if path.is_file())


def digest(folder: str, files: Iterable[Path]) -> str:
    """One hash of the stamps of files in a folder, wherever the folder is."""
    inside = [(str(path.relative_to(folder)), *stamp(path)[1:]) for path in files]
    return hashlib.sha256(json.dumps(inside).encode()).hexdigest()


def stamp(path: Path) -> tuple[str, int, int]:
    """Path, size in bytes, and when the file was changed, in ns: to hash a file of gigabytes would take a minute."""
    return str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns
