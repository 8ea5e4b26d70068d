"""Selective copying (Gu and Dao, Mamba, section 3.1; PolySketchFormer, appendix F)."""

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


@dataclass
class SelectiveCopying(Rule):
    """Name M data tokens in order, read at random places among noise; asked for at the M markers at the end.

    As in state-spaces/s4 (`copying.py`, `variable=True`): token 0 is noise, 1..A-2 are data, A-1 is the marker. M data
    tokens stand, in order, at M sorted distinct places among the first L + M = seq_len - M ones; then M markers follow.
    So `seq_len` is the whole L + 2M. The targets at the markers are the M tokens. PolySketchFormer trains on 64k fixed
    examples and counts an example where all M are right; it does not say M and A, which are Mamba's here.
    """

    name: ClassVar[str] = "selective_copying"

    num_tokens: int = setting(16, minimum=1)  # M
    alphabet: int = setting(16, minimum=4)  # A, noise and marker included
    examples: int | None = setting(65536, minimum=1)  # the paper's; None: fresh ones without end

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

    def draw(self, draws: Draws, seq_len: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens and targets."""
        places = np.sort(draws.distinct(seq_len - self.num_tokens, self.num_tokens))
        data = 1 + draws.below(self.alphabet - 2, self.num_tokens)
        tokens, targets = np.zeros(seq_len, np.int64), np.full(seq_len, IGNORED)
        tokens[places] = data
        tokens[-self.num_tokens :] = self.alphabet - 1
        targets[-self.num_tokens :] = data
        return tokens, targets
