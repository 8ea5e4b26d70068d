"""From texts to token ids: bytes, an existing tokenizer, or one trained on the text itself."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attention_zoo.checks import require
from bench.common.errors import one_line, package
from bench.inputs import models
from bench.records.disk import write_atomically

KEY = "task.tokenizer"
SAMPLE = 2**26
"""The most characters of the training split that a tokenizer is trained on."""


class Tokenizer(NamedTuple):
    """`encode` returns the ids of a text without special tokens, each below `vocabulary`; `identity` identifies it.

    `file` is the whole of it as tokenizers' JSON; None where it is not of that kind.
    """

    encode: Callable[[str], Sequence[int] | NDArray[np.uint8]]
    vocabulary: int
    identity: Any
    file: bytes | None = None


BYTES = Tokenizer(lambda text: np.frombuffer(text.encode(), np.uint8), 256, "bytes")


def named(name: str) -> Tokenizer:
    """`bytes`, a file of `tokenizers` (.json) or SentencePiece (.model), or the tokenizer of a model.

    Raises:
        ValueError: there is no such file, or it is not a tokenizer.
        ModuleNotFoundError: a package is missing; the message gives the pip command.
        ConnectionError: a name on the hub cannot be read.
    """
    if name == "bytes":
        return BYTES
    if not is_file(name):
        return _of_model(name)
    read = _of_tokenizers if name.endswith(".json") else _of_sentencepiece
    try:
        return read(Path(name).read_bytes())
    except ModuleNotFoundError:
        raise
    except Exception as error:  # both libraries raise plain Exceptions
        raise ValueError(f"{KEY}={name!r}: cannot be read: {one_line(error)}") from None


def identity(name: str) -> Any:
    """What pins a tokenizer of `named` down; raises OSError or ValueError where there is no such file."""
    if name == BYTES.identity:
        return name
    if is_file(name):
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    return models.identity(name, KEY, models.TOKENIZER)


def is_file(name: str) -> bool:
    """Whether a tokenizer's name is a local file; raises `ValueError` for one that does not exist."""
    found = os.path.isfile(name)
    allowed = "bytes, bpe, a file (.json, .model), a directory, or a hub repository"
    require(KEY, name, found == name.endswith((".json", ".model")), allowed)
    return found


def _of_tokenizers(data: bytes) -> Tokenizer:
    tokenizer = _library().Tokenizer.from_str(data.decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Tokenizer(
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        tokenizer.get_vocab_size(),
        hashlib.sha256(data).hexdigest(),
        data,
    )


def _of_sentencepiece(data: bytes) -> Tokenizer:
    processor = package("sentencepiece", KEY, "sentencepiece").SentencePieceProcessor(model_proto=data)
    return Tokenizer(processor.encode, processor.vocab_size(), hashlib.sha256(data).hexdigest())


def _of_model(name: str) -> Tokenizer:
    """The tokenizer of `minilm`, a local directory, or `repository[@revision]` on the hub."""
    transformers = package("transformers", f"{KEY}={name!r}", "-e '.[pretrained]'")
    identity, origin = models.identity(name, KEY, models.TOKENIZER), models.origin(name, KEY)
    with models.reading(name, origin, KEY):
        tokenizer = transformers.AutoTokenizer.from_pretrained(**origin)
    options = {"add_special_tokens": False, "verbose": False}
    return Tokenizer(lambda text: tokenizer(text, **options)["input_ids"], len(tokenizer), identity)


def _library() -> Any:
    return package("tokenizers", KEY, "-e '.[pretrained]'")


def trained(path: Path, pieces: Iterable[str], vocabulary: int) -> Tokenizer:
    """Byte-pair encoding over bytes (as in GPT-2) with `vocabulary` ids, trained once and stored in the file `path`.

    Raises:
        ValueError: the text has too few pairs to merge.
        ModuleNotFoundError: tokenizers is missing.
    """
    try:
        kept = _of_tokenizers(path.read_bytes())
    except ModuleNotFoundError:
        raise
    except Exception:  # missing or damaged; the library raises plain Exceptions
        data = _train(pieces, vocabulary)
        write_atomically(path, data)
        kept = _of_tokenizers(data)
    allowed = f"at most {kept.vocabulary}, all that the text gives"
    if kept.vocabulary == BYTES.vocabulary:
        allowed = "null with task.tokenizer=bytes, as no two letters of the text come together again"
    require("task.vocabulary", vocabulary, kept.vocabulary == vocabulary, allowed)
    return kept


def _train(pieces: Iterable[str], vocabulary: int) -> bytes:
    tokenizers = _library()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    options = {"initial_alphabet": tokenizers.pre_tokenizers.ByteLevel.alphabet(), "show_progress": False}
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=vocabulary, **options)
    tokenizer.train_from_iterator(_sample(pieces), trainer)
    return tokenizer.to_str().encode()


def _sample(pieces: Iterable[str]) -> Iterator[str]:
    """The pieces, until they have `SAMPLE` characters."""
    left = SAMPLE
    for piece in pieces:
        if left <= 0:
            break
        yield piece[:left]
        left -= len(piece)
