"""Training steps of whole models: one model's parts, apart and together, or several models in interleaved rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bench.common.schema import setting
from bench.measures import Benchmark, register
from bench.measures.context import CellContext
from bench.measures.memory import METHODS, MIB, peak_bytes
from bench.measures.rounds import compared, time_in_rounds
from bench.measures.train import make_trainer
from bench.records.metrics import Metric, median, rate, speedup, verdicts
from bench.training.loop import Trainer, training_indices

PARTS = ("forward", "backward", "optimizer", "step")


@dataclass
class Steps(Benchmark):
    """What takes the time of training steps, in rounds."""

    timed: ClassVar[bool] = True
    replicates: ClassVar[str] = "rounds"
    trains: ClassVar[bool] = True
    one_process: ClassVar[bool] = True

    min_sample_ms: float = setting(20.0, minimum=0, condition=False)  # calls are repeated until a sample lasts so long


@register
@dataclass
class TrainStep(Steps):
    """Steps per second and peak memory of a whole model, and what forward, backward and optimiser take of it."""

    name: ClassVar[str] = "train_step"
    headline_format: ClassVar[str] = "{steps_per_second}, {tokens_per_second} tokens, peak {peak_memory}"

    def measure(self, context: CellContext) -> dict[str, Any]:
        """A sample of each part in every round.

        Returns:
            `{"parts": {name: {"unit": "ns", "samples": [...], "calls_per_sample", ...}}, "pieces": that a batch is
            accumulated from, "tokens": of a step, "parameters", "peak_bytes": of a step, gradients included, over the
            model and the optimiser's state, "model_bytes", "optimizer_bytes", "memory_method"}`; a sample is
            nanoseconds per call, of one piece where it is forward's or backward's.
        """
        trainer = make_trainer(context)
        parts = {name: Part(name, trainer) for name in PARTS}
        with torch.random.fork_rng():  # of dropout
            timings = time_in_rounds(context, {}, parts, self.min_sample_ms)
            peak = parts["step"].peak_bytes()
        return {
            "parts": timings,
            "pieces": trainer.settings.accumulate,
            "tokens": trainer.batch_size * context.config["seq_len"],
            "parameters": sum(p.numel() for p in trainer.model.parameters()),
            "model_bytes": model_bytes(trainer),
            "optimizer_bytes": optimizer_bytes(trainer),
            "peak_bytes": peak,
            "memory_method": METHODS[context.device.type],
        }

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """Of the whole batch `forward_time`, ..., `step_time` in ns, `steps_per_second`, `tokens_per_second`; peak."""
        for part, timing in measurements["parts"].items():
            pieces = measurements["pieces"] if part in ("forward", "backward") else 1
            samples = [pieces * sample for sample in timing["samples"]]
            time = median(f"{part}_time", samples, "ns", name=f"{part}_ms", shown=("ms", 1e-6))
            yield time
            if part == "step":
                yield rate("steps_per_second", 1, time)
                yield rate("tokens_per_second", measurements["tokens"], time)
        yield Metric("peak_memory", measurements["peak_bytes"], "bytes", name="peak_mib", shown=MIB)


@register
@dataclass
class CompareTrainStep(Steps):
    """Interleaved rounds of whole training steps with every mechanism of the sweep; the first is the baseline."""

    name: ClassVar[str] = "compare_train_step"
    compares: ClassVar[bool] = True

    def measure(self, context: CellContext) -> dict[str, Any]:
        """One sample of every mechanism's step per round, in alternating order, all of the same batch.

        Returns:
            As `bench.measures.rounds.compared`.
        """
        contexts = {config["label"]: CellContext(config, context.cache_dir) for config in context.configs()}
        steps = {label: Part("step", make_trainer(of_label)) for label, of_label in contexts.items()}
        with torch.random.fork_rng():  # of dropout
            return compared(time_in_rounds(context, {}, steps, self.min_sample_ms))

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """`step_time` of each mechanism in ns, `steps_per_second`, and of each candidate its `speedup`."""
        baseline, *candidates = measurements["labels"]
        for label in measurements["labels"]:
            samples = measurements["samples"][label]
            time = median("step_time", samples, "ns", name=f"step_ms.{label}", shown=("ms", 1e-6), attention=label)
            yield time
            yield rate("steps_per_second", 1, time, name=f"steps_per_second.{label}", attention=label)
        for label in candidates:
            yield speedup(baseline, label, measurements["samples"])

    @classmethod
    def headline(cls, quantities: Sequence[Metric]) -> str:
        """The verdict on each candidate."""
        return verdicts(quantities)


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
