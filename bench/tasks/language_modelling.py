"""Language modelling: the next token of a text (PolySketchFormer, section 4 and appendix G)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bench.common.errors import ConfigError, one_line
from bench.common.schema import setting
from bench.tasks.draws import Draws
from bench.tasks.task import Batch, Settings, require_index, require_split

if TYPE_CHECKING:
    from bench.tasks.corpus import Corpus

BYTES = 256


@dataclass
class LanguageModelling(Settings):
    """Name every next token of windows of `seq_len` + 1 tokens.

    A packaged or local text is split by position, at line ends: the first 90 % of its characters train, then 5 % for
    validation, 5 % for test. A dataset of the hub has splits of its own (C4's test is every other document of its
    validation split).

    Attributes:
        text: `kjv`, `pydoc`, a local file, `pg19`, `wiki40b`, `c4`, `wikitext`, or `dataset[:config][@revision]` on the
            hub. The last four are known with configuration and revision, and `:` and `@` say others.
        tokenizer: `bytes` (UTF-8), `bpe` (trained on the training split), a file of tokenizers (`.json`) or
            SentencePiece (`.model`), a model's directory, or `repository[@revision]` on the hub.
        vocabulary: how many ids `bpe` has; other tokenizers know that themselves.
        max_tokens: of each split no more than so many are read; None: all, which c4 has a hundred billion of.
        fallback: the packaged text that is read where the hub cannot be reached; `source` says that it was.
    """

    name: ClassVar[str] = "language_modelling"

    text: str = "kjv"
    tokenizer: str = "bytes"
    vocabulary: int | None = setting(None, minimum=BYTES + 1, maximum=2**20)
    max_tokens: int | None = setting(None, minimum=2)
    fallback: str | None = setting(None, choices=("kjv", "pydoc"), condition=False)

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Refuse a tokenizer without its vocabulary, and files that are not there."""
        from bench.inputs import models, texts
        from bench.tasks import hub, tokenizing

        super().require_fits(config)
        for key in ("text", "tokenizer"):
            if not getattr(self, key).strip():
                raise ConfigError(f"task.{key}={getattr(self, key)!r}: must be a name or a path")
        if (self.vocabulary is None) == (self.tokenizer == "bpe"):
            allowed = "a number with task.tokenizer=bpe, null with every other"
            raise ConfigError(f"task.vocabulary={self.vocabulary}: must be {allowed}")
        try:
            texts.is_local(self.text, hub.KEY)
            if self.tokenizer not in ("bytes", "bpe") and not tokenizing.is_file(self.tokenizer):
                models.is_directory(self.tokenizer, tokenizing.KEY)
        except ValueError as error:
            raise ConfigError(one_line(error)) from None

    def open(self, config: Mapping[str, Any], cache_dir: Path) -> Windows:
        """Read and tokenize the text, or find its tokens in `cache_dir`; raises as `bench.tasks.open_task`."""
        from bench.tasks.corpus import Reader

        reader = Reader(self.tokenizer, self.vocabulary, self.max_tokens, Path(cache_dir))
        try:
            corpus = reader.read(self.text, self.fallback)
        except ValueError as error:
            raise ConfigError(one_line(error)) from error
        for split, tokens in corpus.tokens.items():
            if len(tokens) <= config["seq_len"]:
                has = f"the split {split} of task.text={corpus.source} has {len(tokens)} tokens"
                raise ConfigError(f"seq_len={config['seq_len']}: must be at most {len(tokens) - 1}, {has}")
        return Windows(corpus, config["seq_len"], config["seed"])


class Windows:
    """Windows of a text: for training at random offsets, else one after the other.

    Window i of validation and test reads the tokens from i * seq_len on, so that each but the first of the split is a
    target exactly once; what is left at the end is no window. `tokens` are the splits, mapped into memory.
    """

    causal = True

    def __init__(self, corpus: Corpus, seq_len: int, seed: int) -> None:
        self.source, self.vocabulary, self.tokens = corpus.source, corpus.vocabulary, corpus.tokens
        self._seq_len, self._seed = seq_len, seed

    def size(self, split: str) -> int | None:
        """How many windows; None for training, whose offsets are drawn without end."""
        require_split(split)
        return None if split == "train" else (len(self.tokens[split]) - 1) // self._seq_len

    def baselines(self) -> dict[str, float]:
        """Losses of the `unigram` and the `bigram` model of the same tokens."""
        from bench.tasks.ngram import bigram_loss, unigram_loss

        return {
            "unigram": unigram_loss(self.tokens, self.vocabulary),
            "bigram": bigram_loss(self.tokens, self.vocabulary),
        }

    def batch(self, split: str, indices: Sequence[int]) -> Batch:
        """The windows `indices` of a split; targets are the tokens one further."""
        import torch

        starts = [self._start(split, index) for index in indices]
        windows = np.stack([self.tokens[split][start : start + self._seq_len + 1] for start in starts])
        whole = torch.from_numpy(windows.astype(np.int64))
        return Batch(whole[:, :-1].contiguous(), whole[:, 1:].contiguous())

    def _start(self, split: str, index: int) -> int:
        require_index(self, split, index)
        if split != "train":
            return index * self._seq_len
        return int(Draws(self._seed, split, index).below(len(self.tokens[split]) - self._seq_len, 1)[0])
