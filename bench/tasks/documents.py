"""Documents as sequences of bytes: the text and the retrieval task of Long Range Arena."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bench.common.errors import ConfigError, one_line
from bench.common.schema import setting
from bench.tasks import data_sets, kept, passages
from bench.tasks.base import SPLITS, Drawn, Fresh, Task
from bench.tasks.progress import ItemProgress

LONGEST = 4000
"""Bytes that are read of a document, LRA's `max_length`; Skeinformer pads them to 4,096."""
VOCABULARY = 512
"""As many ids as Skeinformer's model has, of which 257 occur."""
HELD_OUT = 10
FILES = {"train": "train", "validation": "eval", "test": "test"}
"""The middle of the names of AAN's files."""

Documents = tuple[list[bytes], int]
"""The documents of an example, and its class."""


@dataclass
class DocumentSettings(data_sets.DataSettings):
    """What both tasks share: a byte is its value + 1, 0 pads on the right, and no more than 4,000 bytes are read."""

    classes: ClassVar[int] = 2
    padding: ClassVar[int] = 0
    documents: ClassVar[int]
    """Of an example."""
    stand_in: ClassVar[tuple[str, Callable[..., Drawn]]]
    """What stands in for the data, the last one known: its source, and what draws a passage or two."""

    def open(self, config: Mapping[str, Any], cache_dir: Path) -> Task:
        """Read the documents, or find them in `cache_dir`; raises as `bench.tasks.open_task`."""
        seq_len = config["seq_len"]
        answers: dict[str, Any] = {"classes": self.classes, "padding": self.padding}
        try:
            if self.data == self.known[-1]:
                source, draw = self.stand_in
                drawn = functools.partial(draw, min(seq_len, LONGEST), seq_len)
                how = (dict.fromkeys(SPLITS), drawn, config["seed"])
                return Fresh(source, VOCABULARY, self.causal, *how, unit="pages or files", **answers)
            rows = {split: self._kept(split, seq_len, cache_dir) for split in SPLITS}
        except ConnectionError:
            raise
        except OSError as error:
            raise ConfigError(one_line(error)) from error
        sizes = {split: len(rows[split]) for split in SPLITS}
        shape = (seq_len,) if self.documents == 1 else (self.documents, seq_len)
        return kept.KeptExamples(self.source, VOCABULARY, self.causal, sizes, rows, shape, **answers)

    def _key(self, split: str, seq_len: int) -> dict[str, Any]:
        return {"seq_len": seq_len, "longest": LONGEST, "task": self.name, "part": split, **self.identity(split)}

    def _kept(self, split: str, seq_len: int, cache_dir: Path) -> kept.Array:
        examples = ItemProgress(f"examples of {split} read").over(self.read(split))
        checked = ((documents, data_sets.label(self.data, label, self.classes)) for documents, label in examples)
        pieces = (row(documents, label, seq_len) for documents, label in checked)
        array = kept.array(self._key(split, seq_len), pieces, np.dtype(np.uint16), cache_dir)
        return array.reshape(-1, self.documents * seq_len + 1)

    def identity(self, split: str) -> dict[str, Any]:
        """What pins a split down."""
        raise NotImplementedError

    def read(self, split: str) -> Iterator[Documents]:
        """The examples of a split."""
        raise NotImplementedError


