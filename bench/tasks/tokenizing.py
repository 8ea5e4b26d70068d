"""Texts to token ids: bytes, a tokenizer of somebody's, or one trained on the text itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from attention_zoo.checks import require
from bench.common.errors import one_line
from bench.inputs import models
from bench.records.disk import write_atomically

KEY = "task.tokenizer"
SAMPLE = 2**26
"""Characters of the training split that a tokenizer is trained on, at most."""


class Tokenizer(Protocol):
    """`encode` gives the ids of a text, each below `vocabulary`; `identity` pins it down."""

    vocabulary: int
    identity: Any

    def encode(self, text: str) -> Sequence[int] | NDArray[np.uint8]:
        """Token ids without special ones."""


class Bytes:
    """UTF-8."""

    vocabulary = 256
    identity = "bytes"

    def encode(self, text: str) -> NDArray[np.uint8]:
        """The bytes."""
        return np.frombuffer(text.encode(), np.uint8)


def library() -> Any:
    """The package tokenizers; a `ModuleNotFoundError` that says where to get it."""
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{KEY}: tokenizers is missing; pip install -e '.[pretrained]'") from None
    return tokenizers


class File:
    """A file of the library `tokenizers`."""

    def __init__(self, data: bytes) -> None:
        self._tokenizer = library().Tokenizer.from_str(data.decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocabulary = self._tokenizer.get_vocab_size()
        self.identity = hashlib.sha256(data).hexdigest()

    def encode(self, text: str) -> Sequence[int]:
        """As the file says."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids


class SentencePiece:
    """A model of SentencePiece."""

    def __init__(self, data: bytes) -> None:
        try:
            import sentencepiece
        except ModuleNotFoundError:
            raise ModuleNotFoundError(f"{KEY}: sentencepiece is missing; pip install sentencepiece") from None
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        self.vocabulary = self._processor.vocab_size()
        self.identity = hashlib.sha256(data).hexdigest()

    def encode(self, text: str) -> Sequence[int]:
        """As the model says."""
        return self._processor.encode(text)


class Pretrained:
    """That of a model: `minilm`, a local directory, or `repository[@revision]` on the hub."""

    def __init__(self, name: str) -> None:
        try:
            import transformers
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                f"{KEY}={name!r}: transformers is missing; pip install -e '.[pretrained]'"
            ) from None
        self.identity = models.identity(name, KEY)
        origin = models.origin(name, KEY)
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(**origin)
        except (OSError, ValueError) as error:
            unreachable = isinstance(error, OSError) and "revision" in origin
            kind = ConnectionError if unreachable else ValueError
            raise kind(f"{KEY}={name!r}: cannot be read: {one_line(error)}") from None
        self.vocabulary = len(self._tokenizer)

    def encode(self, text: str) -> Sequence[int]:
        """As the model reads."""
        return self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def named(name: str) -> Tokenizer:
    """`bytes`, a file of `tokenizers` (.json) or SentencePiece (.model), or the tokenizer of a model.

    Raises:
        ValueError: there is no such file, or it is none.
        ModuleNotFoundError: a package is missing; the message gives the pip command.
        ConnectionError: a name on the hub cannot be read.
    """
    if name == "bytes":
        return Bytes()
    if not is_file(name):
        return Pretrained(name)
    kind = File if name.endswith(".json") else SentencePiece
    try:
        return kind(Path(name).read_bytes())
    except ModuleNotFoundError:
        raise
    except Exception as error:  # what both libraries raise is of no more particular kind
        raise ValueError(f"{KEY}={name!r}: cannot be read: {one_line(error)}") from None


def is_file(name: str) -> bool:
    """Whether a tokenizer is a local file; raises `ValueError` for one that is not there."""
    looks_local = name.endswith((".json", ".model"))
    found = models.exists_as(Path.is_file, name)
    require(KEY, name, found == looks_local, "bytes, bpe, a file (.json, .model), a directory, or a hub repository")
    return found


def trained(path: Path, pieces: Iterable[str], vocabulary: int) -> Tokenizer:
    """Byte-pair encoding over bytes (GPT-2's kind) of `vocabulary` ids, trained once and kept in the file `path`.

    Raises:
        ValueError: the text has not so many pairs to merge.
        ModuleNotFoundError: tokenizers is missing.
    """
    kept = _kept(path)
    if kept is None:
        data = _train(pieces, vocabulary)
        write_atomically(path, data)
        kept = File(data)
    allowed = f"at most {kept.vocabulary}, all that the text gives"
    require("task.vocabulary", vocabulary, kept.vocabulary == vocabulary, allowed)
    return kept


def _kept(path: Path) -> File | None:
    """The tokenizer in a file; None where there is none, or a damaged one."""
    library()
    try:
        return File(path.read_bytes())
    except Exception:  # what the library raises is of no more particular kind
        return None


def _train(pieces: Iterable[str], vocabulary: int) -> bytes:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_sample(pieces), trainer)
    return tokenizer.to_str().encode()


def _sample(pieces: Iterable[str]) -> Iterator[str]:
    """The pieces until they are SAMPLE characters."""
    left = SAMPLE
    for piece in pieces:
        if left <= 0:
            break
        yield piece[:left]
        left -= len(piece)
