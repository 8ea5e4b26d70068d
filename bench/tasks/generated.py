"""Tasks whose examples are drawn, each from a stream of its own; nothing of them is kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bench.common.errors import ConfigError
from bench.common.schema import setting
from bench.tasks.base import IGNORED, Draws, Example, Settings, Task

GAP_POWER = 0.01
"""The a of recall's gaps: slot i = 1..S has a chance in proportion to a i**(a - 1). Zoology's; 1 would be uniform."""


@dataclass
class GeneratedSettings(Settings):
    """The settings of a task whose examples are drawn; `padding` is the task's."""

    padding: ClassVar[int | None] = None

    examples: int | None = setting(None, "examples to train on; null: fresh ones without end", minimum=1)

    @property
    def vocabulary_size(self) -> int:
        """How many token ids there are."""
        raise NotImplementedError

    def draw(self, draws: Draws, seq_len: int) -> Example:
        """Tokens and targets of one example."""
        raise NotImplementedError

    def open(self, config: Mapping[str, Any], cache_dir: Path) -> Task:
        """The task; nothing is cached, and validation and test are without end."""
        sizes = {"train": self.examples, "validation": None, "test": None}
        answers: dict[str, Any] = {"classes": self.classes, "padding": self.padding}
        of_cell = config["seq_len"], config["seed"]
        return Generated("generated", self.vocabulary_size, self.causal, sizes, self, *of_cell, **answers)


@dataclass
class Generated(Task):
    """Examples that are drawn as the settings say; there is chance alone to beat."""

    settings: GeneratedSettings
    seq_len: int
    seed: int

    def example(self, split: str, index: int) -> Example:
        """One example, drawn."""
        return self.settings.draw(Draws(self.seed, split, index), self.seq_len)


@dataclass
class AssociativeRecall(GeneratedSettings):
    """Name the value of every key that comes again, after D pairs of key and value.

    Multi-query associative recall (Arora et al., Zoology, 2023), as in HazyResearch/zoology (`multiquery_ar.py`): D
    different keys of 1..V/2-1 and D different values of V/2..V-1 stand as k1 v1 ... kD vD at the start. The rest are
    slots of two tokens; every key comes again once, first in a slot of its own, and its value is the target there. All
    other tokens are uniform on 0..V-1, other keys and values included. What was measured is reported by length and
    number of pairs.
    """

    name: ClassVar[str] = "associative_recall"

    num_pairs: int = setting(4, "D, pairs to remember", minimum=1)
    vocabulary: int = setting(8192, "V, token ids", minimum=8)

    @property
    def vocabulary_size(self) -> int:
        """V."""
        return self.vocabulary

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Refuse a length that is odd, too short for the pairs, or too long for the vocabulary."""
        super().require_fits(config)
        seq_len, least = config["seq_len"], 4 * self.num_pairs
        if seq_len % 2 or seq_len < least:
            allowed = f"even and at least {least}, four times task.num_pairs={self.num_pairs}"
            raise ConfigError(f"seq_len={seq_len}: must be {allowed}")
        if seq_len >= self.vocabulary:
            raise ConfigError(f"task.vocabulary={self.vocabulary}: must be more than seq_len={seq_len}")

    def draw(self, draws: Draws, seq_len: int) -> Example:
        """Tokens and targets."""
        pairs, half = self.num_pairs, self.vocabulary // 2
        keys = 1 + draws.distinct(half - 1, pairs)
        values = half + draws.distinct(self.vocabulary - half, pairs)
        chances = np.arange(1, seq_len // 2 - pairs + 1, dtype=float) ** (GAP_POWER - 1)
        queries = 2 * pairs + 2 * draws.weighted(chances, pairs)
        tokens, targets = draws.below(self.vocabulary, seq_len), np.full(seq_len, IGNORED)
        tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2] = keys, values
        tokens[queries], targets[queries] = keys, values
        return tokens, targets


@dataclass
class InductionHeads(GeneratedSettings):
    """Name the token that followed the special one, when the special one comes again at the end.

    Olsson et al.; Mamba, section 3.1; PolySketchFormer, appendix F. In the papers' counting a sequence has n tokens of
    which the model reads n - 1, so here `seq_len` is n - 1: the paper's n = 128 is `seq_len=127`. Regular tokens are
    0..alphabet-1, the special one is `alphabet`. It stands at the last position read and at one that is uniform among
    all but the last two: the answer, the token behind it, is then never the special one at the end. Only the last
    position is asked.
    """

    name: ClassVar[str] = "induction_heads"

    alphabet: int = setting(16, "regular tokens", minimum=2)
    examples: int | None = setting(65536, "examples to train on; null: fresh ones without end", minimum=1)

    @property
    def vocabulary_size(self) -> int:
        """The regular tokens and the special one."""
        return self.alphabet + 1

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Refuse a sequence without room for the special token, the answer and the special token again."""
        super().require_fits(config)
        if config["seq_len"] < 3:
            raise ConfigError(f"seq_len={config['seq_len']}: must be at least 3 for task.name={self.name}")

    def draw(self, draws: Draws, seq_len: int) -> Example:
        """Tokens and targets."""
        tokens, targets = draws.below(self.alphabet, seq_len), np.full(seq_len, IGNORED)
        first = draws.below(seq_len - 2, 1)
        tokens[first] = tokens[-1] = self.alphabet
        targets[-1:] = tokens[first + 1]
        return tokens, targets


