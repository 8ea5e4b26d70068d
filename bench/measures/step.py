"""A step of training a whole model as something to take the time and the memory of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.measures.peak import peak_bytes
from bench.training.order import training_indices

if TYPE_CHECKING:
    from torch import Tensor

    from bench.training.loop import Trainer

PARTS = ("forward", "backward", "optimizer", "step")


class Part:
    """A part of a step, on the first batch of the task; `step` is all of it.

    With `training.accumulate` the step reads the batch piece by piece, and the forward and the backward pass are of one
    piece.

    Args:
        name: one of `PARTS`.
        trainer: whose step it is.
        batch_size: examples over all pieces; None is the trainer's.
    """

    def __init__(self, name: str, trainer: Trainer, batch_size: int | None = None) -> None:
        self.name, self.trainer = name, trainer
        size = trainer.task.size("train")
        indices = training_indices(trainer.seed, 0, batch_size or trainer.batch_size, size)
        on_device = (x.to(trainer.device) for x in trainer.task.batch("train", indices))
        chunks = (x.chunk(trainer.settings.accumulate) for x in on_device)
        self.pieces: list[tuple[Tensor, ...]] = list(zip(*chunks, strict=True))

    def prepare(self) -> Tensor | None:
        """What comes before it in a step, and is not timed."""
        self.trainer.model.train()
        if self.name == "optimizer" and self._has_gradients():  # any do: a sample may be of many short calls
            return None
        self.trainer.optimizer.zero_grad(set_to_none=True)
        if self.name == "optimizer":
            self._gradients()
        return self._loss(self.pieces[0]) if self.name == "backward" else None

    def run(self, prepared: Tensor | None) -> None:
        """The timed call."""
        if self.name == "forward":
            self._loss(self.pieces[0])
        if prepared is not None:
            prepared.backward()
        if self.name == "step":
            self._gradients()
        if self.name in ("optimizer", "step"):
            self.trainer.update(0.0)

    def peak_bytes(self) -> int:
        """The most that it had allocated at once, from a model without gradients on: they count."""

        def call() -> None:
            self.run(self.prepare())
            self.trainer.optimizer.zero_grad(set_to_none=True)

        self.trainer.optimizer.zero_grad(set_to_none=True)
        return peak_bytes(self.trainer.device, call)[0]

    def _has_gradients(self) -> bool:
        return any(parameter.grad is not None for parameter in self.trainer.model.parameters())

    def _gradients(self) -> None:
        for piece in self.pieces:
            (self._loss(piece) / len(self.pieces)).backward()

    def _loss(self, piece: tuple[Tensor, ...]) -> Tensor:
        return self.trainer.loss(*piece)


def optimizer_bytes(trainer: Trainer) -> int:
    """What the optimiser remembers of the weights; nothing before its first step."""
    state = (x for of_parameter in trainer.optimizer.state.values() for x in of_parameter.values())
    return sum(x.nbytes for x in state if hasattr(x, "nbytes"))


def model_bytes(trainer: Trainer) -> int:
    """Parameters and buffers."""
    return sum(x.nbytes for x in (*trainer.model.parameters(), *trainer.model.buffers()))
