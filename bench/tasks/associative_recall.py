"""Multi-query associative recall (Arora et al., Zoology, 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bench.common.errors import ConfigError
from bench.common.schema import setting
from bench.tasks.draws import Draws, Rule
from bench.tasks.task import IGNORED

POWER = 0.01
"""The a of the gaps: slot i = 1..S has a chance in proportion to a i**(a - 1). Zoology's; 1 would be uniform."""


@dataclass
class AssociativeRecall(Rule):
    """Name the value of every key that comes again, after D pairs of key and value.

    As in HazyResearch/zoology (`multiquery_ar.py`): D different keys of 1..V/2-1 and D different values of V/2..V-1
    stand as k1 v1 ... kD vD at the start. The rest are slots of two tokens; every key comes again once, first in a slot
    of its own, and its value is the target there. All other tokens are uniform on 0..V-1, other keys and values
    included. What was measured is reported by length and number of pairs.
    """

    name: ClassVar[str] = "associative_recall"

    num_pairs: int = setting(4, minimum=1)  # D
    vocabulary: int = setting(8192, minimum=8)  # V

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

    def draw(self, draws: Draws, seq_len: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens and targets."""
        pairs, half = self.num_pairs, self.vocabulary // 2
        keys = 1 + draws.distinct(half - 1, pairs)
        values = half + draws.distinct(self.vocabulary - half, pairs)
        queries = 2 * pairs + 2 * draws.weighted(_chances(seq_len // 2 - pairs), pairs)
        tokens, targets = draws.below(self.vocabulary, seq_len), np.full(seq_len, IGNORED)
        tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2] = keys, values
        tokens[queries], targets[queries] = keys, values
        return tokens, targets


def _chances(slots: int) -> NDArray[np.float64]:
    """What the chances of the slots are in proportion to."""
    return np.arange(1, slots + 1, dtype=float) ** (POWER - 1)