@dataclass
class Reversal(GeneratedSettings):
    """Name the sequence backwards: digits, independent and uniform, read by an encoder; every position is asked.

    Reizin's thesis, Fast Algorithms, chapter 5.
    """

    name: ClassVar[str] = "reversal"
    causal: ClassVar[bool] = False

    alphabet: int = setting(10, "digits", minimum=2)

    @property
    def vocabulary_size(self) -> int:
        """The digits."""
        return self.alphabet

    def draw(self, draws: Draws, seq_len: int) -> Example:
        """Tokens and targets."""
        tokens = draws.below(self.alphabet, seq_len)
        return tokens, tokens[::-1].copy()


@dataclass
class SelectiveCopying(GeneratedSettings):
    """Name M data tokens in order, read at random places among noise; asked for at the M markers at the end.

    Gu and Dao, Mamba, section 3.1; PolySketchFormer, appendix F. As in state-spaces/s4 (`copying.py`, `variable=True`):
    token 0 is noise, 1..A-2 are data, A-1 is the marker. M data tokens stand, in order, at M sorted distinct places
    among the first L + M = seq_len - M ones; then M markers follow. So `seq_len` is the whole L + 2M. The targets at
    the markers are the M tokens. PolySketchFormer trains on 64k fixed examples and counts an example where all M are
    right; it does not say M and A, which are Mamba's here.
    """

    name: ClassVar[str] = "selective_copying"

    num_tokens: int = setting(16, "M, tokens to copy", minimum=1)
    alphabet: int = setting(16, "A, token ids, noise and marker included", minimum=4)
    examples: int | None = setting(65536, "examples to train on; null: fresh ones without end", minimum=1)

    @property
    def vocabulary_size(self) -> int:
        """A."""
        return self.alphabet

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Refuse a sequence without room for data tokens and markers."""
        super().require_fits(config)
        if config["seq_len"] < 2 * self.num_tokens:
            allowed = f"at least {2 * self.num_tokens}, twice task.num_tokens={self.num_tokens}"
            raise ConfigError(f"seq_len={config['seq_len']}: must be {allowed}")

    def draw(self, draws: Draws, seq_len: int) -> Example:
        """Tokens and targets."""
        places = np.sort(draws.distinct(seq_len - self.num_tokens, self.num_tokens))
        data = 1 + draws.below(self.alphabet - 2, self.num_tokens)
        tokens, targets = np.zeros(seq_len, np.int64), np.full(seq_len, IGNORED)
        tokens[places] = data
        tokens[-self.num_tokens :] = self.alphabet - 1
        targets[-self.num_tokens :] = data
        return tokens, targets
