"""Texts in splits, local ones and those of the Hugging Face hub, and their tokens on the disk, made once."""

import dataclasses
import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from attention_zoo.checks import require
from bench.inputs import models, texts
from bench.tasks import kept, tokenizing
from bench.tasks.progress import ItemProgress

KEY = "task.text"
SHARES = {"train": (0.0, 0.90), "validation": (0.90, 0.95), "test": (0.95, 1.0)}
"""Of the characters of a text that has no splits of its own: where each begins and ends."""
FURTHEST = 0.01
"""Of a text, that it is cut before its shares: longer lines are cut."""
OF_ENDS = {"ends": "of documents"}
"""What the key of where the documents of a split end has beside that of its tokens."""

Tokens = kept.Array


class Split(NamedTuple):
    """The tokens of a split, and where each of its documents ends in them; `ends` is empty if none are known."""

    tokens: Tokens
    ends: Tokens


@dataclass(frozen=True)
class LocalText:
    """A packaged text or a file: one part after the other, cut at the last line end before each share of it.

    Where that is more than a hundredth of the text before, in long lines, the share itself is where it is cut.
    """

    source: str

    def identity(self, split: str) -> dict[str, Any]:
        """What pins a split down: the hash of the whole, and the share."""
        return {**texts.identity(self.source, KEY), "share": SHARES[split], "furthest": FURTHEST}

    def require_windows(self, seq_len: int) -> None:
        """Refuse a file that has no window for each split, however it is cut; raises `ValueError`.

        A token has at least one byte. Else it would first be the vocabulary that such a text does not give.
        """
        if self.source == "kjv" or self.source in texts.PACKAGED:
            return
        size = os.path.getsize(self.source)
        if size < len(SHARES) * (seq_len + 1):
            each = f"{seq_len + 1:,} tokens (seq_len + 1) in its last 5 % and in the 5 % before"
            raise ValueError(f"{KEY}={self.source!r}: has {size:,} bytes, too few; must have {each}")

    def pieces(self, split: str) -> Iterator[str]:
        """The lines of a split, with their ends."""
        text, ends = self._whole, []
        for share in SHARES[split]:
            place = round(share * len(text))
            line = text.rfind("\n", 0, place) + 1  # starts here
            ends.append(line if place < len(text) and place - line <= FURTHEST * len(text) else place)
        yield from text[ends[0] : ends[1]].splitlines(keepends=True)

    @functools.cached_property
    def _whole(self) -> str:
        return "".join(texts.lines(self.source, KEY))


@dataclass(frozen=True)
class Sources:
    """SymPy's source files, each whole in one split, chosen by a hash of its path: all splits are of all matters."""

    source: ClassVar[str] = "sympy"

    def identity(self, split: str) -> dict[str, Any]:
        """What pins a split down: the hash of the whole, and the share of the files."""
        return {**texts.identity(self.source, KEY), "files": SHARES[split]}

    def pieces(self, split: str) -> Iterator[str]:
        """The files of a split."""
        low, high = SHARES[split]
        for path, text in texts.sympy_files():
            place = int.from_bytes(hashlib.sha256(path.encode()).digest()[:8]) / 2**64
            if low <= place < high:
                yield text


def without_markers(document: str) -> str:
    """A document of Wiki-40B without the markers of its structure, a line for each of its parts."""
    # In other languages than English the published files hold Python's notation of bytes, not texts.
    require(f"{KEY}: wiki40b", document[:20], not document.startswith(("b'", 'b"')), "a text, not the repr of bytes")
    document = re.sub(r"_START_(?:ARTICLE|SECTION|PARAGRAPH)_|_NEWLINE_", "\n", document)
    return "\n".join(line for line in map(str.strip, document.split("\n")) if line)


@dataclass(frozen=True)
class HubText:
    """A dataset, streamed; its documents, the column `text`, end with a line end.

    Attributes:
        has_test: whether there is a test split; else every other document of its validation split is one.
        clean: what is left of a document.
    """

    path: str
    config: str | None = None
    revision: str | None = None
    has_test: bool = True
    clean: Callable[[str], str] = str

    @property
    def source(self) -> str:
        """For records and figures."""
        config = f":{self.config}" if self.config else ""
        return f"{self.path}{config}@{self.revision or 'main'}"

    def identity(self, split: str) -> dict[str, Any]:
        """What pins a split down."""
        return {"dataset": self.source, "column": "text", "split": self._place(split)}

    def pieces(self, split: str) -> Iterator[str]:
        """The documents of a split, read no further than asked; raises as `bench.inputs.texts.records`."""
        if not models.hub_answers():
            raise ConnectionError(f"{KEY}={self.path!r}: the Hugging Face hub cannot be reached")
        there, first, step = self._place(split)
        rows = texts.records(self.path, self.config, self.revision, there, KEY, ("text",))
        for row in islice(rows, first, None, step):
            document = self.clean(row["text"])
            yield document if document.endswith("\n") or not document else f"{document}\n"

    def _place(self, split: str) -> tuple[str, int, int]:
        """The split there, and the first and the distance of the documents taken of it."""
        if self.has_test or split == "train":
            return split, 0, 1
        return "validation", int(split == "test"), 2


