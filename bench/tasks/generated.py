"""Tasks whose examples are drawn at random, each from its own random stream; nothing is stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bench.common.schema import require_setting, setting
from bench.tasks.base import IGNORED, Draws, Example, Generated, Settings, Task

GAP_POWER = 0.01
"""The a of recall's gaps: slot i = 1..S has probability proportional to a i**(a - 1), as in Zoology; 1 is uniform."""


@dataclass
class GeneratedSettings(Settings):
    """The settings of a task whose examples are drawn; `padding` is the id of its padding token."""

    padding: ClassVar[int | None] = None
    is_paired: ClassVar[bool] = False
    """Whether two positions belong together, so that lengths are even."""
    least: ClassVar[int] = 1
    """The least length, where no setting says more: see `shortest`."""
    ids: ClassVar[str] = "vocabulary"
    """The setting that is the number of token ids, where `vocabulary_size` says no other."""

    examples: int | None = setting(None, "number of training examples; null: unlimited", minimum=1)

    @property
    def shortest(self) -> tuple[int, str]:
        """The least length, and for messages what it follows from."""
        return self.least, f" for task.name={self.name}"

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Refuse a length that no example has."""
        super().require_fits(config)
        seq_len, (least, why) = config["seq_len"], self.shortest
        fits = seq_len >= least and not (self.is_paired and seq_len % 2)
        require_setting("seq_len", seq_len, fits, f"{'even and ' * self.is_paired}at least {least}{why}")

    @property
    def vocabulary_size(self) -> int:
        """The number of token ids."""
        return int(getattr(self, self.ids))

    def draw(self, draws: Draws, seq_len: int) -> Example:
        """Tokens and targets of one example."""
        raise NotImplementedError

    def open(self, config: Mapping[str, Any], cache_dir: Path) -> Task:
        """Open the task; nothing is cached, and the validation and test splits are unlimited."""
        sizes = {"train": self.examples, "validation": None, "test": None}
        answers: dict[str, Any] = {"classes": self.classes, "padding": self.padding}
        seq_len, seed = config["seq_len"], config["seed"]
        how = (sizes, lambda draws, split: self.draw(draws, seq_len), seed)
        return Generated("generated", self.vocabulary_size, self.causal, *how, **answers)


@dataclass
class AssociativeRecall(GeneratedSettings):
    """Predict the value of every key that is repeated, after D key-value pairs.

    Multi-query associative recall (Arora et al., Zoology, 2023), as in HazyResearch/zoology (`multiquery_ar.py`): D
    different keys of 1..V/2-1 and D different values of V/2..V-1 come first, as k1 v1 ... kD vD. The rest is slots of
    two tokens; every key is repeated once, as the first token of its own slot, where its value is the target. All
    other tokens are uniform on 0..V-1, including keys and values. Results are reported by length and number of pairs.
    """

    name: ClassVar[str] = "associative_recall"
    is_paired: ClassVar[bool] = True

    num_pairs: int = setting(4, "D, number of key-value pairs", minimum=1)
    vocabulary: int = setting(8192, "V, number of token ids", minimum=8)

    @property
    def shortest(self) -> tuple[int, str]:
        """The pairs, and a slot for each key again."""
        return 4 * self.num_pairs, f", four times task.num_pairs={self.num_pairs}"

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Refuse also a length that is too long for the vocabulary."""
        super().require_fits(config)
        seq_len = config["seq_len"]
        require_setting("task.vocabulary", self.vocabulary, self.vocabulary > seq_len, f"more than seq_len={seq_len}")

    def draw(self, draws: Draws, seq_len: int) -> Example:
        """Tokens and targets."""
        pairs, half = self.num_pairs, self.vocabulary // 2
        keys = 1 + draws.distinct(half - 1, pairs)
        values = half + draws.distinct(self.vocabulary - half, pairs)
        chances = np.arange(1, seq_len // 2 - pairs + 1, dtype=float) ** (GAP_POWER - 1)
        queries = 2 * pairs + 2 * draws.weighted(chances, pairs)
        tokens, targets = draws.integers(self.vocabulary, seq_len), np.full(seq_len, IGNORED)
        tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2] = keys, values
        tokens[queries], targets[queries] = keys, values
        return tokens, targets


