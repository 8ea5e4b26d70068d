"""Induction heads (Olsson et al.; Mamba, section 3.1; PolySketchFormer, appendix F)."""

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
class InductionHeads(Rule):
    """Name the token that followed the special one, when the special one comes again at the end.

    In the paper's counting a sequence has n tokens of which the model reads n - 1, so here `seq_len` is n - 1: the
    paper's n = 128 is `seq_len=127`. Regular tokens are 0..alphabet-1, the special one is `alphabet`. It stands at the
    last position read and at one that is uniform among all but the last two: the answer, the token behind it, is then
    never the special one at the end. Only the last position is asked.
    """

    name: ClassVar[str] = "induction_heads"

    alphabet: int = setting(16, minimum=2)  # regular tokens
    examples: int | None = setting(65536, minimum=1)  # the paper's; None: fresh ones without end

    @property
    def vocabulary_size(self) -> int:
        """The regular tokens and the special one."""
        return self.alphabet + 1

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Refuse a sequence without room for the special token, the answer and the special token again."""
        super().require_fits(config)
        if config["seq_len"] < 3:
            raise ConfigError(f"seq_len={config['seq_len']}: must be at least 3 for task.name={self.name}")

    def draw(self, draws: Draws, seq_len: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens and targets."""
        tokens, targets = draws.below(self.alphabet, seq_len), np.full(seq_len, IGNORED)
        first = draws.below(seq_len - 2, 1)
        tokens[first] = tokens[-1] = self.alphabet
        targets[-1:] = tokens[first + 1]
        return tokens, targets