@dataclass
class Text(data_sets.HubSettings, DocumentSettings):
    """Say of a review, read byte by byte, whether it is positive: 1 where it is.

    Long Range Arena (Tay et al. 2021, section 2.2.2): the reviews of IMDB (Maas et al. 2011). LRA validates on the
    test split; here every tenth review of the training split is for validation. A stand-in is `testaments`: whether a
    passage of the King James Bible is of the New Testament, balanced; the pages of 8,192 bytes that passages are taken
    from are each in one split.

    Attributes:
        data: `imdb` on the hub, a folder of its files (columns `text` and `label`; `train` or `test` in their names),
            or `testaments`.
    """

    name: ClassVar[str] = "text"
    documents: ClassVar[int] = 1
    known: ClassVar[tuple[str, ...]] = ("imdb", "testaments")
    repository: ClassVar[str] = "stanfordnlp/imdb"
    columns: ClassVar[tuple[str, ...]] = ("text", "label")
    stand_in = "testaments of kjv (stand-in for IMDB)", passages.of_testament

    data: str = setting("imdb", "imdb, a folder of its files, or testaments (a stand-in)")

    def require_data(self, config: Mapping[str, Any], cache_dir: Path) -> None:
        """Refuse reviews that are neither kept nor to be had."""
        self.require_kept((self._key(split, config["seq_len"]) for split in SPLITS), cache_dir)

    def read(self, split: str) -> Iterator[Documents]:
        """The reviews; the training split is sorted by class, the part for validation is not one end of it."""
        for number, record in enumerate(self.rows("test" if split == "test" else "train")):
            if split == "test" or (number % HELD_OUT == HELD_OUT - 1) == (split == "validation"):
                yield [record["text"].encode()], record["label"]


@dataclass
class Retrieval(DocumentSettings):
    """Say of two papers, read byte by byte, whether a citation links them: 1 where one does.

    Long Range Arena (Tay et al. 2021, section 2.2.3): pairs of papers of the ACL Anthology Network (Radev et al. 2009),
    in the files `*.train.tsv`, `*.eval.tsv` and `*.test.tsv` of its release. A stand-in is `sympy`: whether two
    passages are of one source file of SymPy, balanced; each file is in one split, the first passage is of the first
    half of its file, the second of the second half of the same or of another.

    Attributes:
        data: the folder of the files, with label, two ids and two texts between tabs and nothing quoted, or `sympy`.
    """

    name: ClassVar[str] = "retrieval"
    documents: ClassVar[int] = 2
    known: ClassVar[tuple[str, ...]] = ("sympy",)
    stand_in = "files of sympy (stand-in for AAN)", passages.of_files

    data: str = setting("sympy", "the folder of AAN's files, or sympy (a stand-in)")

    def require_data(self, config: Mapping[str, Any], cache_dir: Path) -> None:
        """Refuse a folder without the files."""
        for split in SPLITS if self.data != "sympy" else ():
            self._file(split)

    def _file(self, split: str) -> Path:
        found = self._files(split)
        if len(found) != 1:
            raise ConfigError(f"task.data={self.data!r}: must be sympy, or a folder with one *.{FILES[split]}.tsv")
        return found[0]

    def _files(self, split: str) -> list[Path]:
        return sorted(Path(self.data).glob(f"*.{FILES[split]}.tsv"))

    def packages(self) -> tuple[str, ...]:
        """SymPy, whose files stand in."""
        return ("sympy",) if self.data in self.known else ()

    def own_files(self) -> dict[str, Any]:
        """One hash of the three files."""
        if self.data in self.known:
            return {}
        return {"files": data_sets.digest(self.data, (path for split in SPLITS for path in self._files(split)))}

    def identity(self, split: str) -> dict[str, Any]:
        """What pins a split down."""
        return {"file": data_sets.stamp(self._file(split))}

    def read(self, split: str) -> Iterator[Documents]:
        """The pairs, line by line."""
        path = self._file(split)
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                columns = line.rstrip(b"\r\n").split(b"\t")
                if len(columns) != 5 or columns[0] not in (b"0", b"1", b"0.0", b"1.0"):
                    raise ValueError(f"{path}:{number}: must be 0 or 1, two ids and two texts between tabs")
                yield columns[3:], int(float(columns[0]))


def row(documents: Iterable[bytes], label: int, seq_len: int) -> NDArray[np.uint16]:
    """The tokens of the documents, each padded to `seq_len`, and the class."""
    tokens = [passages.padded(np.frombuffer(document[:LONGEST], np.uint8), seq_len) for document in documents]
    return np.append(np.concatenate(tokens), label).astype(np.uint16)
