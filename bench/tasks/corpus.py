"""The tokens of a text, split, on the disk: made once, then only mapped into memory."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from bench.inputs import texts
from bench.records.disk import replacing, require_file
from bench.tasks import hub, tokenizing
from bench.tasks.base import SPLITS

KEY = hub.KEY
FORMAT = 1
"""Part of the cache key: raise it when the same fields come to mean other tokens."""
SHARES = {"train": (0.0, 0.90), "validation": (0.90, 0.95), "test": (0.95, 1.0)}
"""Of the characters of a text that has no splits of its own: where each begins and ends."""

Tokens = NDArray[np.unsignedinteger[Any]]


class Text(Protocol):
    """A text in splits; `pieces` are tokenized one by one."""

    @property
    def source(self) -> str:
        """For records and figures."""

    def identity(self, split: str) -> dict[str, Any]:
        """What pins a split down."""

    def pieces(self, split: str) -> Iterator[str]:
        """A split, piece by piece."""


@dataclass(frozen=True)
class LocalText:
    """A packaged text or a file: one part after the other, cut at the last line end before each share of it."""

    name: str

    @property
    def source(self) -> str:
        """Its name."""
        return self.name

    def identity(self, split: str) -> dict[str, Any]:
        """The hash of the whole, and the share."""
        return {**texts.identity(self.name, KEY), "share": SHARES[split]}

    def pieces(self, split: str) -> Iterator[str]:
        """The lines of a split, with their ends."""
        start, end = (_line_start(self._whole, share) for share in SHARES[split])
        yield from self._whole[start:end].splitlines(keepends=True)

    @functools.cached_property
    def _whole(self) -> str:
        return "".join(texts.lines(self.name, KEY))


def _line_start(text: str, share: float) -> int:
    """Where the line at that share of the characters starts; the place itself in a text of one line."""
    place = round(share * len(text))
    return place if place == len(text) else text.rfind("\n", 0, place) + 1 or place


@dataclass(frozen=True)
class Corpus:
    """Tokens by split, mapped into memory and read-only; `source` says what was really read."""

    source: str
    vocabulary: int
    tokens: Mapping[str, Tokens]


@dataclass(frozen=True)
class Reader:
    """How a text becomes tokens."""

    tokenizer: str
    vocabulary: int | None
    max_tokens: int | None
    cache_dir: Path

    def read(self, name: str, fallback: str | None) -> Corpus:
        """The text `name`, or `fallback` where the hub cannot be reached; raises as `bench.tasks.open_task`."""
        text: Text = LocalText(name) if texts.is_local(name, KEY) else hub.named(name)
        try:
            return self._corpus(text, text.source)
        except ConnectionError:
            if fallback is None or isinstance(text, LocalText):
                raise
            return self._corpus(LocalText(fallback), f"{fallback} ({name} could not be reached)")

    def _corpus(self, text: Text, source: str) -> Corpus:
        tokenizer = self._tokenizer(text)
        tokens = {split: self._tokens(text, split, tokenizer) for split in SPLITS}
        return Corpus(source, tokenizer.vocabulary, tokens)

    def _tokenizer(self, text: Text) -> tokenizing.Tokenizer:
        if self.vocabulary is None:
            return tokenizing.named(self.tokenizer)
        key = {**text.identity("train"), "bpe": self.vocabulary, "sample": tokenizing.SAMPLE}
        return tokenizing.trained(self._cached(key, "json"), text.pieces("train"), self.vocabulary)

    def _tokens(self, text: Text, split: str, tokenizer: tokenizing.Tokenizer) -> Tokens:
        key = {**text.identity(split), "tokenizer": tokenizer.identity, "max_tokens": self.max_tokens}
        path = self._cached(key, "npy")
        dtype = np.min_scalar_type(tokenizer.vocabulary - 1)
        try:
            return _mapped(path, dtype)
        except (FileNotFoundError, ValueError, EOFError):
            # A file that cannot be read, cut short on its way here perhaps, is made again.
            self._write(path, text, split, tokenizer, dtype)
            return _mapped(path, dtype)

    def _write(self, path: Path, text: Text, split: str, tokenizer: tokenizing.Tokenizer, dtype: np.dtype[Any]) -> None:
        count = 0
        with replacing(path) as file:
            _write_header(file, dtype, 0)
            for piece in text.pieces(split):
                ids = np.asarray(tokenizer.encode(piece), dtype)
                ids = ids if self.max_tokens is None else ids[: self.max_tokens - count]
                file.write(ids.tobytes())
                count += len(ids)
                if count == self.max_tokens:
                    break
            if count == 0:
                raise ValueError(f"{KEY}={text.source!r}: has no {split} split, it is too short")
            file.seek(0)
            _write_header(file, dtype, count)

    def _cached(self, key: Mapping[str, Any], suffix: str) -> Path:
        content = json.dumps({"format": FORMAT, **key}, sort_keys=True)
        path = self.cache_dir / f"{hashlib.sha256(content.encode()).hexdigest()}.{suffix}"
        require_file(path)
        return path


def _mapped(path: Path, dtype: np.dtype[Any]) -> Tokens:
    tokens = np.load(path, mmap_mode="r")
    if tokens.dtype != dtype or tokens.ndim != 1 or tokens.nbytes + tokens.offset != path.stat().st_size:
        raise ValueError(f"{path}: not what was written there")
    return tokens


def _write_header(file: BinaryIO, dtype: np.dtype[Any], count: int) -> None:
    """Of a length that does not depend on the count: NumPy leaves room for it to grow."""
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, described)
