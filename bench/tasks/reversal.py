"""Sequence reversal (Reizin's thesis, Fast Algorithms, chapter 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bench.common.schema import setting
from bench.tasks.draws import Draws, Rule


@dataclass
class Reversal(Rule):
    """Name the sequence backwards: digits, independent and uniform, read by an encoder; every position is asked."""

    name: ClassVar[str] = "reversal"
    causal: ClassVar[bool] = False

    alphabet: int = setting(10, minimum=2)

    @property
    def vocabulary_size(self) -> int:
        """The digits."""
        return self.alphabet

    def draw(self, draws: Draws, seq_len: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens and targets."""
        tokens = draws.below(self.alphabet, seq_len)
        return tokens, tokens[::-1].copy()
