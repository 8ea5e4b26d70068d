"""Dropout of attention weights, as in Vaswani et al. 2017's code: Srivastava et al. 2014, Dropout, section 4."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from attention_zoo.base import Attention
from attention_zoo.checks import check_float, require
from attention_zoo.info import UnsupportedError


class AttentionDropout(Attention):
    """A mechanism with a weight for each query and key, or slot, that may be dropped in training mode.

    The others are divided by `1 - dropout`, so that the mean over the masks is the output without. As those of
    `nn.Dropout`, masks follow torch's own generators instead of `seed`: activation checkpointing brings them back, and
    compiled code draws them.

    Raises:
        UnsupportedError: in training, `impl=fused` whose kernels have no such weights, or a step of decoding.
    """

    # Whether the fast path drops weights itself; where it does not, `auto` is the reference while weights are dropped.
    drops_fused: ClassVar[bool] = False

    def __init__(self, *, dropout: float = 0.0, **common: Any) -> None:
        super().__init__(**common)
        self.dropout = check_float("dropout", dropout, minimum=0)
        require("dropout", dropout, dropout < 1, "below 1")

    @property
    def dropout_p(self) -> float:
        """The probability with which a weight is dropped now: zero in evaluation."""
        return self.dropout if self.training else 0.0

    def _drop(self, weights: Tensor) -> Tensor:
        return F.dropout(weights, self.dropout_p)

    def _chooses_fused(self, why_not_fused: Callable[..., str | None], *arguments: Any) -> bool:
        def with_dropout(*arguments: Any) -> str | None:
            if self.dropout_p > 0 and not self.drops_fused:
                return f"dropout={self.dropout}: the fast path of {self.info.name} drops no weights"
            return why_not_fused(*arguments)

        return super()._chooses_fused(with_dropout, *arguments)

    def _check_decodes(self) -> None:
        super()._check_decodes()
        if self.dropout_p > 0:
            raise UnsupportedError(f"dropout={self.dropout}: {self.info.name} decodes in evaluation mode, call eval()")