@dataclass
class InductionHeads(GeneratedSettings):
    """Predict the token that followed the special token, when the special token is repeated at the end.

    Olsson et al.; Mamba, section 3.1; PolySketchFormer, appendix F. In the papers a sequence has n tokens, of which the
    model reads n - 1, so `seq_len` here is n - 1: the paper's n = 128 is `seq_len=127`. Regular tokens are
    0..alphabet-1, the special token is `alphabet`. It is at the last position, and at one that is uniform among all but
    the last two, so that the answer, the token after it, is never the special token at the end. Only the last position
    has a target.
    """

    name: ClassVar[str] = "induction_heads"
    least: ClassVar[int] = 3
    """The special token, the answer and the special token again."""

    alphabet: int = setting(16, "number of regular tokens", minimum=2)
    examples: int | None = setting(65536, "number of training examples; null: unlimited", minimum=1)

    @property
    def vocabulary_size(self) -> int:
        """The regular tokens and the special one."""
        return self.alphabet + 1

    def draw(self, draws: Draws, seq_len: int) -> Example:
        """Tokens and targets."""
        tokens, targets = draws.integers(self.alphabet, seq_len), np.full(seq_len, IGNORED)
        first = draws.integers(seq_len - 2, 1)
        tokens[first] = tokens[-1] = self.alphabet
        targets[-1:] = tokens[first + 1]
        return tokens, targets


@dataclass
class Reversal(GeneratedSettings):
    """Predict the reversed sequence: digits, independent and uniform, read by an encoder; all positions have targets.

    Reizin's thesis, Fast Algorithms, chapter 5.
    """

    name: ClassVar[str] = "reversal"
    causal: ClassVar[bool] = False
    ids: ClassVar[str] = "alphabet"

    alphabet: int = setting(10, "number of digits", minimum=2)

    def draw(self, draws: Draws, seq_len: int) -> Example:
        """Tokens and targets."""
        tokens = draws.integers(self.alphabet, seq_len)
        return tokens, tokens[::-1].copy()


@dataclass
class SelectiveCopying(GeneratedSettings):
    """Copy M data tokens in order, from random places among noise, to the M markers at the end.

    Gu and Dao, Mamba, section 3.1; PolySketchFormer, appendix F. As in state-spaces/s4 (`copying.py`, `variable=True`):
    token 0 is noise, 1..A-2 are data, A-1 is the marker. The M data tokens are, in order, at M sorted distinct places
    among the first L + M = seq_len - M; then M markers follow. So `seq_len` is the whole L + 2M. The targets at the
    markers are the M tokens. PolySketchFormer trains on 64k fixed examples, and counts an example as correct if all M
    are; it does not state M and A, so Mamba's are used.
    """

    name: ClassVar[str] = "selective_copying"
    ids: ClassVar[str] = "alphabet"

    num_tokens: int = setting(16, "M, number of tokens to copy", minimum=1)
    alphabet: int = setting(16, "A, number of token ids, with noise and marker", minimum=4)
    examples: int | None = setting(65536, "number of training examples; null: unlimited", minimum=1)

    @property
    def shortest(self) -> tuple[int, str]:
        """The data tokens and their markers."""
        return 2 * self.num_tokens, f", twice task.num_tokens={self.num_tokens}"

    def draw(self, draws: Draws, seq_len: int) -> Example:
        """Tokens and targets."""
        places = np.sort(draws.distinct(seq_len - self.num_tokens, self.num_tokens))
        data = 1 + draws.integers(self.alphabet - 2, self.num_tokens)
        tokens, targets = np.zeros(seq_len, np.int64), np.full(seq_len, IGNORED)
        tokens[places] = data
        tokens[-self.num_tokens :] = self.alphabet - 1
        targets[-self.num_tokens :] = data
        return tokens, targets
