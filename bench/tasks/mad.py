"""Tasks of MAD, mechanistic architecture design (Poli et al. 2024, arXiv 2403.17844, section 3).

The rules are those of its code, athms/mad-lab (`mad/data/instances.py`), in its baseline setting: every repeated key
has a target. MAD's other two tasks exist here too: in-context recall is `noisy_recall` with `task.noise=0`, and
`selective_copying` is Mamba's. In all tasks, MAD trains on every next token, while here only the answers count; and MAD
drops the last token, which is an answer only, while here `seq_len` tokens are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bench.common.schema import require_setting, setting
from bench.tasks.base import IGNORED, Draws, Example
from bench.tasks.generated import GeneratedSettings

Ids = NDArray[np.int64]


@dataclass
class Mad(GeneratedSettings):
    """Shared by the four tasks: a vocabulary, and a limited number of training examples."""

    vocabulary: int = setting(16, "V, number of token ids", minimum=4)
    examples: int | None = setting(12800, "number of training examples; null: unlimited", minimum=1)


@dataclass
class NoisyRecall(Mad):
    """Predict the value of every repeated key, among noise.

    A sequence consists of slots of two tokens. A slot is noise with probability `noise`: two tokens uniform on the last
    `noise_tokens` of the vocabulary; one slot, drawn first, is never noise, nor is the last. The others have a key,
    uniform on the first half of the rest of the vocabulary, and its value, which is drawn uniformly from the second
    half for each key; two keys may have the same value. The last slot's key is uniform on the keys that came before.
    Where a key is repeated, its value is the target.

    Unlike MAD (section 3.1, noisy in-context recall), the slot that is never noise is not the last one: otherwise there
    may be no key at all before the last slot, and MAD's code fails.
    """

    name: ClassVar[str] = "noisy_recall"
    is_paired: ClassVar[bool] = True
    least: ClassVar[int] = 4

    vocabulary: int = setting(32, "V, number of token ids, with noise", minimum=5)
    noise_tokens: int = setting(16, "number of noise token ids", minimum=1)
    noise: float = setting(0.2, "share of slots that are noise", minimum=0, maximum=0.9999999)

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Refuse also a vocabulary without two keys and two values."""
        super().require_fits(config)
        least = self.noise_tokens + 4
        allowed = f"at least {least}, four more than task.noise_tokens={self.noise_tokens}"
        require_setting("task.vocabulary", self.vocabulary, self.vocabulary >= least, allowed)

    def draw(self, draws: Draws, seq_len: int) -> Example:
        """Tokens and targets."""
        slots, rest = seq_len // 2, self.vocabulary - self.noise_tokens
        is_noise = np.append(draws.uniform(slots - 1) < self.noise, False)
        is_noise[draws.integers(slots - 1, 1)] = False
        keys, value_of = draws.integers(rest // 2, slots), rest // 2 + draws.integers(rest - rest // 2, rest // 2)
        came = np.unique(keys[:-1][~is_noise[:-1]])
        keys[-1:] = came[draws.integers(len(came), 1)]
        tokens = np.stack([keys, value_of[keys]], 1)
        tokens[is_noise] = rest + draws.integers(self.noise_tokens, 2 * slots).reshape(slots, 2)[is_noise]
        comes_again = np.ones(slots, bool)
        comes_again[is_noise] = False
        places = np.flatnonzero(~is_noise)
        comes_again[places[np.unique(keys[places], return_index=True)[1]]] = False
        targets = np.full((slots, 2), IGNORED)
        targets[comes_again, 0] = value_of[keys[comes_again]]
        return tokens.reshape(-1), targets.reshape(-1)


@dataclass
class FuzzyRecall(Mad):
    """Predict the value of every repeated key, where keys and values have one or more tokens.

    The last of V tokens is padding; of the others the first half is for keys, the second for values. A key has 1 to
    `key_tokens` tokens and a value 1 to `value_tokens`, each number equally likely; its tokens are distinct, each such
    sequence equally likely. Keys and their values alternate. A repeated key has the same value, each token of which is
    the target of the token before it. One pair is drawn first: it is inserted at the first end of a pair after a
    uniform position, and is repeated at the end. Padding on the left fills the sequence.

    Differences to MAD (section 3.1, fuzzy in-context recall): test examples are like training examples (MAD's have only
    keys of `key_tokens` tokens); a first pair that found no place is inserted before the end (in MAD its repetition
    then has no answer); pairs are added as long as the longest one fits (MAD pads a little more).
    """

    name: ClassVar[str] = "fuzzy_recall"

    key_tokens: int = setting(3, "largest number of tokens in a key", minimum=1)
    value_tokens: int = setting(3, "largest number of tokens in a value", minimum=1)

    @property
    def _halves(self) -> tuple[int, int]:
        """The number of token ids for keys, and for values."""
        return (self.vocabulary - 1) // 2, self.vocabulary // 2

    @property
    def shortest(self) -> tuple[int, str]:
        """A pair twice."""
        sizes = f"task.key_tokens={self.key_tokens} and task.value_tokens={self.value_tokens}"
        return 2 * (self.key_tokens + self.value_tokens), f", twice {sizes}"

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Refuse also keys or values longer than their half."""
        super().require_fits(config)
        longest = {"key_tokens": self.key_tokens, "value_tokens": self.value_tokens}
        for (name, size), half in zip(longest.items(), self._halves, strict=True):
            allowed = f"at most {half}, half of task.vocabulary={self.vocabulary} less the padding"
            require_setting(f"task.{name}", size, size <= half, allowed)

    def draw(self, draws: Draws, seq_len: int) -> Example:
        """Tokens and targets."""
        halves, count = self._halves, 1 + seq_len // 2
        keys = _motifs(draws, count, 0, halves[0], self.key_tokens)
        values = _motifs(draws, count, halves[0], halves[1], self.value_tokens)
        probe, known = keys[0], {keys[0]: values[0]}
        size, longest = len(keys[0]) + len(values[0]), self.key_tokens + self.value_tokens
        place = int(draws.integers(max(1, seq_len - 2 * size), 1)[0])
        tokens: list[int] = []
        targets: list[int] = []
        shown: set[tuple[int, ...]] = set()

        def add(key: tuple[int, ...]) -> None:
            value = known[key]
            asked = value if key in shown else (IGNORED,) * len(value)
            tokens.extend(key + value)
            targets.extend((IGNORED,) * (len(key) - 1) + asked + (IGNORED,))
            shown.add(key)

        for key, value in zip(keys[1:], values[1:], strict=True):
            if len(tokens) >= place and probe not in shown:
                add(probe)
            if len(tokens) + longest + size * (1 + (probe not in shown)) > seq_len:
                break
            known.setdefault(key, value)
            add(key)
        if probe not in shown:
            add(probe)
        add(probe)
        spare = seq_len - len(tokens)
        return np.array([self.vocabulary - 1] * spare + tokens), np.array([IGNORED] * spare + targets)


def _motifs(draws: Draws, count: int, first: int, bound: int, longest: int) -> list[tuple[int, ...]]:
    """`count` sequences of 1 to `longest` different tokens from `first` to `first + bound - 1`."""
    sizes = 1 + draws.integers(longest, count)
    orders = first + draws.uniform(count * bound).reshape(count, bound).argsort(axis=1)[:, :longest]
    return [tuple(order[:size]) for order, size in zip(orders.tolist(), sizes.tolist(), strict=True)]


@dataclass
class Compression(Mad):
    """Repeat a sequence of tokens, in order, after all of it has been read.

    The first half of the sequence are tokens, independent and uniform on 0..V-2; the second half are markers V - 1, and
    the target at the i-th marker is the i-th token.

    In MAD (section 3.1, compression), an encoder's vector at one last marker goes through a network with each position,
    so attention between layers cannot look back at the tokens. Our models have logits at positions, so the tokens are
    asked for at markers after them: they must be in the mechanism's decoding state, not in one vector. For softmax this
    state contains all tokens. MAD's n tokens are n - 1 tokens and a marker; here there are `seq_len` / 2 tokens.
    """

    name: ClassVar[str] = "compression"
    is_paired: ClassVar[bool] = True
    least: ClassVar[int] = 2

    def draw(self, draws: Draws, seq_len: int) -> Example:
        """Tokens and targets."""
        half, marker = seq_len // 2, self.vocabulary - 1
        data = draws.integers(marker, half)
        return np.append(data, np.full(half, marker)), np.append(np.full(half, IGNORED), data)


@dataclass
class Memorisation(Mad):
    """Predict the value of a key from a fixed dictionary, which the weights have to memorise.

    The last of V tokens is a marker; of the others the first half are keys, and each has its own value in the second
    half, by a dictionary that is drawn from the seed `dictionary` and is the same in every split. A sequence consists
    of keys, independent and uniform, each followed by a marker, where its value is the target. As in MAD (section 3.1,
    memorization).
    """

    name: ClassVar[str] = "memorisation"
    is_paired: ClassVar[bool] = True
    least: ClassVar[int] = 2

    vocabulary: int = setting(256, "V, number of token ids", minimum=4)
    examples: int | None = setting(256, "number of training examples; null: unlimited", minimum=1)
    dictionary: int = setting(12345, "random seed of the dictionary; the default is MAD's", minimum=0)

    def draw(self, draws: Draws, seq_len: int) -> Example:
        """Tokens and targets."""
        count, values = (self.vocabulary - 1) // 2, self.vocabulary // 2
        value_of = count + Draws(self.dictionary, "dictionary", 0).distinct(values, count)
        tokens, targets = np.full(seq_len, self.vocabulary - 1), np.full(seq_len, IGNORED)
        tokens[0::2] = draws.integers(count, seq_len // 2)
        targets[1::2] = value_of[tokens[0::2]]
        return tokens, targets
