"""What predictions are worth: cross-entropy, and which answers are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.tasks import IGNORED
from bench.training.world import World


class Answers(NamedTuple):
    """The predictions where something is asked: `k` of them in a batch of `b`."""

    losses: Tensor
    """`(k,)`, in nats and at least float32; gradients flow through it."""
    right: Tensor
    """`(k,)` bool."""
    rows: Tensor
    """`(k,)`, the example of each."""
    columns: Tensor
    """`(k,)`, its position."""

    def wholly_right(self, batch_size: int) -> Tensor:
        """`(b,)` bool: examples of which every answer is right."""
        wrong = torch.zeros(batch_size, dtype=torch.long, device=self.rows.device)
        return wrong.index_add_(0, self.rows, (~self.right).long()) == 0


def answers(model: Callable[..., Tensor], tokens: Tensor, targets: Tensor) -> Answers:
    """Ask a model `(b, n)` tokens; logits are made where something is asked only."""
    asked = targets != IGNORED
    logits = model(tokens, asked)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    wanted = targets[asked]
    losses = F.cross_entropy(logits, wanted, reduction="none")
    return Answers(losses, logits.detach().argmax(-1) == wanted, *asked.nonzero(as_tuple=True))


class Sums:
    """Over the answers of many batches, and at each position."""

    def __init__(self, length: int, device: torch.device) -> None:
        self._right = self._whole = torch.zeros((), dtype=torch.float64, device=device)
        self._losses, self._asked = (torch.zeros(length, dtype=torch.float64, device=device) for _ in range(2))

    def add(self, found: Answers, batch_size: int) -> None:
        """Add the answers of a batch of `batch_size` examples."""
        self._right = self._right + found.right.sum()
        self._whole = self._whole + found.wholly_right(batch_size).sum()
        self._losses.index_add_(0, found.columns, found.losses.double())
        self._asked.index_add_(0, found.columns, torch.ones_like(found.losses, dtype=torch.float64))

    def means(self, world: World, examples: int) -> dict[str, Any]:
        """Mean loss, accuracy of answers and of whole examples, mean loss by position, of all processes together."""
        right, whole, losses, asked = map(world.total, (self._right, self._whole, self._losses, self._asked))
        by_position = zip(losses.tolist(), asked.tolist(), strict=True)
        return {
            "loss": float(losses.sum() / asked.sum()),
            "token_accuracy": float(right / asked.sum()),
            "example_accuracy": float(whole / examples),
            "loss_by_position": [loss / count if count else None for loss, count in by_position],
        }
