"""Language modelling: the next token of a text (PolySketchFormer, section 4, appendices E and G)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bench.common.errors import ConfigError, one_line
from bench.common.schema import require_setting, setting
from bench.inputs import models, texts
from bench.tasks import corpus, recalled, tokenizing
from bench.tasks.base import SPLITS, UNITS, Draws, Example, Settings, Task
from bench.tasks.ngram import bigram_loss, unigram_loss


@dataclass
class LanguageModelling(Settings):
    """Name every next token of windows of `seq_len` + 1 tokens.

    A packaged or local text is split by position, at line ends unless lines are long: the first 90 % of its characters
    train, then 5 % for validation, 5 % for test. A dataset of the hub has splits of its own (C4's test is every other
    document of its validation split).

    Attributes:
        text: `kjv`, `pydoc`, `sympy` (whole source files in each split), a local file, `pg19`, `wiki40b`, `c4`,
            `wikitext`, or `dataset[:config][@revision]` on the hub. Those between are known with configuration and
            revision, and `:` and `@` say others.
        tokenizer: `bytes` (UTF-8), `bpe` (trained on the training split), a file of tokenizers (`.json`) or
            SentencePiece (`.model`), a model's directory, or `repository[@revision]` on the hub.
        vocabulary: how many ids `bpe` has; other tokenizers know that themselves.
        max_tokens: of each split no more than so many are read; null: all, which c4 has a hundred billion of.
        fallback: the packaged text that is read where the hub cannot be reached; `source` says that it was.
    """

    name: ClassVar[str] = "language_modelling"

    text: str = setting("kjv", "kjv, pydoc, sympy, a file, pg19, wiki40b, c4, wikitext, or a dataset of the hub")
    tokenizer: str = setting("bytes", "bytes, bpe, a file, a model's directory, or a repository of the hub")
    vocabulary: int | None = setting(
        None, "token ids of bpe; null with every other tokenizer", minimum=recalled.BYTES + 1, maximum=2**20
    )
    max_tokens: int | None = setting(None, "most tokens of each split that are read; null: all", minimum=2)
    fallback: str | None = setting(
        None, "text to read where the hub cannot be reached; null: none", choices=("kjv", "pydoc")
    )

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Refuse a tokenizer without its vocabulary, and files that are not there."""
        super().require_fits(config)
        is_told = (self.vocabulary is None) != (self.tokenizer == "bpe")
        allowed = "a number with task.tokenizer=bpe, null with every other"
        require_setting("task.vocabulary", self.vocabulary, is_told, allowed)
        try:
            texts.is_local(self.text, corpus.KEY)
            if self.tokenizer not in ("bytes", "bpe") and not tokenizing.is_file(self.tokenizer):
                models.is_directory(self.tokenizer, tokenizing.KEY)
        except ValueError as error:
            raise ConfigError(one_line(error)) from None

    def packages(self) -> tuple[str, ...]:
        """SymPy if its code is the text, and what makes its pieces."""
        return ("sympy",) * (self.text == "sympy") + ("tokenizers",) * (self.tokenizer == "bpe")

    def own_files(self) -> dict[str, Any]:
        """The hashes of a text and of a tokenizer that are files, and of the files of a tokenizer in a folder."""
        found: dict[str, Any] = {}
        if self.text != "kjv" and self.text not in texts.PACKAGED and texts.is_local(self.text, corpus.KEY):
            found["text"] = texts.identity(self.text, corpus.KEY)
        if self.tokenizer not in ("bytes", "bpe") and Path(self.tokenizer).exists():
            found["tokenizer"] = tokenizing.identity(self.tokenizer)
        return found

    def require_data(self, config: Mapping[str, Any], cache_dir: Path) -> None:
        """Refuse a text of the hub that is neither kept nor to be had, where no other may be read instead."""
        text, why = corpus.named(self.text), texts.unreadable()
        is_needed = why and isinstance(text, corpus.HubText) and self.fallback is None
        if is_needed and not corpus.has(text, self.tokenizer, self.vocabulary, self.max_tokens, cache_dir):
            allowed = "kjv, pydoc, sympy or a file, or task.fallback=kjv or pydoc"
            is_no_file = "there is no such file, and as a dataset it " if "/" in self.text else ""
            raise ConfigError(f"{corpus.KEY}={self.text!r}: {is_no_file}cannot be read, {why}; must be {allowed}")

    def open(self, config: Mapping[str, Any], cache_dir: Path) -> Windows:
        """Read and tokenize the text, or find its tokens in `cache_dir`; raises as `bench.tasks.open_task`."""
        seq_len, text = config["seq_len"], corpus.named(self.text)
        source = text.source
        if isinstance(text, corpus.LocalText) and self.tokenizer in ("bytes", "bpe"):
            text.require_windows(seq_len)
        try:
            tokenizer, of_split = self._read(text, cache_dir)
        except ConnectionError:
            if self.fallback is None:
                raise
            source = f"{self.fallback} ({self.text} could not be reached)"
            tokenizer, of_split = self._read(corpus.named(self.fallback), cache_dir)
        tokens, ends = ({split: own[at] for split, own in of_split.items()} for at in (0, 1))
        for split in SPLITS:
            most = len(tokens[split]) - 1
            allowed = f"at most {most}, the split {split} of task.text={source} has {most + 1} tokens"
            require_setting("seq_len", seq_len, seq_len <= most, allowed)
        sizes = {split: None if split == "train" else (len(tokens[split]) - 1) // seq_len for split in SPLITS}
        unit = "documents" if len(ends["test"]) else "stretches of the text"
        of_text = source, tokenizer.vocabulary, self.causal, sizes, tokens, ends
        ids = None if tokenizer is tokenizing.BYTES else tokenizer.vocabulary  # others may have 256, too
        return Windows(*of_text, seq_len, config["seed"], ids, unit=unit, tokenizer=tokenizer.file)

    def _read(self, text: corpus.Text, cache_dir: Path) -> tuple[tokenizing.Tokenizer, dict[str, corpus.Split]]:
        tokenizer = corpus.tokenizer(text, self.tokenizer, self.vocabulary, cache_dir)
        of_split = {split: corpus.tokens(text, split, tokenizer, self.max_tokens, cache_dir) for split in SPLITS}
        return tokenizer, of_split


@dataclass
class Windows(Task):
    """Windows of a text: for training at random offsets without end, else one after the other.

    Window i of validation and test reads the tokens from i * seq_len on, so that each but the first of the split is a
    target exactly once; what is left at the end is no window.

    Attributes:
        tokens: of each split, mapped into memory.
        ends: where the documents of validation and test end, in their tokens; empty where a text has none.
        ids: the vocabulary by which tokens are of `kinds`, as `bench.tasks.recalled` has it: None for bytes.
    """

    kinds: ClassVar[tuple[str, ...]] = recalled.KINDS
    """Of a token: whether its pair with the one before came earlier in the window, and how far before."""

    tokens: Mapping[str, corpus.Tokens]
    ends: Mapping[str, corpus.Tokens]
    seq_len: int
    seed: int
    ids: int | None

    def baselines(self) -> dict[str, float]:
        """Losses of the `unigram` and the `bigram` model of the same tokens."""
        losses = {"unigram": unigram_loss, "bigram": bigram_loss}
        return {name: loss(self.tokens, self.vocabulary) for name, loss in losses.items()}

    def kinds_of(self, split: str, index: int) -> NDArray[np.int64]:
        """The kind of each target."""
        tokens, targets = self.example(split, index)
        return recalled.kinds(np.append(tokens, targets[-1:]), self._frequent, self.ids)

    @functools.cached_property
    def _frequent(self) -> NDArray[np.int64]:
        return recalled.frequent_pairs(self.tokens["train"], self.ids)

    def units(self, split: str, indices: Sequence[int]) -> list[int]:
        """The document that the middle of a window is of: what is within one document is alike.

        A text without documents has `UNITS` equal stretches instead, or as many as windows if these are fewer.
        """
        count = len(indices)
        if len(self.ends[split]) == 0:
            return [place * min(UNITS, count) // count for place in range(count)]
        middles = [index * self.seq_len + self.seq_len // 2 for index in indices]
        return [int(unit) for unit in np.searchsorted(self.ends[split], middles, side="right")]

    def example(self, split: str, index: int) -> Example:
        """A window; targets are the tokens one further."""
        tokens, start = self.tokens[split], index * self.seq_len
        if split == "train":
            start = Draws(self.seed, split, index).integers(len(tokens) - self.seq_len, 1)[0]
        window = tokens[start : start + self.seq_len + 1].astype(np.int64)
        return window[:-1], window[1:]