Text = LocalText | Sources | HubText

# No commit of Wiki-40B is known here; task.text=wiki40b@COMMIT pins one.
KNOWN = {
    "pg19": HubText("emozilla/pg19", None, "c021754c8e01c5b1cc83a1f549c1f97fbbb756b8"),
    "wiki40b": HubText("google/wiki40b", "en", clean=without_markers),
    "c4": HubText("allenai/c4", "en", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2", has_test=False),
    "wikitext": HubText("Salesforce/wikitext", "wikitext-103-raw-v1", "b08601e04326c79dfdd32d625aee71d232d685c3"),
}


def named(name: str) -> Text:
    """A local text, or that of `path[:config][@revision]`; of a known path, what is not given is as known."""
    if texts.is_local(name, KEY):
        return Sources() if name == Sources.source else LocalText(name)
    path, config, revision = texts.dataset(name)
    known = KNOWN.get(path) or next((text for text in KNOWN.values() if text.path == path), HubText(path))
    return dataclasses.replace(known, config=config or known.config, revision=revision or known.revision)


def tokenizer(text: Text, name: str, vocabulary: int | None, cache_dir: Path) -> tokenizing.Tokenizer:
    """The tokenizer of a name; with a vocabulary one of that size, trained on the text's training split."""
    if vocabulary is None:
        return tokenizing.named(name)
    read = ItemProgress("texts read to train the tokenizer").over(text.pieces("train"))
    return tokenizing.trained(_place(text, vocabulary, cache_dir), read, vocabulary)


def _place(text: Text, vocabulary: int, cache_dir: Path) -> Path:
    """Of the tokenizer that was trained."""
    key = {**text.identity("train"), "bpe": vocabulary, "sample": tokenizing.SAMPLE}
    return kept.place(key, "json", cache_dir)


def has(text: Text, name: str, vocabulary: int | None, max_tokens: int | None, cache_dir: Path) -> bool:
    """Whether the tokens of all splits are kept, by the tokenizer that `tokenizer` would give."""
    try:
        own = name if vocabulary is None else str(_place(text, vocabulary, cache_dir))
        identity = tokenizing.identity(own)
    except (OSError, ValueError):  # not there
        return False
    keys = [_key(text, split, identity, max_tokens) for split in SHARES]
    ends = [key | OF_ENDS for key in keys[1:]] if isinstance(text, HubText) else []
    return all(kept.has(key, cache_dir) for key in [*keys, *ends])


def tokens(text: Text, split: str, tokenizer: tokenizing.Tokenizer, max_tokens: int | None, cache_dir: Path) -> Split:
    """A split, mapped into memory and read-only; no more than `max_tokens` of its tokens."""
    key = _key(text, split, tokenizer.identity, max_tokens)
    dtype = np.min_scalar_type(tokenizer.vocabulary - 1)
    lengths: list[int] = []

    def encoded() -> Iterator[Tokens]:
        count = 0
        for piece in ItemProgress(f"texts of {split} made into tokens").over(text.pieces(split)):
            ids = np.asarray(tokenizer.encode(piece), dtype)
            ids = ids if max_tokens is None else ids[: max_tokens - count]
            lengths.append(len(ids))
            yield ids
            count += len(ids)
            if count == max_tokens:
                break
        if count == 0:
            raise ValueError(f"{KEY}={text.source!r}: has no {split} split, it is too short")

    made = kept.array(key, encoded(), dtype, cache_dir)
    if split == "train" or isinstance(text, LocalText):
        return Split(made, np.empty(0, np.uint64))

    def ends() -> Iterator[Tokens]:
        if not lengths:  # tokens of an older version are kept without them
            for _ in encoded():
                pass
        yield np.cumsum(lengths, dtype=np.uint64)

    return Split(made, kept.array(key | OF_ENDS, ends(), np.dtype(np.uint64), cache_dir))


def _key(text: Text, split: str, tokenizer: Any, max_tokens: int | None) -> dict[str, Any]:
    return {**text.identity(split), "tokenizer": tokenizer, "max_tokens": max_tokens}
